"""Half of a ReActNet block: sign, binary convolution, BN, shortcut, RPReLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.core.types import Precision
from burn.layers.activation import RPReLU
from burn.layers.byte_conv import float_sign_conv2d, sign_conv2d
from burn.layers.conv import BinaryConv2d
from burn.layers.sign import copied_sign, hard_sign, pass_inside_one, weight_scale
from burn.layers.sync_norm import SyncNorm, num_processes


@dataclass(frozen=True)
class Half:
    """Layers of half a block, which computes RPReLU(BN(binary convolution(x)) + shortcut(x)).

    The shortcut averages x over 2×2 pixels where the convolution has stride 2, and repeats its
    channels where the convolution has more outputs than inputs.
    """

    convolution: BinaryConv2d
    norm: nn.BatchNorm2d | nn.SyncBatchNorm
    activation: RPReLU

    def parameters(self) -> tuple[Tensor, ...]:
        convolution, norm, activation = self.convolution, self.norm, self.activation
        return (
            convolution.sign.shift,
            convolution.weight,
            norm.weight,
            norm.bias,
            activation.before,
            activation.slope,
            activation.after,
        )

    def fits(self) -> bool:
        """Return whether `train_block` supports this half: signs, and plain BN in training mode."""
        norm = self.norm
        return (
            self.convolution.precision != Precision.FLOAT
            and type(norm) in (nn.BatchNorm2d, nn.SyncBatchNorm, SyncNorm)
            and norm.training
            and norm.affine
            and norm.track_running_stats
            and norm.momentum is not None
        )

    @property
    def synchronizes(self) -> bool:
        """Whether BN takes its statistics from the maps of several processes."""
        return isinstance(self.norm, nn.SyncBatchNorm) and num_processes(self.norm) > 1

    def add_shortcut(self, z: Tensor, x: Tensor) -> Tensor:
        """Add shortcut(x) to z in place and return z; x is the input of the half."""
        if self.convolution.stride == 2:
            x = F.avg_pool2d(x, 2, ceil_mode=True)
        for part in z.split(x.shape[1], dim=1):
            part.add_(x)
        return z

    def shortcut_backward(self, grad: Tensor, x: Tensor) -> Tensor:
        channels = x.shape[1]
        if grad.shape[1] != channels:
            first, second, *more = grad.split(channels, dim=1)
            grad = sum(more, first + second)
        if self.convolution.stride == 1:
            return grad
        # Under autocast the block's input may have a wider dtype than its convolutions' outputs.
        return torch.ops.aten.avg_pool2d_backward(
            grad.to(x.dtype), x, [2, 2], [2, 2], [0, 0], True, True, None
        )

    def convolve(self, shifted: Tensor, weight: Tensor) -> Tensor:
        """Convolve the signs of `shifted`, without gradients; `shifted` is overwritten."""
        stride, padding = self.convolution.stride, self.convolution.padding
        if self.convolution.precision == Precision.BINARY:
            y = sign_conv2d(shifted, weight, stride, padding)
            if y is not None:
                return y
            signs, scale = copied_sign(shifted, out=shifted), weight_scale(weight)
            return float_sign_conv2d(signs, hard_sign(weight), scale, stride, padding)
        weight = self.weight(weight, shifted.dtype)
        return F.conv2d(copied_sign(shifted, out=shifted), weight, stride=stride, padding=padding)

    def weight(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the weight for the backward pass, from its parameter, without gradients.

        In bfloat16 the scale is rounded, which changes the length of a gradient that goes straight
        through signs, but nothing that the network computes.
        """
        if self.convolution.precision == Precision.BINARY:
            weight = hard_sign(weight).mul_(weight_scale(weight))
        return weight.to(dtype)

    def weight_backward(self, grad: Tensor, weight: Tensor) -> Tensor:
        grad = grad.to(weight.dtype)
        if self.convolution.precision != Precision.BINARY:
            return grad
        if self.convolution.weight_gradient == "clip":
            return pass_inside_one(grad, weight, out=grad)
        return grad.mul_(weight_scale(weight))


def parted(parameters: Sequence[Tensor], halves: Sequence[Half]) -> list[Sequence[Tensor]]:
    """Return the parameters of each half, in the order of `Half.parameters`."""
    per_half = len(parameters) // len(halves)
    return [parameters[i * per_half : (i + 1) * per_half] for i in range(len(halves))]
