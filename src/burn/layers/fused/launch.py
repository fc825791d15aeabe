"""What Triton's kernels of a block read, write and are given, as functions of tensors.

All maps have shape (batch, channels, height, width) in channels-last order; all vectors have shape
(channels,). This module needs no Triton before it launches a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from burn.core.types import ActivationGradient

NUM_WARPS = 8  # of 32 threads
_TILE = 2048  # elements, 8 for each thread: 16 bytes in bfloat16
_MOST_CHANNELS = 64  # of a tile
_MOST_CHUNKS = 512  # of rows, whose sums `merge` holds at once
_MERGED_CHANNELS = 8


@dataclass(frozen=True)
class Launch:
    """A kernel and its arguments, in the kernel's own order: reads, writes, others, constants.

    Attributes:
        kernel: Name of the kernel.
        grid: Numbers of programs.
        reads: Maps and sums of chunks that are read once.
        writes: Maps and sums of chunks that are written; None stands for one that is not wanted.
        vectors: Numbers for each channel, which are read or updated; None where there are none.
        sizes: Sizes of the maps.
        constants: Arguments that the kernel is compiled for.
    """

    kernel: str
    grid: tuple[int, ...]
    reads: Sequence[Tensor]
    writes: Sequence[Tensor | None]
    vectors: Sequence[Tensor | None]
    sizes: Sequence[int]
    constants: dict[str, Any]

    def arguments(self) -> list[Tensor | int | None]:
        return [*self.reads, *self.writes, *self.vectors, *self.sizes]

    def run(self) -> None:
        from burn.layers.fused.kernels import KERNELS, triton_dtype

        constants = self.constants | {"ACC": triton_dtype(self.constants["ACC"])}
        with torch.cuda.device_of(self.reads[0]):
            KERNELS[self.kernel][self.grid](*self.arguments(), **constants, num_warps=NUM_WARPS)


@dataclass(frozen=True)
class Norm:
    """BN of a half and what its statistics are, as its kernels need them.

    Attributes:
        scale: Factor of each channel of the convolution's output, or None for 1.
        mean: Mean of each channel after that.
        inverse_std: Inverse standard deviation, likewise.
        gain: BN's weight.
        bias: BN's bias.
    """

    scale: Tensor | None
    mean: Tensor
    inverse_std: Tensor
    gain: Tensor
    bias: Tensor


def as_rows(x: Tensor) -> Tensor:
    """Return a map in channels-last order, which is the same tensor if it has it already."""
    return x.contiguous(memory_format=torch.channels_last)


def sign_map(x: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
    """Return sign(x + shift) in a dtype."""
    out = torch.empty_like(x, dtype=dtype)
    _launch("signs", x, [x], [out], [shift], [])
    return out


def batch_statistics(
    y: Tensor, scale: Tensor | None, norm: nn.BatchNorm2d | nn.SyncBatchNorm, *, updates: bool
) -> Tensor:
    """Return mean, variance and inverse standard deviation of y · scale: (3, channels).

    Args:
        y: Output of the convolution.
        scale: Factor of each channel, or None for 1.
        norm: The layer, of which at least eps, momentum and the running statistics are used.
        updates: Whether the running statistics are updated.
    """
    rows, channels, chunk, chunks = *_rows_of(y), *_chunks(y)
    acc = _acc(y)
    partial = y.new_empty((chunks, 2, channels), dtype=acc)
    _launch("statistics", y, [y], [partial], [scale], [chunk], chunks, SCALED=scale is not None)
    statistics = y.new_empty((3, channels), dtype=acc)
    constants = {
        "EPS": norm.eps, "MOMENTUM": norm.momentum, "UPDATES": updates,
        "BLOCK_CHUNKS": _power_of_two(chunks), "BLOCK_CHANNELS": _MERGED_CHANNELS,
        "ACC": acc,
    }  # fmt: skip
    running = [norm.running_mean, norm.running_var] if updates else [None, None]
    grid, sizes = (-(-channels // _MERGED_CHANNELS),), [rows, channels, chunk, chunks]
    Launch("merge", grid, [partial], [statistics], running, sizes, constants).run()
    return statistics


def activated(
    y: Tensor, x: Tensor, norm: Norm, activation: Sequence[Tensor], stride: int
) -> Tensor:
    """Return RPReLU(BN(y) + shortcut(x)) in y's dtype.

    Args:
        y: Output of the convolution.
        x: Input of the half.
        norm: BN.
        activation: First shift, slope and last shift of RPReLU.
        stride: Stride of the convolution, by which the shortcut averages.
    """
    out = torch.empty_like(y)
    _activate(y, x, norm, activation, stride, out, None, None)
    return out


def activated_with_signs(
    y: Tensor,
    x: Tensor,
    norm: Norm,
    activation: Sequence[Tensor],
    stride: int,
    next_shift: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return what `activated` does, and its signs after another shift, in a dtype."""
    out, signs = torch.empty_like(y), torch.empty_like(y, dtype=dtype)
    _activate(y, x, norm, activation, stride, out, signs, next_shift)
    return out, signs


