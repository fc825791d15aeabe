"""Signs with straight-through gradients, for activations and for weights.

sign(0) is +1 everywhere in this project, in training as in a packed file, because a bit has no
third value. (`torch.sign` gives 0.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from burn.core.types import ActivationGradient, WeightGradient


def hard_sign(x: Tensor) -> Tensor:
    """Return +1 where x >= 0 (also at -0.0) and -1 elsewhere, without gradients.

    The result has the dtype and memory format of x.
    """
    # copysign is 20 times faster on bfloat16 than a comparison; x + 0.0 turns -0.0 into +0.0.
    return torch.copysign(torch.ones((), dtype=x.dtype, device=x.device), x + 0.0)


def sign_derivative(x: Tensor, gradient: ActivationGradient) -> Tensor:
    """Return what the backward pass uses for d sign(x) / dx, in the shape of x.

    Args:
        x: Argument of the sign, of any shape.
        gradient: poly is 2 - 2|x| inside (-1, 1) and 0 outside, the derivative of ReActNet's
            piecewise quadratic; clip is 1 inside [-1, 1] and 0 outside.
    """
    if gradient == "poly":
        return x.abs().mul_(-2).add_(2).clamp_(min=0)
    return (x.abs() <= 1).to(x.dtype)


class _Sign(torch.autograd.Function):
    """Sign that saves only its input, which the network holds anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: ActivationGradient) -> Tensor:
        ctx.save_for_backward(x)
        ctx.gradient = gradient
        return hard_sign(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return sign_derivative(x, ctx.gradient).mul_(grads[0]), None


def sign(x: Tensor, gradient: ActivationGradient = "poly") -> Tensor:
    """Return the signs of x, +1 or -1, with the straight-through gradient of `sign_derivative`."""
    return _Sign.apply(x, gradient)  # type: ignore[no-any-return]


class _BinaryWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, gradient: WeightGradient) -> Tensor:
        scale = weight_scale(weight)
        ctx.gradient = gradient
        ctx.save_for_backward(weight if gradient == "clip" else scale)
        return hard_sign(weight).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (saved,) = ctx.saved_tensors
        if ctx.gradient == "clip":
            return grads[0] * (saved.abs() <= 1), None
        return grads[0] * saved, None


def weight_scale(weight: Tensor) -> Tensor:
    """Return the mean |W| of each output channel: (out, in, height, width) -> (out, 1, 1, 1)."""
    return weight.abs().mean(dim=(1, 2, 3), keepdim=True)


def binary_weight(weight: Tensor, gradient: WeightGradient = "clip") -> Tensor:
    """Return sign(W) · mean|W| per output channel, with a straight-through gradient.

    The scale mean|W| is a constant to the gradient.

    Args:
        weight: Shape (out channels, in channels, height, width).
        gradient: clip passes the gradient to W unscaled where |W| <= 1 (ReActNet); identity passes
            it everywhere, times the scale (BURN's release).
    """
    return _BinaryWeight.apply(weight, gradient)  # type: ignore[no-any-return]
