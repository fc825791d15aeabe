"""Describes a packed file as JSON values, for `burn-engine info` and `burn info`."""

from __future__ import annotations

from typing import Any

import numpy as np

from burn_engine.format import BinaryConvolution, GatedConvolution, GlobalMean, Layer, Program


def facts_of(program: Program, num_bytes: int) -> dict[str, Any]:
    """Describe a packed file: its sizes, layers, classes, image size and origin.

    Args:
        program: The packed file.
        num_bytes: Size of the file in bytes.

    Returns:
        JSON values by name, among them `bits`, the number of binary weights, and `floats` and
        `integers`, the numbers of other constants in float32 and in 16-bit integers. A layer that
        averages several maps has `also`, the names of the layers before the last. Texts come from
        the file unchanged: make them printable before they reach a terminal.
    """
    layers = [_describe(layer) for layer in program.layers]
    for layer, facts in zip(program.layers, layers, strict=True):
        if isinstance(layer, GlobalMean) and layer.also:
            facts["also"] = [program.layers[index].name for index in layer.also]
    return {
        "file_bytes": num_bytes,
        "bits": sum(layer["bits"] for layer in layers),
        "floats": sum(layer["floats"] for layer in layers),
        "integers": sum(layer["integers"] for layer in layers),
        "layers": layers,
        "features": program.layers[program.features].channels,
        "classes": list(program.classes),
        "image": program.image._asdict() if program.image else None,
        "origin": program.origin,
    }


def _describe(layer: Layer) -> dict[str, Any]:
    tensors = layer.tensors().values()
    # The shape is [out, k, k, ⌈in / 8⌉]; padding bits do not count.
    bits = 0
    if isinstance(layer, BinaryConvolution | GatedConvolution):
        groups = layer.groups if isinstance(layer, GatedConvolution) else 1
        bits = layer.weight[..., 0].size * len(layer.threshold) // groups
    return {
        "name": layer.name,
        "kind": layer.kind,
        "channels": layer.channels,
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "bits": bits,
        "floats": sum(tensor.size for tensor in tensors if tensor.dtype == np.float32),
        "integers": sum(tensor.size for tensor in tensors if tensor.dtype == np.int16),
    }
