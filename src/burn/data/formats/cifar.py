"""CIFAR-10 and CIFAR-100, in the Python batches that torchvision downloads."""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from burn.core.errors import UserError
from burn.core.inputs import read_bytes, status_of
from burn.data.base import PixelSource, Split
from burn.data.fingerprint import digest

_MOST_BYTES = 2**28  # of a batch; the largest one, of CIFAR-100, has 155 MB
_MOST_TUPLES = 1000  # in a batch; CIFAR's batches have a handful


class Cifar(PixelSource):
    """One split of CIFAR-10 or CIFAR-100, from the folder of the batches."""

    def __init__(self, folder: Path, split: Split) -> None:
        if (folder / "batches.meta").is_file():
            train = [f"data_batch_{i}" for i in range(1, 6)]
            batches, meta = (train if split == "train" else ["test_batch"]), "batches.meta"
            label_key, names_key = b"labels", b"label_names"
        else:
            batches, meta = [split], "meta"
            label_key, names_key = b"fine_labels", b"fine_label_names"
        loaded = [_load(folder / batch) for batch in batches]
        names = _load(folder / meta)
        try:
            pixels = np.concatenate([batch[b"data"].array for batch in loaded])
            self._images = pixels.reshape(-1, 3, 32, 32)
            labels = [_labels(batch[label_key]) for batch in loaded]
            self.labels: np.ndarray | None = np.concatenate(labels)
            self.classes = tuple(name.decode() for name in names[names_key])
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(f"{folder} is not laid out as CIFAR's batches: {reason}") from error
        if len(self.labels) != len(self._images):
            raise UserError(f"{folder}: {len(self._images)} images but {len(self.labels)} labels")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise UserError(f"{folder}: a label is outside its {len(self.classes)} classes")
        self.name = f"{folder}:{split}"
        self.fingerprint = digest(self._images.tobytes(), self.labels.tobytes())

    def __len__(self) -> int:
        return len(self._images)

    def pixels(self, index: int) -> np.ndarray:
        return np.ascontiguousarray(self._images[index].transpose(1, 2, 0))

    def describe(self, index: int) -> str:
        return f"{self.name}[{index}]"


def _labels(labels: Any) -> np.ndarray:
    # NumPy would visit every value of nested lists, of which there may be any number, since lists
    # may share elements.
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise TypeError("its labels are not a list of integers")
    return np.array(labels, dtype=np.int64)


def _load(path: Path) -> dict[bytes, Any]:
    if status_of(path) is None:
        raise UserError(f"{path} is missing from the CIFAR folder")
    pickled = read_bytes(path, _MOST_BYTES)
    try:
        _require_small(pickled)
        content = _Unpickler(io.BytesIO(pickled), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise any exception
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UserError(f"{path} is not a CIFAR batch: {reason}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not laid out as CIFAR's batches: it holds no dict")
    return content


def _require_small(pickled: bytes) -> None:
    """Raise UnpicklingError for a pickle that allocates more memory than it has, or nests deeply.

    The unpickler allocates a memo for any index, and a bytearray of any length, before it reads
    their contents; and hashing deeply nested tuples overflows the stack.
    """
    tuples = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(pickled)):
        puts = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
        if puts and not 0 <= (argument or 0) <= count:
            raise pickle.UnpicklingError("an index of its memo is out of range")
        if opcode.name == "BYTEARRAY8":
            raise pickle.UnpicklingError("it holds a bytearray, unlike CIFAR's batches")
        tuples += opcode.name.startswith(("TUPLE", "FROZENSET"))
        if tuples > _MOST_TUPLES:
            raise pickle.UnpicklingError(f"it holds more than {_MOST_TUPLES} tuples")


class _PickledArray:
    """Stand-in for an array of bytes; NumPy's own unpickling would follow forged pointers."""

    array: np.ndarray

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        if not isinstance(dtype, _PickledByte) or is_fortran or not isinstance(data, bytes):
            raise pickle.UnpicklingError("it holds an array that is not plain uint8")
        self.array = np.frombuffer(data, dtype=np.uint8).reshape(shape)


class _PickledByte:
    """Stand-in for the dtype uint8, the only one in CIFAR; its state does not matter."""

    def __setstate__(self, state: Any) -> None:
        pass


def _array(*_arguments: Any) -> _PickledArray:
    return _PickledArray()


def _dtype(name: Any, *_arguments: Any) -> _PickledByte:
    if name not in ("u1", b"u1"):
        raise pickle.UnpicklingError(f"it holds an array of {name!r}, not uint8")
    return _PickledByte()


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1" if encoding == "latin1" else "ascii")


class _Unpickler(pickle.Unpickler):
    """An unpickler for CIFAR's batches that calls only the stand-ins above."""

    def find_class(self, module: str, name: str) -> Any:
        stand_ins = {
            ("numpy.core.multiarray", "_reconstruct"): _array,
            ("numpy._core.multiarray", "_reconstruct"): _array,
            ("numpy", "ndarray"): None,
            ("numpy", "dtype"): _dtype,
            ("_codecs", "encode"): _encode,
        }
        if (module, name) not in stand_ins:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a CIFAR batch")
        return stand_ins[module, name]
