"""Features as vectors of length 1, and the codes of their signs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burn_engine.format import Floats

_ROWS = 4_096  # whose float64 copies take 17 MB if they have 512 features


def parts(count: int) -> list[slice]:
    """Divide rows into parts, one after the other, whose copies are small."""
    return [slice(begin, begin + _ROWS) for begin in range(0, count, _ROWS)] or [slice(0)]


def normalized(features: ArrayLike) -> Floats:
    """Return features divided by their length, float32 (n, d).

    Args:
        features: Floats (n, d).

    Raises:
        ValueError: A number is not finite, all features of an image are 0, or too large or too
            small for their squares.
    """
    given = np.asarray(features)
    if given.ndim == 2 and len(given) > _ROWS:
        return np.concatenate([normalized(given[part]) for part in parts(len(given))])
    values = given.astype(np.float64)
    with np.errstate(over="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", values, values))[:, None]
    if not (np.isfinite(lengths).all() and lengths.all()):
        if not np.isfinite(values).all():
            raise ValueError("features are not finite")
        if not values.any(axis=1).all():
            raise ValueError("all features of an image are 0")
        raise ValueError("the features of an image are too large or too small")
    return (values / lengths).astype(np.float32)


def signs(features: ArrayLike) -> NDArray[np.uint8]:
    """Return the signs of features, uint8 (n, ⌈d / 8⌉).

    Feature i is bit i mod 8, from the least significant, of byte i // 8: 1 where it is at least 0.

    Args:
        features: Floats (n, d).
    """
    return np.packbits(np.asarray(features) >= 0, axis=1, bitorder="little")
