"""A recipe: everything that decides what a training run computes, in one frozen value."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from burn.backbones import BackboneConfig, is_binary
from burn.compute import Compute
from burn.data.views import ViewConfig
from burn.errors import UserError
from burn.methods.burn import BurnConfig
from burn.methods.simclr import SimclrConfig
from burn.optim import OptimConfig
from burn.types import Precision


@dataclass(frozen=True)
class Recipe:
    """Settings of a run; data, teacher, seed and machine are given beside it.

    Attributes:
        method: burn, or simclr, which needs no teacher.
        epochs: epochs of each stage.
        batch_size: images for each optimizer step.
        accumulate: parts into which a batch is cut where memory is short.
        stages: 2 trains a binary network first with float weights, then fully binary; 1 at once.
        compute: number format of the arithmetic; auto is bfloat16 where the processor has
            instructions for it, else float32.
        backbone: the network to train.
        burn: BURN's loss and classifiers.
        simclr: SimCLR's head and temperature.
        views: augmentation.
        optim: optimizer and learning rate.
    """

    method: Literal["burn", "simclr"] = "burn"
    epochs: int = 200
    batch_size: int = 256
    accumulate: int = 1
    stages: Literal[1, 2] = 2
    compute: Compute = "auto"
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    burn: BurnConfig = field(default_factory=BurnConfig)
    simclr: SimclrConfig = field(default_factory=SimclrConfig)
    views: ViewConfig = field(default_factory=ViewConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def check(self) -> None:
        """Raise UserError for values out of range or options that contradict each other."""
        for name in ("epochs", "batch_size", "accumulate"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)} is not at least 1")
        if self.batch_size % self.accumulate:
            raise UserError(
                f"batch_size {self.batch_size} cannot be cut into accumulate {self.accumulate} "
                "equal parts"
            )
        if self.batch_size // self.accumulate < 2:
            raise UserError("batch_size / accumulate must be at least 2: BN needs a batch")
        if self.stages == 2 and not is_binary(self.backbone.name):
            raise UserError(
                f"stages 2 binarises step by step, but {self.backbone.name} has no binary layers: "
                "give stages 1"
            )
        for part in (self.burn, self.simclr, self.views, self.optim):
            part.check()

    def precisions(self) -> tuple[Precision, ...]:
        """The precision of each stage (paper, section 3.4)."""
        if not is_binary(self.backbone.name):
            return (Precision.FLOAT,)
        if self.stages == 1:
            return (Precision.BINARY,)
        return (Precision.BINARY_ACTIVATIONS, Precision.BINARY)

    def to_json(self) -> dict[str, Any]:
        """Nested plain values."""
        return asdict(self)
