"""Mixture of two tensors whose shares are learned per channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Mix(nn.Module):
    """a · first + (1 - a) · second, with a learned share a in [0, 1] per channel.

    Both have the same shape (batch, channels, ...), as maps or as their means. The shares start at
    1/2. BNext's code cuts the parameter itself off at 0 and 1 (Guo et al. 2022); here the value
    that is used is cut off, and the gradient passes, so that a forward pass changes no weights.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        inside = self.share.detach().clamp(0, 1)
        share = inside + (self.share - self.share.detach())
        share = share.to(second.dtype).view(1, -1, *[1] * (second.ndim - 2))
        return share * first + (1 - share) * second
