"""NumPy interpreter of docs/project/pack-format.md: the tests' reference, and the slow fallback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burn_engine.format import (
    BinaryConvolution,
    BranchedConvolution,
    Convolution,
    Floats,
    GatedConvolution,
    GlobalMean,
    Layer,
    Linear,
    Matrix,
    Program,
    Rounded,
)

_PIXELS_AT_ONCE = 2**18  # bounds the memory of a large batch


def run(program: Program, images: NDArray[Any], layer: int | None = None) -> Floats:
    """Run a program.

    Args:
        program: The packed file.
        images: (n, h, w, 3), uint8, or float32 from 0 to 1.
        layer: Index of the last layer to run; None for the last one of the program.

    Returns:
        Maps (n, h', w', channels) for a convolution, otherwise vectors (n, channels).
    """
    layers = program.layers[: len(program.layers) if layer is None else layer + 1]
    step = max(1, _PIXELS_AT_ONCE // (images.shape[1] * images.shape[2]))
    parts: list[Floats] = []
    for first in range(0, max(1, len(images)), step):
        x = images[first : first + step]
        maps: list[NDArray[Any]] = []
        for current in layers:
            also = current.also if isinstance(current, GlobalMean) else ()
            x = run_layer(current, x, [maps[index] for index in also])
            maps.append(x)
        parts.append(x)
    return np.concatenate(parts)


def run_layer(layer: Layer, x: NDArray[Any], also: Sequence[NDArray[Any]] = ()) -> Floats:
    """Run one layer on the output of the layer before it.

    Args:
        layer: The layer.
        x: Images (n, h, w, 3), uint8, or float32 from 0 to 1, for `Convolution`; vectors
            (n, inputs) for `Linear`; otherwise maps (n, h, w, inputs). The same images for
            `BranchedConvolution` as for `Convolution`.
        also: For `GlobalMean` the outputs of its layers `also`.

    Returns:
        Maps (n, h', w', channels) for a convolution, otherwise vectors (n, channels).
    """
    # Finite constants may have infinite products, which are passed on, as a CPU does. And NumPy's
    # products of matrices tell of divisions on some processors (64-bit ARM), where there are none.
    with np.errstate(all="ignore"):
        if isinstance(layer, Convolution):
            return _convolution(layer, x)
        if isinstance(layer, BinaryConvolution):
            return _binary_convolution(layer, x)
        if isinstance(layer, GatedConvolution):
            # One by one, because each image has its own weights.
            return np.concatenate([_gated_convolution(layer, image[None]) for image in x])
        if isinstance(layer, BranchedConvolution):
            return _branched_convolution(layer, x)
        if isinstance(layer, GlobalMean):
            return _global_mean(layer, [x, *also])
        assert isinstance(layer, Linear)
        return _linear(layer, x)


def _convolution(layer: Convolution, x: NDArray[Any]) -> Floats:
    return layer.bias + _image_sums(x, layer.weight, layer.padding, layer.stride)


def _image_sums(x: NDArray[Any], weight: Floats, padding: Floats, stride: int) -> Floats:
    if x.dtype == np.uint8:
        x = x.astype(np.float32) / np.float32(255)
    return _sum_over_taps(_pad(x, weight.shape[1] // 2, padding), weight, stride)


def _binary_convolution(layer: BinaryConvolution, x: Floats) -> Floats:
    sign = np.where(x >= layer.threshold, np.float32(1), np.float32(-1))
    d = _binary_sums(layer.weight, sign, layer.stride)
    y = layer.multiplier * d + layer.bias
    if layer.shortcut:
        y += np.tile(_pool(x, layer.stride), layer.channels // x.shape[-1])
    return _leaky(y, layer.slope)


def _binary_sums(bits: NDArray[np.uint8], sign: Floats, stride: int) -> Floats:
    """Return d: the sums of signs times weights, exactly."""
    bits = np.unpackbits(bits, axis=-1, count=sign.shape[-1], bitorder="little")
    weight = bits.astype(np.float32) * np.float32(2) - np.float32(1)
    padded = _pad(sign, weight.shape[1] // 2, np.zeros(1, np.float32))
    # Exact: |d| and every partial sum are ≤ 9 · 4,096; float32 represents integers up to 2²⁴.
    return _sum_over_taps(padded, weight, stride)


def _gated_convolution(layer: GatedConvolution, x: Floats) -> Floats:
    """Run the layer on a map of one image."""
    means = _means(x)
    expert = 0
    if layer.choice is not None:
        expert = int(np.argmax(_times(layer.choice, means)))
    chosen = slice(expert * layer.channels, (expert + 1) * layer.channels)
    weight = layer.weight[chosen]
    read = np.tile(x, layer.repeat)
    sign = np.where(read >= layer.threshold, np.float32(1), np.float32(-1))
    d = np.concatenate(
        [
            _binary_sums(part, signs, layer.stride)
            for part, signs in zip(
                np.split(weight, layer.groups), np.split(sign, layer.groups, -1), strict=True
            )
        ],
        axis=-1,
    )
    u = _leaky(layer.multiplier[chosen] * d + layer.bias, layer.inner_slope)
    pooled = _pool(x, layer.stride)
    repeat = layer.channels // x.shape[-1]
    gate = np.float32(1)
    if layer.gate is not None:
        taken = means
        if layer.mix is not None:
            mix = layer.mix * np.tile(pooled, repeat) + (np.float32(1) - layer.mix) * u
            taken = _means(np.asarray(mix, np.float32))
        inner = np.maximum(_rounded_times(layer.gate.down, taken), np.float32(0))
        gate = 1 / (1 + np.exp(-_rounded_times(layer.gate.up, inner)))
    y = layer.scale * gate * u
    if not layer.shortcut:
        return _leaky(y + layer.shift, layer.slope)
    if layer.side:
        p = pooled
        for side in layer.side:
            p = _leaky(np.add(side.bias, p @ side.weight.T, dtype=np.float32), side.slope)
    else:
        assert layer.shortcut_slope is not None
        p = np.tile(_pool(_leaky(x, layer.shortcut_slope), layer.stride), repeat)
    return _leaky((y * p if layer.product else y) + layer.shift + p, layer.slope)


def _branched_convolution(layer: BranchedConvolution, x: NDArray[Any]) -> Floats:
    sums = _image_sums(x, layer.first.weight, layer.padding, layer.stride)
    first = np.maximum(sums + layer.first.bias, np.float32(0))
    narrow = np.maximum(_times(layer.narrow, first), np.float32(0))
    stride, kernel = layer.second_stride, layer.widen.weight.shape[1]
    padded = _pad(narrow, kernel // 2, np.zeros(1, np.float32))
    wide = _sum_over_taps(padded, layer.widen.weight, stride) + layer.widen.bias
    wide = np.maximum(wide, np.float32(0))
    # 0 outside the map has no effect, because no value of `first` is below it.
    taps = [tap for _, _, tap in _taps(_pad(first, 1, np.zeros(1, np.float32)), 3, stride)]
    largest = np.max(taps, axis=0)
    return np.maximum(_times(layer.last, np.concatenate([wide, largest], axis=-1)), np.float32(0))


def _leaky(y: Floats, slope: Floats) -> Floats:
    return np.where(y >= 0, y, slope * y)


def _pool(x: Floats, stride: int) -> Floats:
    return x if stride == 1 else _mean_of_2x2(x)


def _means(x: Floats) -> Floats:
    """Return the means over all pixels."""
    # Summed in float64, because NumPy adds along these axes one by one and would lose precision.
    return np.asarray(x.mean(axis=(1, 2), dtype=np.float64), np.float32)


def _times(matrix: Matrix, x: Floats) -> Floats:
    return np.add(matrix.bias, x @ matrix.weight.T, dtype=np.float32)


def _rounded_times(matrix: Rounded, x: Floats) -> Floats:
    product = x @ matrix.weight.astype(np.float32).T
    return np.add(matrix.bias, matrix.scale * product, dtype=np.float32)


def _global_mean(layer: GlobalMean, maps: list[Floats]) -> Floats:
    means = np.concatenate([_means(x) for x in maps], axis=1)
    return layer.bias + (means if layer.scale is None else layer.scale * means)


def _linear(layer: Linear, x: Floats) -> Floats:
    y = np.add(layer.bias, x @ layer.weight.T, dtype=np.float32)
    return np.maximum(y, np.float32(0)) if layer.relu else y


def _pad(x: Floats, width: int, value: Floats) -> Floats:
    n, h, w, channels = x.shape
    padded = np.empty((n, h + 2 * width, w + 2 * width, channels), np.float32)
    padded[:] = value
    padded[:, width : width + h, width : width + w] = x
    return padded


def _sum_over_taps(padded: Floats, weight: Floats, stride: int) -> Floats:
    """Return Σ weight[o, a, b, c] · padded[i · stride + a, j · stride + b, c] over a, b, c."""
    total = np.float32(0)
    for a, b, under_tap in _taps(padded, weight.shape[1], stride):
        total = total + under_tap @ np.ascontiguousarray(weight[:, a, b].T)
    assert isinstance(total, np.ndarray)
    return total


def _taps(padded: Floats, kernel: int, stride: int) -> Iterator[tuple[int, int, Floats]]:
    height = (padded.shape[1] - kernel) // stride + 1
    width = (padded.shape[2] - kernel) // stride + 1
    for a in range(kernel):
        for b in range(kernel):
            rows = slice(a, a + (height - 1) * stride + 1, stride)
            columns = slice(b, b + (width - 1) * stride + 1, stride)
            yield a, b, np.ascontiguousarray(padded[:, rows, columns])


def _mean_of_2x2(x: Floats) -> Floats:
    """Return the mean of the pixels in rows 2i, 2i + 1 and columns 2j, 2j + 1 that exist."""
    n, h, w, channels = x.shape
    rows, columns = (h + 1) // 2, (w + 1) // 2
    total = np.zeros((n, rows, columns, channels), np.float32)
    count = np.zeros((rows, columns, 1), np.float32)
    for a in range(2):
        for b in range(2):
            part = x[:, a::2, b::2]
            total[:, : part.shape[1], : part.shape[2]] += part
            count[: part.shape[1], : part.shape[2]] += 1
    return total / count
