"""ReActNet's activations, RSign and RPReLU, whose shifts are learned per channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.core.types import ActivationGradient
from burn.layers.sign import copied_sign, sign


def per_channel(vector: Tensor, like: Tensor) -> Tensor:
    """Reshape a (channels,) vector to (1, channels, 1, 1) in the dtype of `like`."""
    return vector.to(like.dtype).view(1, -1, 1, 1)


def shifted_by(shift: Tensor, x: Tensor) -> Tensor:
    """Return a map plus shift, (channels,), which is never -0.0."""
    # Adding 0.0 turns a shift of -0.0 into +0.0, and the sum of a number and its opposite is +0.0.
    return x + (per_channel(shift, x) + 0.0)


def sum_products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of a · b and of a, two maps, over each channel, in float32 or better."""
    dtype = torch.promote_types(a.dtype, torch.float32)
    # In this order, because torch.compile cannot compile `_suits_bn`.
    if torch.compiler.is_compiling() or not _suits_bn(a, b):
        return (a * b).sum(dim=(0, 2, 3), dtype=dtype), a.sum(dim=(0, 2, 3), dtype=dtype)
    # These sums are BN's gradients at mean 0 and standard deviation 1. BN reads its inputs once,
    # while a sum over bfloat16 first makes a float32 copy (2.4 against 29 ms for 25 MB).
    ones = torch.ones(a.shape[1], dtype=dtype)
    _, products, sums = torch.ops.aten.native_batch_norm_backward(
        a, b, ones, None, None, torch.zeros_like(ones), ones, True, 0.0, [False, True, True]
    )
    return products, sums


def _suits_bn(a: Tensor, b: Tensor) -> bool:
    """Return whether BN's backward pass on a CPU takes these maps, and sums in float32 at least."""
    layouts = (torch.contiguous_format, torch.channels_last)
    return (
        a.device.type == "cpu"
        and a.dtype == b.dtype
        and a.numel() > 0
        and any(
            a.is_contiguous(memory_format=layout) and b.is_contiguous(memory_format=layout)
            for layout in layouts
        )
    )


def prelu_backward(grad: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient of a map, given that of its PReLU, without gradients of its own.

    At 0 the derivative is 1, at -0.0 the slope.
    """
    # The derivative is 1 or the slope, computed as their mean plus or minus half their difference:
    # torch.where and PReLU's own backward are an order of magnitude slower on bfloat16.
    half = per_channel((1 - slope) / 2, x)
    signs = copied_sign(x)
    return torch.addcmul(1 - half, signs, half, out=signs).mul_(grad)


def sum_channels(x: Tensor) -> Tensor:
    """Sum (batch, channels, height, width) to (channels,), accumulated in float32 or better."""
    return x.sum(dim=(0, 2, 3), dtype=torch.promote_types(x.dtype, torch.float32))


class RSign(nn.Module):
    """Sign with a threshold that is learned per channel: sign(x + shift).

    The input has shape (batch, channels, height, width); the output has the same shape and the
    values +1 and -1. The shift starts at 0.

    >>> RSign(2)(torch.tensor([0.5, -0.5]).view(1, 2, 1, 1)).detach().flatten()
    tensor([ 1., -1.])

    Args:
        channels: Number of channels of the input.
        gradient: Straight-through gradient of the sign; see `sign_backward`.
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
        grad_x = prelu_backward(grad, shifted, slope)
        grad_slope, grad_after = sum_products(grad, shifted.clamp_(max=0))
        return (
            grad_x,
            sum_channels(grad_x).to(before.dtype),
            grad_slope.to(slope.dtype),
            grad_after.to(before.dtype),
        )


class RPReLU(nn.Module):
    """PReLU(x + before) + after, with shifts and slope learned per channel.

    The input has shape (batch, channels, height, width). The shifts start at 0, the slopes at 0.25.

    >>> RPReLU(2)(torch.tensor([2.0, -2.0]).view(1, 2, 1, 1)).detach().flatten()
    tensor([ 2.0000, -0.5000])

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
