"""BYOL: predict how a slowly following copy sees another view of an image (Grill et al., 2020).

Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning, NeurIPS 2020.
"""

from __future__ import annotations

from lightly.loss import NegativeCosineSimilarity
from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead

from burn.backbones.base import Backbone
from burn.core.schedule import cosine_anneal
from burn.core.types import Batch, Part
from burn.methods.base import Method, StepOutput
from burn.methods.byol.settings import ByolConfig
from burn.methods.shared.momentum import MomentumTarget


class Byol(Method):
    """BYOL with the loss ‖q - z‖² = 2 - 2·cos between prediction q and target z, each of length 1.

    The loss is the mean over the batch and over both directions (each view predicts the other), in
    [0, 4]; the paper adds the directions up, which is twice this.
    """

    num_views = 2

    def __init__(self, backbone: Backbone, config: ByolConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.head = BYOLProjectionHead(backbone.num_features, config.hidden, config.dimension)
        self.predictor = BYOLPredictionHead(config.dimension, config.hidden, config.dimension)
        self.target = MomentumTarget(backbone, self.head)
        self.criterion = NegativeCosineSimilarity()

    def parts(self) -> list[Part]:
        return [
            Part("backbone", self.backbone, trained=True),
            Part("projection head", self.head, trained=True),
            Part("predictor", self.predictor, trained=True),
            Part("momentum encoder", self.target, trained=False),
        ]

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        features = [self.backbone(view) for view in batch.views]
        first, second = (self.predictor(self.head(f)).float() for f in features)
        target_first, target_second = (self.target(view).float() for view in batch.views)
        crossed = self.criterion(first, target_second), self.criterion(second, target_first)
        loss = 2 + crossed[0] + crossed[1]
        return StepOutput(loss, {"loss": loss.detach()}, features[0].detach())

    def after_step(self, progress: float) -> None:
        momentum = cosine_anneal(progress, self.config.momentum, 1.0)
        self.target.follow(self.backbone, self.head, momentum)
