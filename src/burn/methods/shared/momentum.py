"""Momentum target: a copy of the networks that learn, which follows them slowly."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone


class MomentumTarget(nn.Module):
    """Copy of a backbone and its head without gradients, which `follow` moves.

    BN normalizes by each batch's statistics, as in the networks that learn; the running statistics
    are the copy's own.
    """

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone).requires_grad_(False)
        self.head = copy.deepcopy(head).requires_grad_(False)

    @torch.no_grad()
    def follow(self, backbone: Backbone, head: nn.Module, momentum: float) -> None:
        """Set each parameter w to momentum · w + (1 - momentum) · its learning counterpart."""
        for target, learning in ((self.backbone, backbone), (self.head, head)):
            averages: list[Tensor] = list(target.parameters())
            newest: list[Tensor] = list(learning.parameters())
            torch._foreach_mul_(averages, momentum)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(  # pyright: ignore[reportPrivateImportUsage]
                averages, newest, alpha=1 - momentum
            )

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings (batch, dimension) of images (batch, 3, height, width)."""
        return self.head(self.backbone(images))
