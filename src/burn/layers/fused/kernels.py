"""Triton kernels of a ReActNet block: all of a training step that is between its convolutions.

A map (batch, channels, height, width) is in channels-last order, and is seen as a matrix of
rows × channels with one row per pixel. A program works on tiles of BLOCK_ROWS × BLOCK_CHANNELS.
Numbers are computed in ACC (float32, or float64 for float64 maps) and rounded once, when they are
stored.

A sum over rows has two steps, so that the same input gives the same bits: each program adds the
rows of its chunk and writes its own row of `partial`; the rows of `partial` are then added in a
fixed order. No float is added by an atomic operation.

`burn.layers.fused.launch` calls the kernels, and says what they read and write.
tests/layers/test_fused.py compares them with the layers applied one by one.
"""

# Triton compiles this file's functions; Python's types do not describe them. It is not everywhere.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _offsets(rows, columns, channels):
    # A map may have more than 2³¹ elements, but not as many rows.
    return rows.to(tl.int64)[:, None] * channels + columns[None, :]


@triton.jit
def _store_sums(partial, sums, columns, channels, INDEX: tl.constexpr, COUNT: tl.constexpr):
    """Write one of the COUNT sums that each program writes for each channel."""
    place = partial + (tl.program_id(0) * COUNT + INDEX) * channels + columns
    tl.store(place, sums, mask=columns < channels)


@triton.jit
def _shortcut(
    x, rows, columns, inside, channels, x_channels, height, width,
    STRIDE: tl.constexpr, REPEAT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Return shortcut(x) at some rows of a half's output; height and width are those of x."""
    if REPEAT > 1:
        columns = columns % x_channels
    if STRIDE == 1:
        return tl.load(x + _offsets(rows, columns, x_channels), mask=inside, other=0.0).to(ACC)
    out_height, out_width = (height + 1) // 2, (width + 1) // 2
    image, place = rows // (out_height * out_width), rows % (out_height * out_width)
    top, left = 2 * (place // out_width), 2 * (place % out_width)
    total = tl.zeros(inside.shape, ACC)
    for down in tl.static_range(2):
        for right in tl.static_range(2):
            pixel = (image * height + top + down) * width + left + right
            there = inside & ((top + down < height) & (left + right < width))[:, None]
            pixels = tl.load(x + _offsets(pixel, columns, x_channels), mask=there, other=0.0)
            total += pixels.to(ACC)
    number = tl.minimum(height - top, 2) * tl.minimum(width - left, 2)
    return total / number.to(ACC)[:, None]


@triton.jit
def _normalized(y, offsets, inside, scale, mean, inverse_std, columns, present,
                SCALED: tl.constexpr, ACC: tl.constexpr):  # fmt: skip
    """Return BN's output before its weight and bias, from the output of the convolution."""
    value = tl.load(y + offsets, mask=inside, other=0.0).to(ACC)
    if SCALED:
        value *= tl.load(scale + columns, mask=present, other=0.0).to(ACC)[None, :]
    value -= tl.load(mean + columns, mask=present, other=0.0).to(ACC)[None, :]
    return value * tl.load(inverse_std + columns, mask=present, other=0.0).to(ACC)[None, :]


@triton.jit
def signs(
    x, out, shift, num_rows, channels,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """out = sign(x + shift), where the sign of 0 is +1."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    present = columns < channels
    inside = (rows < num_rows)[:, None] & present[None, :]
    offsets = _offsets(rows, columns, channels)
    value = tl.load(x + offsets, mask=inside, other=0.0).to(ACC)
    value += tl.load(shift + columns, mask=present, other=0.0).to(ACC)[None, :]
    tl.store(out + offsets, tl.where(value >= 0, 1.0, -1.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def statistics(
    y, partial, scale, num_rows, channels, chunk,
    SCALED: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Write mean, and sum of squared distances from it, of each channel of a chunk of rows.

    Distances are first taken from the chunk's first row: squares of the numbers themselves would
    lose the variance of a channel whose mean is large.
    """
    first = tl.program_id(0) * chunk
    columns = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    present = columns < channels
    factor = tl.full(columns.shape, 1.0, ACC)
    if SCALED:
        factor = tl.load(scale + columns, mask=present, other=0.0).to(ACC)
    start = y + first.to(tl.int64) * channels + columns
    # Triton 3.9's interpreter cannot combine a vector with the scalar `first < num_rows`.
    begun = first + 0 * columns < num_rows
    pivot = tl.load(start, mask=present & begun, other=0.0).to(ACC) * factor
    total = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), ACC)
    squares = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), ACC)
    for offset in range(0, chunk, BLOCK_ROWS):
        rows = first + offset + tl.arange(0, BLOCK_ROWS)
        inside = (rows < num_rows)[:, None] & present[None, :]
        value = tl.load(y + _offsets(rows, columns, channels), mask=inside, other=0.0).to(ACC)
        apart = tl.where(inside, value * factor[None, :] - pivot[None, :], 0.0)
        total += apart
        squares += apart * apart
    number = tl.maximum(tl.minimum(num_rows - first, chunk), 1).to(ACC)
    apart_mean = tl.sum(total, axis=0) / number
    square = tl.maximum(tl.sum(squares, axis=0) - apart_mean * apart_mean * number, 0.0)
    _store_sums(partial, pivot + apart_mean, columns, channels, 0, 2)
    _store_sums(partial, square, columns, channels, 1, 2)


