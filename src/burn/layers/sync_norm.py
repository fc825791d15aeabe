"""Batch normalization over the images of several processes, for which no GPU is waited for.

torch's SyncBatchNorm reads from the GPU, in every layer and pass, which processes have images. Here
every process has some. In a network of 50 layers this saves 150 waits at each step.
tests/layers/test_sync_norm.py compares two processes with one that has the images of both.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F


class SyncNorm(nn.SyncBatchNorm):
    """SyncBatchNorm whose training pass waits for no number.

    Without a group of processes, in eval mode, and with a cumulative average (momentum None) it is
    torch's.
    """

    def forward(self, input: Tensor) -> Tensor:
        fits = self.track_running_stats and self.momentum is not None
        if not (fits and self.training and num_processes(self) > 1):
            return super().forward(input)
        self._check_input_dim(input)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        gain, bias = self.weight, self.bias
        if not self.affine:
            assert self.running_mean is not None
            gain, bias = torch.ones_like(self.running_mean), torch.zeros_like(self.running_mean)
        return _Norm.apply(input, gain, bias, self)  # type: ignore[no-any-return]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor, norm: SyncNorm) -> Tensor:
        y, mean, inverse_std, count = synchronized_norm(x, gain, bias, norm)
        ctx.norm = norm
        ctx.save_for_backward(x, gain, mean, inverse_std, count)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, mean, inverse_std, count = ctx.saved_tensors
        return *synchronized_norm_backward(
            grads[0], x, gain, mean, inverse_std, count, ctx.norm
        ), None


def synchronize_norms(module: nn.Module) -> nn.Module:
    """Convert all BN in a module, and the module itself, in place to `SyncNorm`; return the module.

    timm's BN with an activation keeps it; torch's own conversion loses it. Subclasses of BN that
    are not known may compute something else, and stay as they are.
    """
    for part in module.modules():
        synchronized = _synchronized(type(part))
        if synchronized is not None:
            part.__class__ = synchronized
            cast(SyncNorm, part).process_group = None  # all processes
    return module


@cache
def _synchronized(kind: type[nn.Module]) -> type[SyncNorm] | None:
    """Return the class that BN of a class becomes, or None for a module that stays as it is."""
    if kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        return SyncNorm
    if not (issubclass(kind, nn.BatchNorm2d) and kind.__module__.startswith("timm.")):
        return None
    # timm is slow to import, and only its networks need it.
    from timm.layers.norm_act import BatchNormAct2d, SyncBatchNormAct

    class SyncNormAct(SyncBatchNormAct, SyncNorm):  # pyright: ignore[reportGeneralTypeIssues]
        pass

    return SyncNormAct if kind is BatchNormAct2d else None


def num_processes(norm: nn.SyncBatchNorm) -> int:
    """Return the number of processes whose images the layer normalizes together."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1
    return distributed.get_world_size(norm.process_group)


def synchronized_norm(
    y: Tensor, gain: Tensor, bias: Tensor, norm: nn.BatchNorm2d | nn.SyncBatchNorm
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize by the statistics of all processes, and update the running ones.

    The processes may have different numbers of images, and all but one may have none. Returned are
    the normalized map; mean and inverse standard deviation of each channel; and the number of its
    values in all processes, a scalar on the device.
    """
    local = _local_statistics(y, norm.eps)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    shares = [torch.empty_like(local) for _ in range(distributed.get_world_size(_group(norm)))]
    distributed.all_gather(shares, local, group=_group(norm))
    channels = len(local) // 2
    means, variances, numbers = torch.stack(shares).split([channels, channels, 1], dim=1)
    count = numbers.sum()
    weights = numbers / count
    mean = (weights * means).sum(dim=0)
    variance = (weights * (variances + (means - mean).square())).sum(dim=0)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
    unbiased = (variance * (count / (count - 1))).to(norm.running_var.dtype)
    norm.running_var.lerp_(unbiased, norm.momentum)
    z = y
    if y.numel():
        z = F.batch_norm(y, mean, variance, gain, bias, training=False, eps=norm.eps)
    return z, mean, (variance + norm.eps).rsqrt(), count


def _local_statistics(y: Tensor, eps: float) -> Tensor:
    """Return mean and variance of each channel, and the number of its values: (2 · channels + 1,).

    They are in float32 or better; without images all are 0.
    """
    dtype = torch.promote_types(y.dtype, torch.float32)
    if not y.numel():
        return y.new_zeros(2 * y.shape[1] + 1, dtype=dtype)
    if y.device.type == "cuda":
        mean, inverse = torch.batch_norm_stats(y, eps)
        variance = inverse.square().reciprocal_().sub_(eps)
    else:
        others = [dim for dim in range(y.ndim) if dim != 1]
        variance, mean = torch.var_mean(y.to(dtype), dim=others, correction=0)
    return torch.cat([mean, variance, mean.new_full((1,), y.numel() // y.shape[1])])


def synchronized_norm_backward(
    grad: Tensor,
    y: Tensor,
    gain: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
    count: Tensor,
    norm: nn.BatchNorm2d | nn.SyncBatchNorm,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of BN's input, and of its weight and bias by this process's images.

    `mean`, `inverse_std` and `count` are those of `synchronized_norm`, over all processes.
    """
    if y.numel():
        _, grad_gain, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, y, gain, norm.running_mean, norm.running_var, mean, inverse_std, True, norm.eps,
            [False, True, True],
        )  # fmt: skip
    else:
        grad_gain, grad_bias = torch.zeros_like(mean), torch.zeros_like(mean)
    sums = torch.cat([grad_gain, grad_bias])
    distributed.all_reduce(sums, group=_group(norm))
    grad_y = _input_gradient(grad, y, gain * inverse_std, mean, inverse_std, sums / count)
    return grad_y, grad_gain, grad_bias


def _input_gradient(
    grad: Tensor, y: Tensor, factor: Tensor, mean: Tensor, inverse_std: Tensor, means: Tensor
) -> Tensor:
    """Return the gradient of BN's input, factor · (grad - m_b - (y - mean) · inverse_std · m_g).

    `means`, (2 · channels,), are the gradients of BN's weight, and then of its bias, as means m_g
    and m_b over all values of a channel in all processes.
    """
    of_gain, of_bias = means.chunk(2)
    slope = -factor * inverse_std * of_gain
    offset = -factor * of_bias - slope * mean

    def channel(vector: Tensor) -> Tensor:
        return vector.view(1, -1, *[1] * (y.ndim - 2))

    gradient = torch.addcmul(channel(offset), y, channel(slope))
    return gradient.addcmul_(grad, channel(factor)).to(y.dtype)


def _group(norm: nn.Module) -> Any:
    """Return the processes of a SyncBatchNorm; None stands for all."""
    return cast(nn.SyncBatchNorm, norm).process_group
