"""MoCo v2: a view attracts the momentum encoder's key of another view of the same image.

Chen et al., Improved Baselines with Momentum Contrastive Learning, 2020. With Adam and the light
augmentation of its recipe it is the "enhanced" MoCo v2 of S2-BNN (Shen et al., 2021).
"""

from __future__ import annotations

from lightly.models.modules.heads import MoCoProjectionHead

from burn.backbones.base import Backbone
from burn.core.types import Batch, Part
from burn.methods.base import Method, StepOutput
from burn.methods.mocov2.settings import Mocov2Config
from burn.methods.shared.contrast import MomentumContrast


class Mocov2(Method):
    """MoCo v2, with an image's first view as the query and its second as the key."""

    num_views = 2

    def __init__(self, backbone: Backbone, config: Mocov2Config) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.num_features
        self.head = MoCoProjectionHead(width, config.hidden or width, config.dimension)
        self.contrast = MomentumContrast(
            backbone,
            self.head,
            config.dimension,
            queue=config.queue,
            temperature=config.temperature,
            momentum=config.momentum,
            groups=config.shuffle_groups,
        )

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