@triton.jit
def merge(
    partial, statistics, running_mean, running_var, num_rows, channels, chunk, num_chunks,
    EPS: tl.constexpr, MOMENTUM: tl.constexpr, UPDATES: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Merge the chunks' statistics to mean, variance and inverse standard deviation of channels.

    With UPDATES it moves the running statistics, in place.
    """
    columns = tl.program_id(0) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    present = columns < channels
    chunks = tl.arange(0, BLOCK_CHUNKS)
    inside = (chunks < num_chunks)[:, None] & present[None, :]
    place = partial + chunks[:, None] * 2 * channels + columns[None, :]
    means = tl.load(place, mask=inside, other=0.0)
    squares = tl.load(place + channels, mask=inside, other=0.0)
    numbers = tl.maximum(tl.minimum(num_rows - chunks * chunk, chunk), 0).to(ACC)[:, None]
    count = (num_rows + tl.zeros(columns.shape, tl.int32)).to(ACC)
    mean = tl.sum(means * numbers, axis=0) / count
    distance = means - mean[None, :]
    square = tl.sum(tl.where(inside, squares + distance * distance * numbers, 0.0), axis=0)
    variance = square / count
    tl.store(statistics + columns, mean, mask=present)
    tl.store(statistics + channels + columns, variance, mask=present)
    tl.store(statistics + 2 * channels + columns, 1.0 / tl.sqrt(variance + EPS), mask=present)
    if UPDATES:
        old = tl.load(running_mean + columns, mask=present, other=0.0).to(ACC)
        new = old + MOMENTUM * (mean - old)
        tl.store(running_mean + columns, new.to(running_mean.dtype.element_ty), mask=present)
        old = tl.load(running_var + columns, mask=present, other=0.0).to(ACC)
        new = old + MOMENTUM * (square / (count - 1) - old)
        tl.store(running_var + columns, new.to(running_var.dtype.element_ty), mask=present)


@triton.jit
def activate(
    y, x, out, out_signs, scale, mean, inverse_std, gain, bias, before, slope, after, next_shift,
    num_rows, channels, x_channels, height, width,
    SCALED: tl.constexpr, SIGNS: tl.constexpr, STRIDE: tl.constexpr, REPEAT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """out = RPReLU(BN(y) + shortcut(x)), and with SIGNS out_signs = sign(out + next_shift).

    The sign is that of the map as it is stored, since later passes read it from there.
    """
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    present = columns < channels
    inside = (rows < num_rows)[:, None] & present[None, :]
    offsets = _offsets(rows, columns, channels)
    z = _normalized(y, offsets, inside, scale, mean, inverse_std, columns, present, SCALED, ACC)
    z *= tl.load(gain + columns, mask=present, other=0.0).to(ACC)[None, :]
    added = tl.load(bias + columns, mask=present, other=0.0).to(ACC)
    added += tl.load(before + columns, mask=present, other=0.0).to(ACC)
    z += added[None, :]
    z += _shortcut(
        x, rows, columns, inside, channels, x_channels, height, width, STRIDE, REPEAT, ACC
    )
    z = tl.where(z >= 0, z, z * tl.load(slope + columns, mask=present, other=0.0).to(ACC)[None, :])
    z += tl.load(after + columns, mask=present, other=0.0).to(ACC)[None, :]
    stored = z.to(out.dtype.element_ty)
    tl.store(out + offsets, stored, mask=inside)
    if SIGNS:
        shifted = stored.to(ACC)
        shifted += tl.load(next_shift + columns, mask=present, other=0.0).to(ACC)[None, :]
        sign = tl.where(shifted >= 0, 1.0, -1.0)
        tl.store(out_signs + offsets, sign.to(out_signs.dtype.element_ty), mask=inside)


@triton.jit
def activate_backward(
    grad, y, x, grad_z, partial, scale, mean, inverse_std, gain, bias, before, slope,
    num_rows, channels, x_channels, height, width, chunk,
    SCALED: tl.constexpr, STRIDE: tl.constexpr, REPEAT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the gradient of RPReLU's input z = BN(y) + shortcut(x), and four sums of a chunk.

    These are the sums that the gradients of BN's bias and weight, and of RPReLU's slope and last
    shift, consist of.
    """
    first = tl.program_id(0) * chunk
    columns = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    present = columns < channels
    factor = tl.load(gain + columns, mask=present, other=0.0).to(ACC)[None, :]
    added = tl.load(bias + columns, mask=present, other=0.0).to(ACC)
    added += tl.load(before + columns, mask=present, other=0.0).to(ACC)
    negative = tl.load(slope + columns, mask=present, other=0.0).to(ACC)[None, :]
    of_bias = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), ACC)
    of_gain = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), ACC)
    of_slope = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), ACC)
    of_after = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), ACC)
    for offset in range(0, chunk, BLOCK_ROWS):
        rows = first + offset + tl.arange(0, BLOCK_ROWS)
        inside = (rows < num_rows)[:, None] & present[None, :]
        offsets = _offsets(rows, columns, channels)
        normal = _normalized(
            y, offsets, inside, scale, mean, inverse_std, columns, present, SCALED, ACC
        )
        z = normal * factor + added[None, :]
        z += _shortcut(
            x, rows, columns, inside, channels, x_channels, height, width, STRIDE, REPEAT, ACC
        )
        # Outside of the map the gradient is 0, so it adds nothing to the sums.
        arriving = tl.load(grad + offsets, mask=inside, other=0.0).to(ACC)
        through = tl.where(z >= 0, arriving, arriving * negative)
        tl.store(grad_z + offsets, through.to(grad_z.dtype.element_ty), mask=inside)
        of_bias += through
        of_gain += through * normal
        of_slope += tl.where(z >= 0, 0.0, arriving * z)
        of_after += arriving
    _store_sums(partial, tl.sum(of_bias, axis=0), columns, channels, 0, 4)
    _store_sums(partial, tl.sum(of_gain, axis=0), columns, channels, 1, 4)
    _store_sums(partial, tl.sum(of_slope, axis=0), columns, channels, 2, 4)
    _store_sums(partial, tl.sum(of_after, axis=0), columns, channels, 3, 4)


