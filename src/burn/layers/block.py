"""Training pass of a ReActNet block as one autograd function that saves three feature maps.

Half a block is sign, convolution, BN, shortcut, RPReLU. With an autograd function for each layer,
it saves three maps for the backward pass: the inputs of the convolution, of BN and of RPReLU. Some
of them are cheap to compute again:

- The input of RPReLU is the output of BN plus the shortcut, both a multiply-add away from maps that
  are saved.
- The input of the second half is the output of the first half's RPReLU.

Therefore a block saves its input and the outputs of its two convolutions, and computes the rest
again, which takes passes over memory but no convolution. Binary weights are computed again too.
SyncBN's statistics are exchanged inside, so that several GPUs save as little.
tests/layers/test_block.py compares the block with its layers applied one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from burn.layers.activation import per_channel, prelu_backward, shifted_by, sum_products
from burn.layers.half import Half, parted
from burn.layers.sign import copied_sign, sign_backward
from burn.layers.sync_norm import synchronized_norm, synchronized_norm_backward


def train_block(x: Tensor, halves: Sequence[Half]) -> Tensor:
    """Run the halves of a block one after the other in training mode, with gradients.

    Each half must fit, and the batch have at least 2 images.
    """
    for half in halves:
        assert half.norm.num_batches_tracked is not None
        half.norm.num_batches_tracked.add_(1)
    parameters = [parameter for half in halves for parameter in half.parameters()]
    return _Block.apply(x, tuple(halves), *parameters)  # type: ignore[no-any-return]


class _Block(torch.autograd.Function):
    """Autograd function of a block; `parameters` are those of its halves, one half after the other.

    On a CPU, new memory costs more than arithmetic (a map of 51 MB takes 30 ms, against 5 ms in
    place), so whatever is not needed any more is overwritten.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, halves: tuple[Half, ...], *parameters: Tensor) -> Tensor:
        ctx.halves = halves
        ctx.counts = []  # of each half: the values of a channel in all processes, or None
        saved = [x]
        for half, tensors in zip(halves, parted(parameters, halves), strict=True):
            shift, weight, gain, bias, before, slope, after = tensors
            norm = half.norm
            y = half.convolve(shifted_by(shift, x), weight)
            # BN's bias and RPReLU's first shift are added together, which saves a pass.
            count = None
            if half.synchronizes:
                z, mean, inverse_std, count = synchronized_norm(y, gain, bias + before, norm)
            else:
                z, mean, inverse_std = torch.native_batch_norm(
                    y, gain, bias + before, norm.running_mean, norm.running_var,
                    True, norm.momentum, norm.eps,  # type: ignore[arg-type]
                )  # fmt: skip
            ctx.counts.append(count)
            saved += [y, mean, inverse_std]
            x = _activated(half.add_shortcut(z, x), slope, after)
            del y, z
        ctx.save_for_backward(*saved, *parameters)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        halves: tuple[Half, ...] = ctx.halves
        number = 1 + 3 * len(halves)
        kept, parameters = ctx.saved_tensors[:number], ctx.saved_tensors[number:]
        parts = parted(parameters, halves)
        maps: list[tuple[Tensor, Tensor]] = []  # inputs of each half and of its PReLU
        x = kept[0]
        for i, (half, tensors) in enumerate(zip(halves, parts, strict=True)):
            _, _, gain, bias, before, slope, after = tensors
            y, mean, inverse_std = kept[1 + 3 * i : 4 + 3 * i]
            variance = inverse_std.square().reciprocal_().sub_(half.norm.eps)
            z = F.batch_norm(
                y, mean, variance, gain, bias + before, training=False, eps=half.norm.eps
            )
            maps.append((x, half.add_shortcut(z, x)))
            if i + 1 < len(halves):
                x = _activated(z, slope, after)
            del z
        (grad,) = grads
        gradients: list[Tensor | None] = []
        for i in reversed(range(len(halves))):
            grad, of_half = _half_backward(
                grad, maps.pop(), kept[1 + 3 * i : 4 + 3 * i], halves[i], parts[i], ctx.counts[i]
            )
            gradients = [*of_half, *gradients]
        return grad, None, *gradients


def _half_backward(
    grad: Tensor,
    maps: tuple[Tensor, Tensor],
    kept: Sequence[Tensor],
    half: Half,
    parameters: Sequence[Tensor],
    count: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of a half's input and of its parameters.

    `maps` are the inputs of the half and of its PReLU; the latter is overwritten. `kept` are the
    output of the convolution, and its means and inverse standard deviations.
    """
    (x, z), (y, mean, inverse_std) = maps, kept
    del maps
    shift, weight, gain, _, before, slope, after = parameters
    convolution, norm = half.convolution, half.norm
    grad_z = prelu_backward(grad, z, slope)
    grad_slope, grad_after = sum_products(grad, z.clamp_(max=0))
    del grad, z
    if count is None:
        grad_y, grad_gain, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad_z, y, gain, norm.running_mean, norm.running_var, mean, inverse_std, True, norm.eps,
            [True, True, True],
        )  # fmt: skip
    else:
        grad_y, grad_gain, grad_bias = synchronized_norm_backward(
            grad_z, y, gain, mean, inverse_std, count, norm
        )
    grad_x = half.shortcut_backward(grad_z, x)
    del grad_z
    shifted = shifted_by(shift, x)
    grad_signs, grad_weight, _ = torch.ops.aten.convolution_backward(
        grad_y, copied_sign(shifted).to(grad_y.dtype), half.weight(weight, grad_y.dtype), None,
        [convolution.stride] * 2, [convolution.padding] * 2, [1, 1], False, [0, 0], 1,
        [True, True, False],
    )  # fmt: skip
    del grad_y
    through = sign_backward(grad_signs, shifted, convolution.sign.gradient, out=grad_signs)
    del shifted, grad_signs
    _, grad_shift = sum_products(through, through)
    return through.add_(grad_x), [
        grad_shift.to(shift.dtype),
        half.weight_backward(grad_weight, weight),
        grad_gain,
        grad_bias,
        grad_bias.to(before.dtype),
        grad_slope.to(slope.dtype),
        grad_after.to(after.dtype),
    ]


def _activated(z: Tensor, slope: Tensor, after: Tensor) -> Tensor:
    return F.prelu(z, slope.to(z.dtype)).add_(per_channel(after, z))
