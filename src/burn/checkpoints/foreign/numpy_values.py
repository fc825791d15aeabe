"""NumPy's numbers and arrays in torch files, read without NumPy's own functions for pickles.

A training file may hold a NumPy number, such as the best accuracy so far, or an array, such as a
random state, beside its weights. `torch.load(weights_only=True)` refuses both. It may be told to
call NumPy's functions, but these believe what a pickle says of a type. So classes of this module
stand for NumPy's: a number is read from its bytes, and anything else, which no weights are, becomes
an empty `Array` or None.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

# Booleans, integers, floats and complex numbers by bytes; texts by characters.
_KIND = re.compile("b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{1,4}")


class Dtype:
    """Stands for `numpy.dtype`.

    Attributes:
        kind: The type, such as f8, or None if it is neither one of numbers nor one of texts.
        order: The order of bytes, as in `numpy.dtype.byteorder`.
    """

    def __init__(self, kind: object = None, *_: object) -> None:
        match = isinstance(kind, str) and _KIND.fullmatch(kind)
        self.kind, self.order = str(kind) if match else None, "="

    def __setstate__(self, state: object) -> None:
        """Take the order of bytes from a pickle's state, whose second value it is."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "=", "|"):
            self.order = str(state[1])


class Array:
    """Stands for `numpy.ndarray`, without its values."""

    def __setstate__(self, state: object) -> None:
        """Leave the values of a pickle out."""


def scalar(kind: object, content: object = b"") -> Any:
    """Stand for NumPy's function that makes a number of its bytes, by a `Dtype`.

    Returns the number or text as Python's, or None where the bytes are not those of one of this
    type.
    """
    if not isinstance(kind, Dtype) or kind.kind is None or not isinstance(content, bytes):
        return None
    dtype = np.dtype(kind.order + kind.kind)
    if not content or len(content) != dtype.itemsize:
        return None
    if dtype.kind != "U":
        return np.frombuffer(content, dtype)[0].item()
    try:  # NumPy does not check that they are characters
        return content.decode("utf-32-be" if kind.order == ">" else "utf-32-le").rstrip("\0")
    except UnicodeDecodeError:
        return None


def _reconstruct(*_: object) -> Array:
    return Array()


# What pickles of NumPy 1 and 2 name, and what stands for it: all that may be called.
STAND_INS = {
    "numpy.dtype": Dtype,
    "numpy.ndarray": Array,
    "numpy.core.multiarray.scalar": scalar,
    "numpy._core.multiarray.scalar": scalar,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
}
