"""Binary weights that become binary step by step, while a temperature falls to zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burn.core.types import Precision, WeightGradient
from burn.layers.conv import BinaryConv2d
from burn.layers.sign import hard_sign, pass_inside_one, weight_scale


class _SoftWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, temperature: Tensor, gradient: WeightGradient) -> Tensor:
        if temperature.device.type != "cpu" or torch.compiler.is_compiling():
            # Reading the temperature would make a GPU wait. Where it is 0, the division gives
            # infinities and, at a weight of 0, NaN, which `where` drops.
            soft = (weight / temperature).clamp_(-1, 1)
            soft = torch.where(temperature > 0, soft, hard_sign(weight))
        elif temperature.item() > 0:
            soft = (weight / temperature).clamp_(-1, 1)
        else:
            soft = hard_sign(weight)
        # A channel whose weights are all 0 has no sign at any temperature but 0.
        size = weight_scale(soft)
        scale = weight_scale(weight) / torch.where(size > 0, size, torch.ones_like(size))
        ctx.gradient = gradient
        ctx.save_for_backward(weight if gradient == "clip" else scale)
        return soft.mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (saved,) = ctx.saved_tensors
        if ctx.gradient == "clip":
            return pass_inside_one(grads[0], saved), None, None
        return grads[0] * saved, None, None


def soft_weight(weight: Tensor, temperature: Tensor, gradient: WeightGradient = "clip") -> Tensor:
    """Return S · mean|W| / mean|S| with S = clamp(W / T, -1, 1), per output channel.

    At a temperature T of 0 this is `binary_weight`, sign(W) · mean|W|; from the largest |W| on it
    is W. BNext has S alone (Guo et al. 2022): the positive factor of each output channel changes
    nothing before the BN that follows, and keeps its running statistics valid for T = 0.

    The factor is a constant to the gradient, and S has the straight-through gradient of the sign
    that `binary_weight` has.
    """
    return _SoftWeight.apply(weight, temperature, gradient)  # type: ignore[no-any-return]


class SoftBinaryConv2d(BinaryConv2d):
    """Binary convolution whose weights are soft in training while its temperature is above 0.

    In eval mode, and at other precisions than BINARY, it is a `BinaryConv2d`. The temperature is 0
    until `Backbone.at_progress` sets it; it is T of `soft_weight`. It follows from the progress of
    training and is therefore not part of the state dict. The arguments are those of `BinaryConv2d`.
    """

    temperature: Tensor

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # A tensor, because torch.compile would compile again for every other number.
        self.register_buffer("temperature", torch.zeros(()), persistent=False)

    @property
    def has_binary_weight(self) -> bool:
        """As in `BinaryConv2d`; in training the weight may be soft."""
        return super().has_binary_weight and not self.training

    def effective_weight(self) -> Tensor:
        if self.precision == Precision.BINARY and self.training:
            return soft_weight(self.weight, self.temperature, self.weight_gradient)
        return super().effective_weight()


def falling_temperature(progress: float, end: float) -> float:
    """Return the temperature at a progress in [0, 1]: 1 at first, then a geometric fall to `end`.

    BNext multiplies it by a constant after every epoch, which is the same.
    """
    return float(end**progress)