@triton.jit
def norm_backward(
    grad_z, y, grad_y, means, scale, mean, inverse_std, gain, num_rows, channels,
    SCALED: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Write the gradient of BN's input; `means` are those of grad_z, and of grad_z · BN's map."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    present = columns < channels
    inside = (rows < num_rows)[:, None] & present[None, :]
    offsets = _offsets(rows, columns, channels)
    normal = _normalized(
        y, offsets, inside, scale, mean, inverse_std, columns, present, SCALED, ACC
    )
    of_bias = tl.load(means + columns, mask=present, other=0.0).to(ACC)[None, :]
    of_gain = tl.load(means + channels + columns, mask=present, other=0.0).to(ACC)[None, :]
    factor = tl.load(gain + columns, mask=present, other=0.0).to(ACC)
    factor *= tl.load(inverse_std + columns, mask=present, other=0.0).to(ACC)
    value = tl.load(grad_z + offsets, mask=inside, other=0.0).to(ACC)
    value = (value - of_bias - normal * of_gain) * factor[None, :]
    tl.store(grad_y + offsets, value.to(grad_y.dtype.element_ty), mask=inside)


@triton.jit
def input_backward(
    grad_signs, x, grad_z, grad_x, partial, shift,
    num_rows, channels, z_channels, height, width, chunk,
    POLY: tl.constexpr, STRIDE: tl.constexpr, REPEAT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_CHANNELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a half's input: through the signs, and through the shortcut.

    The sum of the former over a chunk is its part of the shift's gradient. Rows, channels, height
    and width are those of x; grad_z has one pixel for 2×2 where STRIDE is 2.
    """
    first = tl.program_id(0) * chunk
    columns = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    present = columns < channels
    moved = tl.load(shift + columns, mask=present, other=0.0).to(ACC)[None, :]
    total = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), ACC)
    for offset in range(0, chunk, BLOCK_ROWS):
        rows = first + offset + tl.arange(0, BLOCK_ROWS)
        inside = (rows < num_rows)[:, None] & present[None, :]
        offsets = _offsets(rows, columns, channels)
        shifted = tl.abs(tl.load(x + offsets, mask=inside, other=0.0).to(ACC) + moved)
        through = tl.load(grad_signs + offsets, mask=inside, other=0.0).to(ACC)
        if POLY:
            through *= tl.maximum(2.0 - 2.0 * shifted, 0.0)
        else:
            through = tl.where(shifted <= 1, through, 0.0)
        total += through
        pixel = rows
        if STRIDE == 2:
            image, place = rows // (height * width), rows % (height * width)
            down, right = (place // width) // 2, (place % width) // 2
            pixel = (image * ((height + 1) // 2) + down) * ((width + 1) // 2) + right
        back = tl.zeros((BLOCK_ROWS, BLOCK_CHANNELS), ACC)
        for part in tl.static_range(REPEAT):
            place_z = _offsets(pixel, columns + part * channels, z_channels)
            back += tl.load(grad_z + place_z, mask=inside, other=0.0).to(ACC)
        if STRIDE == 2:
            number = tl.minimum(height - 2 * down, 2) * tl.minimum(width - 2 * right, 2)
            back = back / number.to(ACC)[:, None]
        tl.store(grad_x + offsets, (through + back).to(grad_x.dtype.element_ty), mask=inside)
    _store_sums(partial, tl.sum(total, axis=0), columns, channels, 0, 1)


KERNELS: dict[str, Any] = {
    "signs": signs,
    "statistics": statistics,
    "merge": merge,
    "activate": activate,
    "activate_backward": activate_backward,
    "norm_backward": norm_backward,
    "input_backward": input_backward,
}


def triton_dtype(dtype: torch.dtype) -> Any:
    """Return Triton's dtype of sums: float32 or float64."""
    return {torch.float32: tl.float32, torch.float64: tl.float64}[dtype]
