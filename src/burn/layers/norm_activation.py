"""Batch normalization followed by PReLU, of which only the input is kept for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.layers.activation import per_channel, prelu_backward, sum_products


def norm_prelu(x: Tensor, norm: nn.BatchNorm2d, activation: nn.PReLU) -> Tensor:
    """Return activation(norm(x)) for a PReLU with a slope for each channel.

    In training, autograd would keep the input of the norm and that of the activation. Here the
    latter is computed again from the former, which saves a map of x's size. Norms over several
    processes, evaluation and torch.compile, which recomputes by itself, use the layers; so does a
    single value for each channel, for which BN raises its own error.
    """
    saves_one_map = type(norm) is nn.BatchNorm2d and norm.training and norm.momentum is not None
    if not saves_one_map or torch.compiler.is_compiling() or x.numel() == x.shape[1]:
        return activation(norm(x))  # type: ignore[no-any-return]
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    slope = activation.weight
    return _NormPReLU.apply(x, norm.weight, norm.bias, slope, norm)  # type: ignore[no-any-return]


class _NormPReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, slope: Tensor, norm: nn.BatchNorm2d
    ) -> Tensor:
        y, mean, inverse = torch.native_batch_norm(
            x, weight, bias, norm.running_mean, norm.running_var,
            True, norm.momentum, norm.eps,  # type: ignore[arg-type]
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, slope, mean, inverse)
        ctx.eps = norm.eps
        return F.prelu(y, slope.to(y.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, slope, mean, inverse = ctx.saved_tensors
        (grad,) = grads
        variance = inverse.pow(-2) - ctx.eps
        y, _, _ = torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, ctx.eps)
        if y.element_size() >= 4:
            grad_y = prelu_backward(grad, y, slope)
        else:  # which would round the slopes
            grad_y = torch.where(y < 0, grad * per_channel(slope, grad), grad)
        grad_slope = sum_products(grad, y.clamp_(max=0))[0].to(slope.dtype)
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad_y.to(x), x, weight, None, None, mean, inverse, True, ctx.eps, [True] * 3
        )
        return grad_x, grad_weight, grad_bias, grad_slope, None
