"""Settings of BYOL, and what is known of it before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from burn.methods.entries import MethodEntry, add_method
from burn.runtime.bounds import require_within


@dataclass(frozen=True)
class ByolConfig:
    """BYOL's momentum and heads.

    Attributes:
        momentum: momentum of the target at the start of a stage; it rises to 1 by half a cosine.
        hidden: hidden width of the projection head and of the predictor.
        dimension: output width of both.
    """

    momentum: float = 0.996
    hidden: int = 4096
    dimension: int = 256

    def check(self) -> None:
        require_within(0, 1, "byol.", momentum=self.momentum)
        require_within(1, 2**16, "byol.", hidden=self.hidden, dimension=self.dimension)


add_method(MethodEntry("byol", "burn.methods.byol.method:Byol", ByolConfig, title="BYOL"))
