"""SimCLR: two views of an image attract, all others repel (Chen et al., 2020).

A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020, and version 2,
with a deeper projection head: Big Self-Supervised Models are Strong Semi-Supervised Learners,
NeurIPS 2020.
"""

from __future__ import annotations

import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead

from burn.backbones.base import Backbone
from burn.core.types import Batch, Part
from burn.methods.base import Method, StepOutput
from burn.methods.configs import SimclrConfig


class Simclr(Method):
    """SimCLR, to train a float teacher from the same images, or the student as a baseline.

    With several processes, the images of all of them repel each other; each process must bring the
    same number of images.

    Args:
        backbone: The network that is trained.
        config: Settings of the head and of the loss.
    """

    num_views = 2

    def __init__(self, backbone: Backbone, config: SimclrConfig) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.num_features
        self.head = SimCLRProjectionHead(
            width, config.hidden or width, config.dimension, config.layers
        )
        self.criterion = NTXentLoss(config.temperature, gather_distributed=True)

    def parts(self) -> list[Part]:
        backbone = Part("backbone", self.backbone, trained=True)
        return [backbone, Part("projection head", self.head, trained=True)]

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        features = [self.backbone(view) for view in batch.views]
        first, second = (self.head(f).float() for f in features)
        # Cosines in bfloat16 err by 0.004, which divided by T = 0.1 is 4 %.
        with torch.autocast(first.device.type, enabled=False):
            loss = self.criterion(first, second)
        return StepOutput(loss, {"loss": loss.detach()}, features[0].detach())
