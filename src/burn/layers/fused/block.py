"""Autograd function of a ReActNet block whose operations between convolutions are kernels.

It saves what `burn.layers.block` saves, the block's input and the outputs of its two convolutions,
and computes the same. A half's forward pass is a convolution, statistics of its output, and one
kernel that applies BN, adds the shortcut, applies RPReLU and takes the signs of the next half. Its
backward pass is one kernel back to BN, one through BN, the convolution's backward pass, and one to
the half's input.

Without float64 maps it rounds less often than PyTorch's operations: once for each map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from burn.core.types import Precision
from burn.layers.byte_conv import convolution_dtype
from burn.layers.fused import launch
from burn.layers.half import Half, parted
from burn.layers.sign import hard_sign, weight_scale
from burn.layers.sync_norm import norm_group, shared_statistics


class FusedBlock(torch.autograd.Function):
    """Autograd function of a block; `parameters` are those of its halves, one half after the other.

    The output is in channels-last order, to which other inputs are copied.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, halves: tuple[Half, ...], *parameters: Tensor) -> Tensor:
        x, dtype, parts = launch.as_rows(x), convolution_dtype(x), parted(parameters, halves)
        ctx.halves = halves
        ctx.counts = []  # of each half: the values of a channel in all processes, or None
        saved = [x]
        signs = launch.sign_map(x, parts[0][0], dtype)
        for i, (half, tensors) in enumerate(zip(halves, parts, strict=True)):
            y = _convolved(half, signs, tensors[1])
            norm, count = _normalization(half, y, tensors)
            saved += [y, norm.mean, norm.inverse_std]
            ctx.counts.append(count)
            stride = half.convolution.stride
            if i + 1 < len(halves):
                next_shift = parts[i + 1][0]
                x, signs = launch.activated_with_signs(
                    y, x, norm, tensors[4:], stride, next_shift, dtype
                )
            else:
                x = launch.activated(y, x, norm, tensors[4:], stride)
        ctx.save_for_backward(*saved, *parameters)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        halves: tuple[Half, ...] = ctx.halves
        number = 1 + 3 * len(halves)
        kept, parameters = ctx.saved_tensors[:number], ctx.saved_tensors[number:]
        parts = parted(parameters, halves)
        dtype = kept[1].dtype
        inputs: list[tuple[Tensor, Tensor]] = []  # of each half, and their signs
        x, signs = kept[0], launch.sign_map(kept[0], parts[0][0], dtype)
        for i, (half, tensors) in enumerate(zip(halves, parts, strict=True)):
            inputs.append((x, signs))
            if i + 1 < len(halves):
                y, *statistics = kept[1 + 3 * i : 4 + 3 * i]
                norm, stride = _norm(half, y, tensors, *statistics), half.convolution.stride
                next_shift = parts[i + 1][0]
                x, signs = launch.activated_with_signs(
                    y, x, norm, tensors[4:], stride, next_shift, dtype
                )
        grad = grads[0]
        gradients: list[Tensor | None] = []
        for i in reversed(range(len(halves))):
            grad, of_half = _half_backward(
                grad, *inputs.pop(), kept[1 + 3 * i : 4 + 3 * i], halves[i], parts[i], ctx.counts[i]
            )
            gradients = [*of_half, *gradients]
        return grad, None, *gradients


def _convolved(half: Half, signs: Tensor, weight: Tensor) -> Tensor:
    """Return the convolution of signs, which `_scale` multiplies, without gradients."""
    if half.convolution.precision == Precision.BINARY and _scale(half, signs, weight) is not None:
        weight = hard_sign(weight).to(signs.dtype)
    else:
        weight = half.weight(weight, signs.dtype)
    stride, padding = half.convolution.stride, half.convolution.padding
    return launch.as_rows(F.conv2d(signs, weight, stride=stride, padding=padding))


def _scale(half: Half, y: Tensor, weight: Tensor) -> Tensor | None:
    """Return the factors of a convolution's output y, or None if its weights contain them.

    In a narrower dtype than the weights', these would round them: see `float_sign_conv2d`.
    """
    if half.convolution.precision != Precision.BINARY or y.dtype == weight.dtype:
        return None
    return weight_scale(weight).flatten()


def _norm(
    half: Half, y: Tensor, tensors: Sequence[Tensor], mean: Tensor, inverse_std: Tensor
) -> launch.Norm:
    _, weight, gain, bias, *_ = tensors
    return launch.Norm(_scale(half, y, weight), mean, inverse_std, gain, bias)


def _normalization(
    half: Half, y: Tensor, tensors: Sequence[Tensor]
) -> tuple[launch.Norm, Tensor | None]:
    """Return BN with the batch's statistics, and the number of values if processes share them."""
    _, weight, gain, bias, *_ = tensors
    scale = _scale(half, y, weight)
    statistics = launch.batch_statistics(y, scale, half.norm, updates=not half.synchronizes)
    mean, variance, inverse_std = statistics.unbind()
    if not half.synchronizes:
        return launch.Norm(scale, mean, inverse_std, gain, bias), None
    local_count = mean.new_full((1,), y.numel() // y.shape[1])
    mean, variance, count = shared_statistics(torch.cat([mean, variance, local_count]), half.norm)
    return launch.Norm(scale, mean, (variance + half.norm.eps).rsqrt(), gain, bias), count


def _half_backward(
    grad: Tensor,
    x: Tensor,
    signs: Tensor,
    kept: Sequence[Tensor],
    half: Half,
    parameters: Sequence[Tensor],
    count: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of a half's input and of its parameters.

    Args:
        grad: Gradient of the half's output.
        x: Input of the half.
        signs: Its signs.
        kept: Output of the convolution, and its means and inverse standard deviations.
        half: The layers.
        parameters: Those of `half.parameters()`.
        count: Number of a channel's values in all processes that share BN's statistics, or None.
    """
    y, mean, inverse_std = kept
    shift, weight, gain, bias, before, slope, after = parameters
    convolution = half.convolution
    norm = _norm(half, y, parameters, mean, inverse_std)
    grad_z, sums = launch.activated_backward(
        launch.as_rows(grad), y, x, norm, (before, slope), convolution.stride
    )
    del grad
    of_bias, of_gain, of_slope, of_after = sums.unbind()
    if count is None:
        means = sums[:2] / (y.numel() // y.shape[1])
    else:
        together = sums[:2].clone()
        distributed.all_reduce(together, group=norm_group(half.norm))
        means = together / count
    grad_y = launch.norm_backward(grad_z, y, norm, means)
    grad_signs, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad_y, signs, half.weight(weight, grad_y.dtype), None,
        [convolution.stride] * 2, [convolution.padding] * 2, [1, 1], False, [0, 0], 1,
        [True, True, False],
    )  # fmt: skip
    del grad_y, signs
    grad_x, of_shift = launch.input_backward(
        launch.as_rows(grad_signs), x, grad_z, shift, convolution.stride, convolution.sign.gradient
    )
    return grad_x, [
        of_shift.to(shift.dtype),
        half.weight_backward(grad_weight, weight),
        of_gain.to(gain.dtype),
        of_bias.to(bias.dtype),
        of_bias.to(before.dtype),
        of_slope.to(slope.dtype),
        of_after.to(after.dtype),
    ]
