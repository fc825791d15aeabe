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

    >>> hard_sign(torch.tensor([-2.0, -0.0, 0.0, 0.5]))
    tensor([-1.,  1.,  1.,  1.])
    """
    # copysign is 20 times faster on bfloat16 than a comparison; x + 0.0 turns -0.0 into +0.0.
    positive_zeros = x.detach() + 0.0
    return copied_sign(positive_zeros, out=positive_zeros)


def copied_sign(x: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `hard_sign(x)` where x holds no -0.0, or where the sign of zero does not matter.

    `out` is where to write it, x itself perhaps.
    """
    return torch.copysign(torch.ones((), dtype=x.dtype, device=x.device), x, out=out)


def sign_backward(
    grad: Tensor, x: Tensor, gradient: ActivationGradient, out: Tensor | None = None
) -> Tensor:
    """Return the gradient of x, given that of sign(x), without gradients of its own.

    `gradient` stands for the derivative of the sign: poly is 2 - 2|x| inside (-1, 1) and 0 outside,
    the derivative of ReActNet's piecewise quadratic; clip is 1 inside [-1, 1] and 0 outside.

    The result has x's dtype. `out`, `grad` itself perhaps, may be overwritten.
    """
    if gradient == "clip":
        out = out if out is not None and out.dtype == x.dtype else None
        return pass_inside_one(grad.to(x.dtype), x, out)
    derivative = x.abs()
    if torch.is_grad_enabled():  # with create_graph
        derivative = 2 - 2 * derivative
    else:
        derivative.mul_(-2).add_(2)
    return derivative.clamp_(min=0).mul_(grad)


def pass_inside_one(grad: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """Return grad where |x| <= 1 and 0 elsewhere, without gradients of its own.

    `out` is where to write it, `grad` itself perhaps; all have x's dtype.
    """
    # The gradient of hardtanh reads each number once. It is 0 at the ends of its range too.
    end = 1 + torch.finfo(x.dtype).eps
    if out is None or torch.compiler.is_compiling():
        return torch.ops.aten.hardtanh_backward(grad, x, -end, end)  # type: ignore[no-any-return]
    return torch.ops.aten.hardtanh_backward.grad_input(  # type: ignore[no-any-return]
        grad, x, -end, end, grad_input=out
    )


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
        return sign_backward(grads[0], x, ctx.gradient), None


def sign(x: Tensor, gradient: ActivationGradient = "poly") -> Tensor:
    """Return the signs of x, +1 or -1, with the straight-through gradient of `sign_backward`.

    >>> x = torch.tensor([-0.5, 0.25, 3.0], requires_grad=True)
    >>> sign(x).sum().backward()
    >>> x.grad
    tensor([1.0000, 1.5000, 0.0000])
    """
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
            return pass_inside_one(grads[0], saved), None
        return grads[0] * saved, None


def weight_scale(weight: Tensor) -> Tensor:
    """Return the mean |W| of each output channel: (out, in, height, width) -> (out, 1, 1, 1)."""
    return weight.abs().mean(dim=(1, 2, 3), keepdim=True)


def binary_weight(weight: Tensor, gradient: WeightGradient = "clip") -> Tensor:
    """Return sign(W) · mean|W| per output channel, with a straight-through gradient.

    The scale mean|W| is a constant to the gradient.

    >>> binary_weight(torch.tensor([0.1, -0.3]).view(1, 2, 1, 1)).flatten()
    tensor([ 0.2000, -0.2000])

    Args:
        weight: Shape (out channels, in channels, height, width).
        gradient: clip passes the gradient to W unscaled where |W| <= 1 (ReActNet); identity passes
            it everywhere, times the scale (BURN's release).
    """
    return _BinaryWeight.apply(weight, gradient)  # type: ignore[no-any-return]
