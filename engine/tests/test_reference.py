"""Compares the NumPy reference with loops that follow docs/project/pack-format.md literally."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import packed
from burn_engine import reference
from burn_engine.format import (
    BinaryConvolution,
    BranchedConvolution,
    Convolution,
    GatedConvolution,
    GlobalMean,
    parse_program,
)


def naive_layer(layer, x, also=()):
    """Run a layer on one image, in float64."""
    if isinstance(layer, Convolution):
        return naive_convolution(layer, x)
    if isinstance(layer, BinaryConvolution):
        return naive_binary_convolution(layer, x)
    if isinstance(layer, GatedConvolution):
        return naive_gated_convolution(layer, x)
    if isinstance(layer, BranchedConvolution):
        return naive_branched_convolution(layer, x)
    if isinstance(layer, GlobalMean):
        means = [one[:, :, c].mean() for one in (x, *also) for c in range(one.shape[2])]
        scale = np.ones(len(means)) if layer.scale is None else layer.scale
        return [b + s * mean for b, s, mean in zip(layer.bias, scale, means, strict=True)]
    y = [layer.bias[o] + float(layer.weight[o].astype(float) @ x) for o in range(layer.channels)]
    return [max(value, 0) for value in y] if layer.relu else y


def naive_convolution(layer, x):
    if x.dtype == np.uint8:
        x = x / 255
    out, k, _, _ = layer.weight.shape
    height, width, _ = x.shape
    y = np.zeros((-(-height // layer.stride), -(-width // layer.stride), out))
    for i, j, o in np.ndindex(y.shape):
        y[i, j, o] = layer.bias[o]
        for a, b, c in np.ndindex(k, k, 3):
            row, column = i * layer.stride + a - k // 2, j * layer.stride + b - k // 2
            inside = 0 <= row < height and 0 <= column < width
            y[i, j, o] += layer.weight[o, a, b, c] * (
                x[row, column, c] if inside else layer.padding[c]
            )
    return y


def naive_binary_convolution(layer, x):
    out, k, _, _ = layer.weight.shape
    height, width, channels = x.shape
    z = np.zeros((-(-height // layer.stride), -(-width // layer.stride), out))
    for i, j, o in np.ndindex(z.shape):
        d = 0
        for a, b, c in np.ndindex(k, k, channels):
            row, column = i * layer.stride + a - k // 2, j * layer.stride + b - k // 2
            if 0 <= row < height and 0 <= column < width:
                bit = layer.weight[o, a, b, c // 8] >> (c % 8) & 1
                s = 1 if x[row, column, c] >= layer.threshold[c] else -1
                d += s if bit else -s
        y = float(layer.multiplier[o]) * d + float(layer.bias[o])
        if layer.shortcut and layer.stride == 1:
            y += x[i, j, o % channels]
        elif layer.shortcut:
            y += x[2 * i : 2 * i + 2, 2 * j : 2 * j + 2, o % channels].mean(dtype=float)
        z[i, j, o] = y if y >= 0 else float(layer.slope[o]) * y
    return z


def naive_gated_convolution(layer, x):
    stride, k, out = layer.stride, layer.weight.shape[1], layer.channels
    height, width, channels = x.shape
    x = x.astype(float)
    means = [x[:, :, c].mean() for c in range(channels)]
    expert = 0
    if layer.choice is not None:
        expert = int(np.argmax(matrix(layer.choice, means)))
    u = np.zeros((-(-height // stride), -(-width // stride), out))
    used = layer.repeat * channels // layer.groups
    for i, j, o in np.ndindex(u.shape):
        d = 0
        for a, b, c in np.ndindex(k, k, used):
            row, column = i * stride + a - k // 2, j * stride + b - k // 2
            if 0 <= row < height and 0 <= column < width:
                bit = layer.weight[expert * out + o, a, b, c // 8] >> (c % 8) & 1
                read = o // (out // layer.groups) * used + c
                s = 1 if x[row, column, read % channels] >= layer.threshold[read] else -1
                d += s if bit else -s
        multiplier = float(layer.multiplier[expert * out + o])
        u[i, j, o] = leaky(multiplier * d + layer.bias[o], layer.inner_slope[o])

    def pooled(i, j, c, slope):
        if stride == 1:
            return leaky(x[i, j, c], slope)
        block = x[2 * i : 2 * i + 2, 2 * j : 2 * j + 2, c].reshape(-1)
        return np.mean([leaky(value, slope) for value in block])

    gate = np.ones(out)
    if layer.gate is not None:
        taken = means
        if layer.gate_of == "mixed":
            mixed = np.zeros(u.shape)
            for i, j, o in np.ndindex(u.shape):
                share = float(layer.mix[o])
                mixed[i, j, o] = share * pooled(i, j, o % channels, 1) + (1 - share) * u[i, j, o]
            taken = [mixed[:, :, o].mean() for o in range(out)]
        inner = [max(0, value) for value in rounded(layer.gate.down, taken)]
        gate = np.array([1 / (1 + np.exp(-value)) for value in rounded(layer.gate.up, inner)])
    z = np.zeros(u.shape)
    for i, j in np.ndindex(u.shape[:2]):
        p = np.zeros(out)
        if layer.side:
            p = np.array([pooled(i, j, c, 1) for c in range(channels)])
            for side in layer.side:
                sums = side.bias + side.weight.astype(float) @ p
                p = np.array([leaky(y, s) for y, s in zip(sums, side.slope, strict=True)])
        elif layer.shortcut:
            slopes = layer.shortcut_slope
            p = np.array([pooled(i, j, o % channels, slopes[o % channels]) for o in range(out)])
        for o in range(out):
            y = float(layer.scale[o]) * gate[o] * u[i, j, o] * (p[o] if layer.product else 1)
            z[i, j, o] = leaky(y + layer.shift[o] + p[o], layer.slope[o])
    return z


def naive_branched_convolution(layer, x):
    first = Convolution(
        name="first",
        stride=layer.stride,
        weight=layer.first.weight,
        bias=layer.first.bias,
        padding=layer.padding,
    )
    f = np.maximum(naive_convolution(first, x), 0)
    height, width, _ = f.shape
    narrow = np.array(
        [
            [np.maximum(matrix(layer.narrow, f[i, j]), 0) for j in range(width)]
            for i in range(height)
        ]
    )
    stride, weight = layer.second_stride, layer.widen.weight.astype(float)
    k = weight.shape[1]
    z = np.zeros((-(-height // stride), -(-width // stride), layer.channels))
    for i, j in np.ndindex(z.shape[:2]):
        wide = layer.widen.bias.astype(float)
        for a, b in np.ndindex(k, k):
            row, column = i * stride + a - k // 2, j * stride + b - k // 2
            if 0 <= row < height and 0 <= column < width:
                wide = wide + weight[:, a, b] @ narrow[row, column]
        near = f[
            max(0, i * stride - 1) : i * stride + 2, max(0, j * stride - 1) : j * stride + 2
        ].max(axis=(0, 1))
        both = np.concatenate([np.maximum(wide, 0), near])
        z[i, j] = np.maximum(matrix(layer.last, both), 0)
    return z


def matrix(layer, x):
    return layer.bias + layer.weight.astype(float) @ np.asarray(x, float)


def rounded(layer, x):
    return layer.bias + layer.scale * (layer.weight.astype(float) @ np.asarray(x, float))


def leaky(y, slope):
    return y if y >= 0 else float(slope) * y


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 3), (5, 6)])
@pytest.mark.parametrize(
    "network",
    [
        *("small", "odd", "strides", "one", "gated", "experts", "float sides", "mixture"),
        *("several", "several gated"),
    ],
)
def test_each_layer_is_the_loop(network, size):
    program = parse_program(packed.random_network(**packed.NETWORKS[network]).to_bytes())
    x = packed.random_images(shape=(2, *size, 3))
    maps = []
    for layer in program.layers:
        also = [maps[index] for index in getattr(layer, "also", ())]
        each = zip(*also, strict=True) if also else itertools.repeat(())
        expected = np.array([naive_layer(layer, *both) for both in zip(x, each, strict=False)])
        x = reference.run_layer(layer, x, also)
        maps.append(x)
        assert x.dtype == np.float32
        # Sums of at most 150 float32 of magnitude about 1, each rounded by at most 6e-8.
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)


def test_the_binary_sum_is_exact_at_the_widest():
    inputs = 4_096
    ones = np.full((1, 3, 3, inputs // 8), 255, np.uint8)
    layer = BinaryConvolution(
        name="b",
        stride=1,
        shortcut=False,
        weight=ones,
        threshold=np.zeros(inputs, np.float32),
        multiplier=np.ones(1, np.float32),
        bias=np.zeros(1, np.float32),
        slope=np.ones(1, np.float32),
    )
    x = np.ones((1, 3, 3, inputs), np.float32)
    assert reference.run_layer(layer, x)[0, 1, 1, 0] == 9 * inputs
    x[0, 0, 0, 0] = -1
    assert reference.run_layer(layer, x)[0, 1, 1, 0] == 9 * inputs - 2
    assert reference.run_layer(layer, -x)[0, 0, 0, 0] == 2 - 4 * inputs


def test_the_threshold_itself_is_plus_one():
    program = parse_program(packed.random_network(**packed.NETWORKS["one"]).to_bytes())
    assert isinstance(program.layers[1], BinaryConvolution)
    layer = dataclasses.replace(program.layers[1], shortcut=False)
    x = layer.threshold.reshape(1, 1, 1, 1)
    below = np.nextafter(x, np.float32(-np.inf))
    above = np.nextafter(x, np.float32(np.inf))
    at, under, over = (reference.run_layer(layer, one) for one in (x, below, above))
    assert at == over
    assert at != under


def test_run_stops_at_a_layer_and_splits_batches(monkeypatch):
    program = parse_program(packed.random_network(**packed.NETWORKS["odd"]).to_bytes())
    images = packed.random_images(shape=(5, 6, 7, 3))
    x = images
    for index, layer in enumerate(program.layers):
        x = reference.run_layer(layer, x)
        np.testing.assert_array_equal(reference.run(program, images, index), x)
    monkeypatch.setattr(reference, "_PIXELS_AT_ONCE", 2 * 42)
    # Another batch may add in another order, and a map's value may then cross a threshold: compare
    # only maps before the first threshold.
    np.testing.assert_allclose(
        reference.run(program, images, 0),
        reference.run_layer(program.layers[0], images),
        rtol=1e-5,
        atol=1e-5,
    )
    assert reference.run(program, images).shape == x.shape
    assert reference.run(program, images[:0]).shape == (0, 3)
    assert reference.run(program, images[:0], 1).shape == (0, 3, 4, 13)


def test_infinite_products_pass_without_a_warning():
    network = packed.random_network()
    for name in ("block0.multiplier", "block1.multiplier"):
        network.tensors[name][:] = 3e38
    program = parse_program(network.to_bytes())
    assert not np.isfinite(reference.run(program, packed.random_images())).all()
