"""The compiled engine (engine/src/bindings.cc)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

class Model:
    """A packed network, ready to run on one instruction set.

    It is read-only, so threads may share it.

    Args:
        data: The bytes of a packed file.
        isa: One of `supported_isas()`; None for the environment variable BURN_ENGINE_ISA or, where
            it is unset or empty, the best.

    Raises:
        ValueError: The bytes break a rule of the format, or the instruction set is not available.
    """

    def __init__(self, data: bytes, isa: str | None) -> None: ...
    @property
    def isa(self) -> str:
        """Name of the instruction set."""
    def plan(self, height: int, width: int, threads: int, layer: int) -> Plan:
        """Create the memory and the threads for images of one size.

        Args:
            height: Height of the images in pixels, 1 to 16,384.
            width: Width of the images in pixels, 1 to 16,384; height · width is at most 2²⁶.
            threads: Threads of one run, 1 to 256.
            layer: Index of the last layer to run, or -1 for the last one of the model.

        Raises:
            ValueError: A value is out of range.
        """

class Plan:
    """The memory and the threads for images of one size, for one run at a time."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the output; (1, 1, channels) for vectors."""
    @property
    def num_bytes(self) -> int:
        """Size of the memory in bytes."""
    def run(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Run the model on images, without the GIL.

        Args:
            images: C-contiguous (n, height, width, 3), uint8, or float32 from 0 to 1.

        Returns:
            float32 (n, *shape).

        Raises:
            ValueError: The images do not have the plan's size, or this process was forked from the
                one that created the plan.
        """

def supported_isas() -> list[str]:
    """Return the instruction sets that this processor can run, best first."""

def resize(
    photo: NDArray[np.uint8],
    new_height: int,
    new_width: int,
    top: int,
    left: int,
    rows: int,
    columns: int,
) -> NDArray[np.uint8]:
    """Resize a photograph as Pillow's BICUBIC does, to the byte, and cut out a part; without GIL.

    The instruction set is that of the environment variable BURN_ENGINE_ISA or, where it is unset or
    empty, the best.

    Args:
        photo: C-contiguous (height, width, 3).
        new_height: Height after resizing in pixels.
        new_width: Width after resizing in pixels.
        top: First row of the resized photograph that is wanted.
        left: First column that is wanted.
        rows: Number of rows that are wanted.
        columns: Number of columns that are wanted.

    Returns:
        uint8 (rows, columns, 3).

    Raises:
        ValueError: A number is out of range, or the part does not lie in the resized photograph.
    """

def nearest(
    codes: NDArray[np.uint8], queries: NDArray[np.uint8], k: int, isa: str | None
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Find, for each query, the codes that differ from it in the fewest bits, without the GIL.

    Args:
        codes: C-contiguous (n, bytes).
        queries: C-contiguous (m, bytes).
        k: Number of codes to find, 1 to n.
        isa: As in `Model`.

    Returns:
        Positions and numbers of bits, both (m, k), by distance; of codes with the same distance
        the first ones, in order.

    Raises:
        ValueError: The lengths differ, k is out of range, or the instruction set is not available.
    """
