"""The float teacher: it gives features or projections and never changes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from burn.backbones import Backbone

TeacherBatchNorm = Literal["running", "batch"]


class FrozenTarget(nn.Module):
    """A backbone in eval mode without gradients; nothing in it moves, its BN statistics included.

    batch_norm: normalise by the running statistics, or by each batch's own as BURN's release does
    (which leaves the running statistics untouched here).
    head: what follows the backbone, (batch, num_features) -> (batch, dimension); as frozen as it.
    """

    def __init__(
        self, backbone: Backbone, batch_norm: TeacherBatchNorm = "running",
        head: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.num_features = backbone.num_features
        if batch_norm == "batch":
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.track_running_stats = False
                    module.running_mean = module.running_var = None
        self.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> FrozenTarget:  # a teacher does not train
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """images (batch, 3, height, width) -> features, float32 (batch, num_features).

        With a head, what it makes of them: (batch, dimension).
        """
        features = self.backbone(images)
        return features if self.head is None else self.head(features)
