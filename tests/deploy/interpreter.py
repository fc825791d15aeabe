"""The formulas of docs/project/pack-format.md in plain NumPy, the slow twin of folded layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from burn.deploy.layout import Array
from burn_engine.format import BinaryConvolution, Convolution, GlobalMean, Layer, Linear


def read(path: Path) -> tuple[dict[str, Any], list[Layer]]:
    """The program of a packed file, and its layers with the tensors in them."""
    with safe_open(path, framework="numpy") as file:
        program = json.loads(file.metadata()["bnn"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    layers: list[Layer] = []
    before, taken = "image", set()
    kinds = {
        "convolution": (Convolution, ("weight", "bias", "padding")),
        "binary_convolution": (
            BinaryConvolution, ("weight", "threshold", "multiplier", "bias", "slope")
        ),
        "global_mean": (GlobalMean, ("bias",)),
        "linear": (Linear, ("weight", "bias")),
    }  # fmt: skip
    for described in program["layers"]:
        settings = dict(described)
        assert settings.pop("input") == before
        before = settings["name"]
        kind, names = kinds[settings.pop("kind")]
        if settings.pop("scaled", False):
            names = (*names, "scale")
        own = {name: tensors[f"{before}.{name}"] for name in names}
        taken |= {f"{before}.{name}" for name in names}
        if kind is BinaryConvolution:
            bits = np.unpackbits(own["weight"], axis=-1, bitorder="little")
            channels = len(own["threshold"])
            assert not bits[..., channels:].any()
            own["weight"] = bits[..., :channels].astype(np.float32) * 2 - 1
        layers.append(kind(**settings, **own))
    assert taken == set(tensors)
    return program, layers


def run(layers: Sequence[Layer], images: Array) -> dict[str, Array]:
    """Every layer's output on images (n, h, w, 3) on the scale 0 to 1, in their type."""
    outputs: dict[str, Array] = {}
    x = images
    for layer in layers:
        x = run_layer(layer, x)[1]
        outputs[layer.name] = x
    return outputs


def run_layer(layer: Layer, x: Array) -> tuple[Array, Array]:
    """What comes before the last function of a layer (PReLU, ReLU or none), and behind it."""
    if isinstance(layer, Convolution):
        y = convolve(x, layer.weight, layer.stride, layer.padding) + layer.bias
        return y, y
    if isinstance(layer, BinaryConvolution):
        signs = np.where(x >= layer.threshold, 1.0, -1.0)
        y = layer.multiplier * convolve(signs, layer.weight, layer.stride, 0.0) + layer.bias
        if layer.shortcut:
            p = pooled(x) if layer.stride == 2 else x
            y = y + np.tile(p, y.shape[-1] // p.shape[-1])
        return y, np.where(y >= 0, y, layer.slope * y)
    if isinstance(layer, GlobalMean):
        y = x.mean(axis=(1, 2)) * (1 if layer.scale is None else layer.scale) + layer.bias
        return y, y
    assert isinstance(layer, Linear)
    y = x @ layer.weight.T + layer.bias
    return y, np.maximum(y, 0) if layer.relu else y


def convolve(x: Array, weight: Array, stride: int, outside: Array | float) -> Array:
    """weight: (out, k, k, in)."""
    n, h, w, c = x.shape
    k = weight.shape[1]
    half = k // 2
    framed = np.empty((n, h + 2 * half, w + 2 * half, c), x.dtype)
    framed[:] = outside
    framed[:, half : half + h, half : half + w] = x
    rows, columns = -(-h // stride), -(-w // stride)
    total = np.zeros((n, rows, columns, len(weight)), x.dtype)
    for a in range(k):
        for b in range(k):
            seen = framed[:, a : a + h : stride, b : b + w : stride]
            total += seen @ weight[:, a, b].T.astype(x.dtype)
    return total


def pooled(x: Array) -> Array:
    """The mean of each 2×2 pixels that exist."""
    rows, columns = -(-x.shape[1] // 2), -(-x.shape[2] // 2)
    return np.stack(
        [
            np.stack(
                [
                    x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean(axis=(1, 2))
                    for j in range(columns)
                ],
                axis=1,
            )
            for i in range(rows)
        ],
        axis=1,
    )