def _activate(
    y: Tensor,
    x: Tensor,
    norm: Norm,
    activation: Sequence[Tensor],
    stride: int,
    out: Tensor,
    signs: Tensor | None,
    next_shift: Tensor | None,
) -> None:
    vectors = [norm.scale, norm.mean, norm.inverse_std, norm.gain, norm.bias]
    _launch(
        "activate", y, [y, x], [out, signs], [*vectors, *activation, next_shift],
        list(x.shape[1:]), SCALED=norm.scale is not None, SIGNS=signs is not None,
        **_shortcut(x, y, stride),
    )  # fmt: skip


def activated_backward(
    grad: Tensor, y: Tensor, x: Tensor, norm: Norm, activation: Sequence[Tensor], stride: int
) -> tuple[Tensor, Tensor]:
    """Return the gradient of BN(y) + shortcut(x), and four sums over each channel: (4, channels).

    The sums are the gradients of BN's bias, of its weight, of RPReLU's slope and of its last shift.

    Args:
        grad: Gradient of the half's output.
        y: Output of the convolution.
        x: Input of the half.
        norm: BN.
        activation: First shift and slope of RPReLU.
        stride: Stride of the convolution.
    """
    (chunk, chunks), acc = _chunks(y), _acc(y)
    grad_z = torch.empty_like(y)
    partial = y.new_empty((chunks, 4, y.shape[1]), dtype=acc)
    vectors = [norm.scale, norm.mean, norm.inverse_std, norm.gain, norm.bias, *activation[:2]]
    _launch(
        "activate_backward", y, [grad, y, x], [grad_z, partial], vectors, [*x.shape[1:], chunk],
        chunks, SCALED=norm.scale is not None, **_shortcut(x, y, stride),
    )  # fmt: skip
    return grad_z, partial.sum(dim=0)


def norm_backward(grad_z: Tensor, y: Tensor, norm: Norm, means: Tensor) -> Tensor:
    """Return the gradient of y · scale.

    Args:
        grad_z: Gradient of BN's output.
        y: Output of the convolution.
        norm: BN.
        means: Means of grad_z, and of grad_z times BN's output without weight and bias, over the
            pixels of all images that were normalized together: (2, channels).
    """
    grad_y = torch.empty_like(y)
    vectors = [means, norm.scale, norm.mean, norm.inverse_std, norm.gain]
    scaled = norm.scale is not None
    _launch("norm_backward", y, [grad_z, y], [grad_y], vectors, [], SCALED=scaled)
    return grad_y


def input_backward(
    grad_signs: Tensor,
    x: Tensor,
    grad_z: Tensor,
    shift: Tensor,
    stride: int,
    gradient: ActivationGradient,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a half's input, and of the shift of its signs: (channels,).

    Args:
        grad_signs: Gradient of the signs.
        x: Input of the half.
        grad_z: Gradient of BN(y) + shortcut(x).
        shift: Shift of the signs.
        stride: Stride of the convolution.
        gradient: Straight-through gradient of the signs; see `sign_backward`.
    """
    chunk, chunks = _chunks(x)
    grad_x = torch.empty_like(x)
    partial = x.new_empty((chunks, 1, x.shape[1]), dtype=_acc(x))
    _launch(
        "input_backward", x, [grad_signs, x, grad_z], [grad_x, partial], [shift],
        [grad_z.shape[1], *x.shape[2:], chunk], chunks,
        POLY=gradient == "poly", **_shortcut(x, grad_z, stride),
    )  # fmt: skip
    return grad_x, partial.sum(dim=0)[0]


def _launch(
    kernel: str,
    like: Tensor,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor | None],
    vectors: Sequence[Tensor | None],
    sizes: Sequence[int],
    programs: int | None = None,
    **constants: Any,
) -> None:
    """Launch a kernel on the tiles of a map, or on `programs` chunks of its rows."""
    rows, channels = _rows_of(like)
    block_rows, block_channels = _tile(channels)
    grid = programs or -(-rows // block_rows), -(-channels // block_channels)
    constants |= {"BLOCK_ROWS": block_rows, "BLOCK_CHANNELS": block_channels, "ACC": _acc(like)}
    sizes = [rows, channels, *sizes]
    Launch(kernel, grid, reads, writes, vectors, sizes, constants).run()


def _shortcut(x: Tensor, z: Tensor, stride: int) -> dict[str, int]:
    return {"STRIDE": stride, "REPEAT": z.shape[1] // x.shape[1]}


def _rows_of(x: Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[1], x.shape[1]


def _tile(channels: int) -> tuple[int, int]:
    """Return rows and channels of a tile."""
    columns = min(_MOST_CHANNELS, _power_of_two(channels))
    return _TILE // columns, columns


def _chunks(x: Tensor) -> tuple[int, int]:
    """Return the rows of a chunk, whole tiles, and the number of chunks.

    They follow from the shape alone: another GPU adds in the same order.
    """
    rows, channels = _rows_of(x)
    block_rows, block_channels = _tile(channels)
    tiles = -(-rows // block_rows)
    chunks = max(1, min(tiles, _MOST_CHUNKS * block_channels // channels))
    chunk = -(-tiles // chunks) * block_rows
    return chunk, -(-rows // chunk)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _acc(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
