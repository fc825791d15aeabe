"""Binary convolution: one layer and one state dict for three precisions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.core.types import ActivationGradient, Precision, WeightGradient, WeightInit
from burn.layers.activation import RSign, per_channel, shifted_by, sum_channels
from burn.layers.byte_conv import convolution_dtype, float_sign_conv2d, sign_conv2d
from burn.layers.sign import binary_weight, copied_sign, hard_sign, sign_backward


class _SignConv2d(torch.autograd.Function):
    """conv2d(sign(x + shift), weight) that saves x but no signs.

    A binary weight is given as its signs times their scale.

    The backward pass computes x + shift again, which the gradient of the sign needs in any case,
    and the signs from it. Autograd would save x + shift and the signs, two more tensors of x's
    size.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shift: Tensor,
        weight: Tensor,
        stride: int,
        padding: int,
        gradient: ActivationGradient,
        binary: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, shift, weight)
        ctx.stride, ctx.padding, ctx.gradient = stride, padding, gradient
        shifted = shifted_by(shift, x)
        signs = copied_sign(shifted, out=shifted)
        if binary and convolution_dtype(x) != weight.dtype:
            y = None
            if not torch.compiler.is_compiling():
                y = sign_conv2d(signs, weight, stride, padding)
            if y is not None:
                return y
            scale = weight[:, :1, :1, :1].abs()  # the same in the whole channel
            return float_sign_conv2d(signs, hard_sign(weight), scale, stride, padding)
        return F.conv2d(signs, weight.to(x.dtype), stride=stride, padding=padding)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, shift, weight = ctx.saved_tensors
        (grad,) = grads  # its dtype is the one the convolution ran in (autocast may narrow it)
        need_x, need_shift, need_weight = ctx.needs_input_grad[:3]
        shifted = shifted_by(shift, x)
        grad_signs, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad, copied_sign(shifted).to(grad.dtype), weight.to(grad.dtype), None,
            [ctx.stride] * 2, [ctx.padding] * 2, [1, 1], False, [0, 0], 1,
            [need_x or need_shift, need_weight, False],
        )  # fmt: skip
        grad_x = grad_shift = None
        if need_x or need_shift:
            grad_x = sign_backward(grad_signs, shifted, ctx.gradient, out=grad_signs)
            grad_shift = sum_channels(grad_x).to(shift.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_x, grad_shift, grad_weight, None, None, None, None


class BinaryConv2d(nn.Module):
    """Binary convolution without bias, with a threshold that is learned per input channel (RSign).

    It maps (batch, in_channels, h, w) to (batch, out_channels, ⌈h / stride⌉, ⌈w / stride⌉). The
    padding with zeros comes after the sign: a tap outside the image contributes nothing.

    Precision FLOAT convolves x + shift with W; BINARY_ACTIVATIONS convolves sign(x + shift) with W;
    BINARY convolves sign(x + shift) with sign(W) · mean|W|. The parameters are the same in all
    three, so a state dict of one loads into another. The shift starts at 0.

    >>> layer = BinaryConv2d(16, 32, kernel_size=3, stride=2)
    >>> layer(torch.randn(8, 16, 10, 10)).shape
    torch.Size([8, 32, 5, 5])

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        kernel_size: Side of the kernel in pixels, odd.
        stride: Stride in both directions.
        precision: Whether activations and weights are binary.
        activation_gradient: Straight-through gradient of the sign of activations; see
            `sign_backward`.
        weight_gradient: Straight-through gradient of the sign of weights; see `binary_weight`.
        weight_init: With fan_in, W starts uniform in ±1/sqrt(in_channels · kernel_size²), PyTorch's
            default for convolutions; with small, uniform in 0 … 0.001, where every sign is +1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        precision: Precision = Precision.BINARY,
        activation_gradient: ActivationGradient = "poly",
        weight_gradient: WeightGradient = "clip",
        weight_init: WeightInit = "fan_in",
    ) -> None:
        super().__init__()
        self.stride, self.padding = stride, kernel_size // 2
        self.precision = precision
        self.weight_gradient: WeightGradient = weight_gradient
        self.sign = RSign(in_channels, activation_gradient)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        bound = (in_channels * kernel_size**2) ** -0.5
        low, high = (-bound, bound) if weight_init == "fan_in" else (0.0, 0.001)
        nn.init.uniform_(self.weight, low, high)

    @property
    def fan_in(self) -> int:
        """Number of weights that an output of the convolution depends on."""
        return math.prod(self.weight.shape[-3:])

    @property
    def has_binary_weight(self) -> bool:
        """Whether `effective_weight` is signs times a scale of each output channel."""
        return self.precision == Precision.BINARY

    def effective_weight(self) -> Tensor:
        """Return the weight that the convolution uses at this precision."""
        if self.precision == Precision.BINARY:
            return binary_weight(self.weight, self.weight_gradient)
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        weight = self.effective_weight()
        if self.precision == Precision.FLOAT:
            shifted = x + per_channel(self.sign.shift, x)
            return F.conv2d(shifted, weight, stride=self.stride, padding=self.padding)
        return _SignConv2d.apply(  # type: ignore[no-any-return]
            x,
            self.sign.shift,
            weight,
            self.stride,
            self.padding,
            self.sign.gradient,
            self.has_binary_weight,
        )

    def extra_repr(self) -> str:
        out_channels, in_channels, size, _ = self.weight.shape
        return (
            f"{in_channels}, {out_channels}, kernel_size={size}, stride={self.stride}, "
            f"precision={self.precision.value}"
        )
