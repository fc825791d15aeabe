"""What a packed file consists of, as JSON values: for `burn-engine info` and `burn info`."""

from __future__ import annotations

from typing import Any

import numpy as np

from burn_engine.format import BinaryConvolution, Layer, Program


def facts_of(program: Program, num_bytes: int) -> dict[str, Any]:
    """Sizes, layers, classes, image and origin of a packed file of `num_bytes` bytes.

    bits: binary weights; floats: all other constants. Texts are the file's own: make them printable
    before they reach a terminal.
    """
    layers = [_describe(layer) for layer in program.layers]
    return {
        "file_bytes": num_bytes,
        "bits": sum(layer["bits"] for layer in layers),
        "floats": sum(layer["floats"] for layer in layers),
        "layers": layers,
        "features": program.layers[program.features].channels,
        "classes": list(program.classes),
        "image": program.image._asdict() if program.image else None,
        "origin": program.origin,
    }


def _describe(layer: Layer) -> dict[str, Any]:
    tensors = layer.tensors().values()
    # of the shape [out, k, k, ⌈in / 8⌉] only the bits in front of the padding count
    bits = (
        layer.weight[..., 0].size * len(layer.threshold)
        if isinstance(layer, BinaryConvolution)
        else 0
    )
    return {
        "name": layer.name,
        "kind": layer.kind,
        "channels": layer.channels,
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "bits": bits,
        "floats": sum(tensor.size for tensor in tensors if tensor.dtype == np.float32),
    }
