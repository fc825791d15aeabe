"""InfoMin: contrast between views that share no more than the task needs.

Tian et al., What Makes for Good Views for Contrastive Learning?, 2020. Its findings are about
views: the stronger augmentation is its recipe's, the loss that of momentum contrast. Without the
jigsaw branch that its longest runs added.
"""

from __future__ import annotations

from dataclasses import dataclass

from lightly.models.modules.heads import MoCoProjectionHead

from burn.backbones import Backbone
from burn.methods.base import Method, StepOutput
from burn.methods.contrast import MomentumContrast, check_ranges
from burn.types import Batch, Part


@dataclass(frozen=True)
class InfominConfig:
    """InfoMin's head, negatives and momentum.

    Attributes:
        temperature: of the contrastive softmax.
        negatives: their number, the newest keys of earlier batches.
        momentum: of the momentum encoder, which follows after every step.
        hidden: hidden width of the projection head; default: the backbone's.
        dimension: output width of the projection head.
        shuffle_groups: parts into which each process's batch is cut for BN, queries in order and
            keys shuffled, so that BN does not tell which key is whose; 8 on a single GPU.
    """

    temperature: float = 0.15
    negatives: int = 65536
    momentum: float = 0.999
    hidden: int | None = None
    dimension: int = 128
    shuffle_groups: int = 1

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_ranges("infomin", self)


class Infomin(Method):
    """The first view is the query, the second the key."""

    num_views = 2

    def __init__(self, backbone: Backbone, config: InfominConfig) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.num_features
        self.head = MoCoProjectionHead(width, config.hidden or width, config.dimension)
        self.contrast = MomentumContrast(
            backbone, self.head, config.dimension, queue=config.negatives,
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
