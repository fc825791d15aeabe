"""MoCo v2: a view attracts the momentum encoder's key of another view of the same image.

Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020; with Adam and the light
augmentation of its recipe it is the "enhanced" MoCo v2 of S2-BNN (Shen et al., 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from lightly.models.modules.heads import MoCoProjectionHead

from burn.backbones import Backbone
from burn.methods.base import Method, StepOutput
from burn.methods.contrast import MomentumContrast, check_ranges
from burn.types import Batch, Part


@dataclass(frozen=True)
class Mocov2Config:
    """MoCo v2's head, queue and momentum.

    Attributes:
        temperature: of the contrastive softmax.
        queue: number of negatives, the newest keys of earlier batches.
        momentum: of the momentum encoder, which follows after every step.
        hidden: hidden width of the projection head; default: the backbone's.
        dimension: output width of the projection head.
        shuffle_groups: parts into which each process's batch is cut for BN, queries in order and
            keys shuffled, so that BN does not tell which key is whose.
    """

    temperature: float = 0.2
    queue: int = 65536
    momentum: float = 0.999
    hidden: int | None = None
    dimension: int = 128
    shuffle_groups: int = 8

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_ranges("mocov2", self)


class Mocov2(Method):
    """The first view is the query, the second the key."""

    num_views = 2

    def __init__(self, backbone: Backbone, config: Mocov2Config) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.num_features
        self.head = MoCoProjectionHead(width, config.hidden or width, config.dimension)
        self.contrast = MomentumContrast(
            backbone, self.head, config.dimension, queue=config.queue,
            temperature=config.temperature, momentum=config.momentum, groups=config.shuffle_groups,
        )  # fmt: skip

    def parts(self) -> list[Part]:
        return [
            Part("backbone", self.backbone, trained=True),
            Part("projection head", self.head, trained=True),
            Part("momentum encoder", self.contrast.target, trained=False),
        ]

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        query, key = batch.views
        features = self.contrast.encode(self.backbone, query)
        loss = self.contrast(self.head(features), key)
        return StepOutput(loss, {"loss": loss.detach()}, features.detach())

    def after_step(self, progress: float) -> None:
        self.contrast.follow(self.backbone, self.head)
