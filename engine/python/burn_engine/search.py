"""The exact search among codes, by the number of bits that differ."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burn_engine.native import chosen_core

_BLOCK = 2**22  # bytes of codes that the reference compares at once


def nearest(
    codes: NDArray[np.uint8], queries: NDArray[np.uint8], k: int, isa: str | None = None
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Find, for each query, the codes that differ from it in the fewest bits.

    It runs in the compiled core where there is one, on one thread and without the GIL.

    Args:
        codes: uint8 (n, bytes).
        queries: uint8 (m, bytes).
        k: Number of codes to find, 0 to n.
        isa: Instruction set, as in `burn_engine.load`.

    Returns:
        Positions and numbers of bits, both (m, k), by distance; of codes with the same distance
        the first ones, in order.
    """
    if k == 0 or not len(queries):
        shape = (len(queries), k)
        return np.empty(shape, np.int64), np.empty(shape, np.uint32)
    core, name = chosen_core(isa)
    if core is None:
        return _reference(codes, queries, k)
    return core.nearest(np.ascontiguousarray(codes), np.ascontiguousarray(queries), k, name)


def _reference(
    codes: NDArray[np.uint8], queries: NDArray[np.uint8], k: int
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The same in NumPy, for machines without a compiler, and to compare with."""
    positions = np.empty((len(queries), k), np.int64)
    distances = np.empty((len(queries), k), np.uint32)
    step = max(1, _BLOCK // codes.shape[1])
    for row, query in enumerate(queries):
        counts = np.concatenate(
            [
                _BITS[codes[i : i + step] ^ query].sum(axis=1, dtype=np.uint32)
                for i in range(0, len(codes), step)
            ]
        )
        positions[row] = np.argsort(counts, kind="stable")[:k]
        distances[row] = counts[positions[row]]
    return positions, distances


_BITS = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)
