"""ReActNet's activations, RSign and RPReLU, whose shifts are learned per channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.core.types import ActivationGradient
from burn.layers.sign import hard_sign, sign


def per_channel(vector: Tensor, like: Tensor) -> Tensor:
    """Reshape a (channels,) vector to (1, channels, 1, 1) in the dtype of `like`."""
    return vector.to(like.dtype).view(1, -1, 1, 1)


def sum_channels(x: Tensor) -> Tensor:
    """Sum (batch, channels, height, width) to (channels,), accumulated in float32 or better."""
    return x.sum(dim=(0, 2, 3), dtype=torch.promote_types(x.dtype, torch.float32))


class RSign(nn.Module):
    """Sign with a threshold that is learned per channel: sign(x + shift).

    The input has shape (batch, channels, height, width); the output has the same shape and the
    values +1 and -1. The shift starts at 0.

    Args:
        channels: Number of channels of the input.
        gradient: Straight-through gradient of the sign; see `sign_derivative`.
    """

    shift: Tensor

    def __init__(self, channels: int, gradient: ActivationGradient = "poly") -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))
        self.gradient: ActivationGradient = gradient

    def forward(self, x: Tensor) -> Tensor:
        return sign(x + per_channel(self.shift, x), self.gradient)


class _RPReLU(torch.autograd.Function):
    """RPReLU that saves only its input; autograd would save three tensors of that size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor, slope: Tensor, after: Tensor) -> Tensor:
        ctx.save_for_backward(x, before, slope)
        shifted = x + per_channel(before, x)
        return F.prelu(shifted, slope.to(x.dtype)).add_(per_channel(after, x))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, before, slope = ctx.saved_tensors
        (grad,) = grads
        shifted = x + per_channel(before, x)
        # The derivative is 1 or the slope, computed as their mean plus or minus half their
        # difference: torch.where and PReLU's own backward are an order of magnitude slower on
        # bfloat16.
        half = per_channel((1 - slope) / 2, x)
        derivative = torch.addcmul(1 - half, hard_sign(shifted), half)
        grad_x = derivative.mul_(grad)
        grad_slope = sum_channels(shifted.clamp_(max=0).mul_(grad))
        return (
            grad_x,
            sum_channels(grad_x).to(before.dtype),
            grad_slope.to(slope.dtype),
            sum_channels(grad).to(before.dtype),
        )


class RPReLU(nn.Module):
    """PReLU(x + before) + after, with shifts and slope learned per channel.

    The input has shape (batch, channels, height, width). The shifts start at 0, the slopes at 0.25.

    Args:
        channels: Number of channels of the input.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.zeros(channels))
        self.slope = nn.Parameter(torch.full((channels,), 0.25))
        self.after = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return _RPReLU.apply(x, self.before, self.slope, self.after)  # type: ignore[no-any-return]
