"""Runs a network in integers in NumPy: the twin of its C code, with which the export is tested."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burn.deploy.c.fixed_point import (
    IntegerConvolution,
    IntegerLayer,
    IntegerNetwork,
    Integers,
    activated,
    divided,
)
from burn_engine.format import BinaryConvolution, Convolution, Program


def run_integers(
    network: IntegerNetwork, program: Program, images: NDArray[np.uint8]
) -> list[Integers]:
    """Run a network in integers on images (n, size, size, 3), as its C code does.

    Returns the output of each layer, (n, h, w, channels) or (n, channels).
    """
    first = program.layers[0]
    assert isinstance(first, Convolution)
    x = _run_stem(network.stem, first.stride, images)
    outputs = [x]
    binary = [layer for layer in program.layers if isinstance(layer, BinaryConvolution)]
    for layer, stored in zip(network.layers, binary, strict=True):
        x = _run_layer(layer, stored, x)
        outputs.append(x)
    mean = network.mean
    x = divided(x.sum(axis=(1, 2)) * mean.factor, mean.shift) + mean.bias
    outputs.append(x)
    for linear in network.linears:
        x = divided(x @ linear.weight.T, linear.shift) + linear.bias
        x = np.maximum(x, 0) if linear.relu else x
        outputs.append(x)
    return outputs


def _run_stem(stem: IntegerConvolution, stride: int, images: NDArray[np.uint8]) -> Integers:
    kernel = stem.weight.shape[1]
    ones = np.ones((*images.shape[:3], 1), np.int64)
    # The fourth channel is 1 outside the image and 0 inside.
    inside = np.concatenate([images.astype(np.int64), ones], axis=3)
    padded = _padded(inside, kernel // 2)
    padded[..., 3] = 1 - padded[..., 3]
    weight = np.concatenate([stem.weight, stem.outside[..., None]], axis=3)
    total = _convolved(padded, weight, stride)
    return divided(total + stem.bias, stem.shift)


def _run_layer(layer: IntegerLayer, stored: BinaryConvolution, x: Integers) -> Integers:
    bits = np.unpackbits(stored.weight, axis=-1, count=x.shape[-1], bitorder="little")
    weight = 2 * bits.astype(np.int64) - 1
    sign = np.where(x >= layer.threshold, 1, -1)
    t = _convolved(_padded(sign, weight.shape[1] // 2), weight, stored.stride)
    t = t * layer.multiplier + layer.bias
    if stored.shortcut:
        if stored.stride == 2:  # at an odd edge the last pixels count twice
            odd = [(0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)]
            wide = np.pad(x, odd, mode="edge")
            x = wide[:, ::2, ::2] + wide[:, ::2, 1::2] + wide[:, 1::2, ::2] + wide[:, 1::2, 1::2]
        t = t + np.tile(x << layer.shortcut_shift, stored.channels // x.shape[-1])
    return activated(layer, t)


def _padded(x: Integers, width: int) -> Integers:
    return np.pad(x, [(0, 0), (width, width), (width, width), (0, 0)])


def _convolved(padded: Integers, weight: Integers, stride: int) -> Integers:
    kernel = weight.shape[1]
    size = (padded.shape[1] - kernel) // stride + 1
    total = np.zeros((len(padded), size, size, len(weight)), np.float64)
    for a in range(kernel):
        for b in range(kernel):
            rows = slice(a, a + (size - 1) * stride + 1, stride)
            columns = slice(b, b + (size - 1) * stride + 1, stride)
            # In float64, because NumPy's integer products are slow; below 2⁵³ it is exact.
            total += padded[:, rows, columns].astype(np.float64) @ weight[:, a, b].T
    return total.astype(np.int64)
