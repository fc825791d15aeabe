"""The momentum target: a copy of the networks that learn, which follows them slowly."""

from __future__ import annotations

import copy

import torch
from lightly.models.utils import update_momentum
from torch import Tensor, nn

from burn.backbones.base import Backbone


class MomentumTarget(nn.Module):
    """backbone and head as they are now, without gradients; `follow` moves them.

    BN normalises by each batch's statistics, as in the networks that learn; the running statistics
    are the copy's own.
    """

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone).requires_grad_(False)
        self.head = copy.deepcopy(head).requires_grad_(False)

    def follow(self, backbone: Backbone, head: nn.Module, momentum: float) -> None:
        """Every parameter w becomes momentum · w + (1 - momentum) · the online network's."""
        update_momentum(backbone, self.backbone, momentum)
        update_momentum(head, self.head, momentum)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """images (batch, 3, height, width) -> embeddings (batch, dimension)."""
        return self.head(self.backbone(images))
