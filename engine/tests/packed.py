"""Builds packed files for the tests: random valid ones, and malformed ones of every kind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Packed:
    """The parts of a packed file, which a test changes before `to_bytes`."""

    program: dict
    tensors: dict

    def header(self):
        """Return the header and the data; F32 tensors come first, so that they are aligned."""
        header: dict[str, Any] = {"__metadata__": {"bnn": json.dumps(self.program)}}
        data = b""
        for name, array in sorted(self.tensors.items(), key=lambda item: item[1].dtype != "<f4"):
            begin = len(data)
            data += array.tobytes()
            header[name] = {
                "dtype": "F32" if array.dtype == np.float32 else "U8",
                "shape": list(array.shape),
                "data_offsets": [begin, len(data)],
            }
        return header, data

    def to_bytes(self):
        return raw(*self.header())

    def layer(self, name):
        return next(layer for layer in self.program["layers"] if layer["name"] == name)


def raw(header, data, length=None):
    """Return the bytes of a file.

    Args:
        header: Text, bytes, or an object that is written as JSON.
        data: The bytes after the header.
        length: Length of the header that the file states; None for the true one.
    """
    if isinstance(header, dict | list):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode()
        header += b" " * (-len(header) % 8)
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def random_network(
    seed=0,
    *,
    first=(8, 3, 2),
    blocks=((16, 3, 1, True), (16, 1, 2, True)),
    linears=(),
    num_classes=0,
    image=(20, 16),
):
    """Return a random network.

    Args:
        seed: Random seed.
        first: Channels, kernel and stride of the convolution.
        blocks: Channels, kernel, stride and shortcut of each binary_convolution.
        linears: Outputs of the linear layers, with ReLU, of which the last gives the features.
        num_classes: Outputs of the classifier; 0 for none.
        image: (resize, size) in pixels; None for none.
    """
    random = np.random.default_rng(seed)
    layers, tensors = [], {}

    def add(kind, name, fields, arrays):
        before = layers[-1]["name"] if layers else "image"
        layers.append({"kind": kind, "name": name, "input": before, **fields})
        for key, array in arrays.items():
            dtype = np.uint8 if array.dtype == np.uint8 else np.float32
            tensors[f"{name}.{key}"] = array.astype(dtype)

    width, kernel, stride = first
    weight = random.normal(size=(width, kernel, kernel, 3)) / kernel
    bias, padding = random.normal(size=width), random.random(3)
    arrays = {"weight": weight, "bias": bias, "padding": padding}
    add("convolution", "stem", {"stride": stride}, arrays)
    for index, (out, kernel, stride, shortcut) in enumerate(blocks):
        bits = random.integers(0, 2, (out, kernel, kernel, width))
        arrays = {
            "weight": np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little"),
            "threshold": random.normal(size=width) / 2,
            "multiplier": random.normal(size=out) / np.sqrt(kernel * kernel * width),
            "bias": random.normal(size=out) / 2,
            "slope": random.normal(size=out) / 2,
        }
        fields = {"stride": stride, "shortcut": shortcut}
        add("binary_convolution", f"block{index}", fields, arrays)
        width = out
    add("global_mean", "pool", {}, {"bias": random.normal(size=width)})
    program = {"format": 1, "layers": layers}
    outputs = [*linears, num_classes] if num_classes else list(linears)
    for index, out in enumerate(outputs):
        is_classifier = bool(num_classes) and index == len(outputs) - 1
        name = "classifier" if is_classifier else f"linear{index}"
        weight = random.normal(size=(out, width)) / np.sqrt(width)
        arrays = {"weight": weight, "bias": random.normal(size=out)}
        add("linear", name, {"relu": not is_classifier}, arrays)
        width = out
    program["features"] = layers[-2 if num_classes else -1]["name"]
    if num_classes:
        program["classes"] = [f"class {index}" for index in range(num_classes)]
    if image:
        program["image"] = {"resize": image[0], "size": image[1]}
    program["origin"] = {"recipe": "test"}
    return Packed(program, tensors)


# Odd widths, every kernel, both strides, with and without shortcut and head.
NETWORKS = {
    "small": {"num_classes": 4},
    "odd": {
        "first": (5, 7, 2),
        "blocks": ((13, 3, 1, False), (13, 3, 1, True), (39, 1, 1, True), (7, 3, 2, False)),
        "linears": (9,),
        "num_classes": 3,
    },
    "strides": {
        "first": (3, 5, 1),
        "blocks": ((6, 3, 2, True), (12, 1, 2, True), (24, 3, 2, True), (24, 3, 2, False)),
        "linears": (10, 6),
    },
    "wide": {
        "first": (64, 1, 2),
        "blocks": ((72, 3, 1, False), (144, 1, 1, True), (144, 3, 2, True)),
        "image": None,
    },
    "one": {"first": (1, 1, 1), "blocks": ((1, 1, 1, True),)},
}


def random_images(seed=0, shape=(2, 11, 14, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
