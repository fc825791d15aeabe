"""Settings of SimCLR, and what is known of it before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from burn.core.errors import UserError
from burn.methods.entries import MethodEntry, add_method
from burn.runtime.bounds import require_within


@dataclass(frozen=True)
class SimclrConfig:
    """SimCLR's head and temperature.

    Attributes:
        temperature: temperature of the contrastive softmax.
        hidden: hidden width of the projection head. Default: the backbone's width.
        dimension: output width of the projection head.
        layers: number of layers of the projection head: 3 as in version 2, 2 as in version 1.
    """

    temperature: float = 0.5
    hidden: int | None = None
    dimension: int = 128
    layers: Literal[2, 3] = 3

    def check(self) -> None:
        require_within(1e-3, 1e3, "simclr.", temperature=self.temperature)
        require_within(1, 2**16, "simclr.", hidden=self.hidden, dimension=self.dimension)
        if self.layers not in (2, 3):
            raise UserError(f"simclr.layers {self.layers} is not 2 or 3")


# An image's negatives are the other images of its batch, which must not be cut.
add_method(
    MethodEntry(
        "simclr",
        "burn.methods.simclr.method:Simclr",
        SimclrConfig,
        accumulates=False,
        title="SimCLR",
    )
)
