"""The compiled engine (engine/src/bindings.cc)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

class Model:
    """A packed file, checked. Read-only: threads may share it."""

    def __init__(self, data: bytes, isa: str | None) -> None:
        """Raises ValueError for a file that breaks a rule, and for an unknown isa."""
    @property
    def isa(self) -> str: ...
    def plan(self, height: int, width: int, threads: int, layer: int) -> Plan:
        """layer: index of the last layer to run. Raises ValueError for values out of range."""

class Plan:
    """Memory and threads for images of one size; for one call at a time."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels of the output; (1, 1, channels) for vectors."""
    @property
    def num_bytes(self) -> int: ...
    def run(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """C-contiguous uint8 or float32 (n, h, w, 3) -> (n, *shape); releases the GIL."""

def supported_isas() -> list[str]:
    """Instruction sets that this processor can run, best first."""
