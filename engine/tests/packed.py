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
        """Return the header and the data; larger numbers come first, so that all are aligned."""
        header: dict[str, Any] = {"__metadata__": {"bnn": json.dumps(self.program)}}
        data = b""
        for name, array in sorted(self.tensors.items(), key=lambda item: -item[1].itemsize):
            begin = len(data)
            data += array.tobytes()
            header[name] = {
                "dtype": {"f": "F32", "u": "U8", "i": "I16"}[array.dtype.kind],
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
    scaled=None,
    also=(),
):
    """Return a random network.

    Args:
        seed: Random seed.
        first: Channels, kernel and stride of the convolution; or the keywords of `branched`.
        blocks: Channels, kernel, stride and shortcut of each binary_convolution; or the keywords of
            `gated`.
        linears: Outputs of the linear layers, with ReLU, of which the last gives the features.
        num_classes: Outputs of the classifier; 0 for none.
        image: (resize, size) in pixels; None for none.
        scaled: Whether a file of format 3 to 5 has a scale after the mean; None for an older one.
        also: Indices of the blocks whose means follow the last one's, in a file of format 5.
    """
    random = np.random.default_rng(seed)
    layers, tensors = [], {}

    def add(kind, name, fields, arrays):
        before = layers[-1]["name"] if layers else "image"
        layers.append({"kind": kind, "name": name, "input": before, **fields})
        for key, array in arrays.items():
            dtype = np.float32 if array.dtype.kind == "f" else array.dtype
            tensors[f"{name}.{key}"] = array.astype(dtype)

    if isinstance(first, dict):
        width, fields, arrays = branched(random, **first)
        add("branched_convolution", "stem", fields, arrays)
    else:
        width, kernel, stride = first
        weight = random.normal(size=(width, kernel, kernel, 3)) / kernel
        bias, padding = random.normal(size=width), random.random(3)
        arrays = {"weight": weight, "bias": bias, "padding": padding}
        add("convolution", "stem", {"stride": stride}, arrays)
    for index, block in enumerate(blocks):
        if isinstance(block, dict):
            out, fields, arrays = gated(random, width, **block)
            add("gated_convolution", f"block{index}", fields, arrays)
            width = out
            continue
        out, kernel, stride, shortcut = block
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
    for index in also:
        width += tensors[f"block{index}.slope"].size
    constants = {"bias": random.normal(size=width)}
    if scaled:
        constants["scale"] = random.normal(size=width)
    fields = {} if scaled is None else {"scaled": scaled}
    if also:
        fields = {"scaled": bool(scaled), "also": [f"block{index}" for index in also]}
    add("global_mean", "pool", fields, constants)
    new = {"gated_convolution", "branched_convolution"} & {layer["kind"] for layer in layers}
    format = 3 if scaled is not None else 2 if new else 1
    if any("float_sides" in block for block in blocks if isinstance(block, dict)):
        format = 4
    if also:
        format = 5
    program = {"format": format, "layers": layers}
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


def branched(random, out, kernel=3, stride=2, second_stride=2, widths=(6, 5, 7), widen=3):
    """Return channels, fields and tensors of a random branched_convolution.

    Args:
        random: Generator of random numbers.
        out: Channels of the output.
        kernel: Kernel of the first convolution.
        stride: Its stride.
        second_stride: Stride of both branches.
        widths: Outputs of `first`, `narrow` and `widen`.
        widen: Kernel of `widen`.
    """
    a, b, c = widths
    shapes = {
        "first": (a, kernel, kernel, 3),
        "narrow": (b, a),
        "widen": (c, widen, widen, b),
        "last": (out, c + a),
    }
    arrays = {"padding": random.random(3)}
    for name, shape in shapes.items():
        arrays[f"{name}.weight"] = random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        arrays[f"{name}.bias"] = random.normal(size=shape[0]) / 2
    return out, {"stride": stride, "second_stride": second_stride}, arrays


def gated(
    random,
    width,
    out,
    kernel=3,
    stride=1,
    repeat=1,
    groups=1,
    experts=1,
    gate="mixed",
    product=False,
    shortcut=True,
    side=(),
    float_sides=False,
    hidden=3,
    slopes=True,
):
    """Return channels, fields and tensors of a random gated_convolution.

    Args:
        random: Generator of random numbers.
        width: Number of inputs.
        out: Number of outputs.
        kernel: 1 or 3.
        stride: 1 or 2.
        repeat: How many times the inputs are read.
        groups: Groups of channels.
        experts: Number of weights.
        gate: none, input or mixed.
        product: Whether the output is multiplied by the shortcut.
        shortcut: Whether there is one.
        side: Outputs of the shortcut's convolutions.
        float_sides: Whether their weights are float32, as in format 4, and not integers.
        hidden: Values inside the gate.
        slopes: Whether the slopes of the shortcut and of the output are random, or else 1.
    """
    used = repeat * width // groups
    bits = random.integers(0, 2, (experts * out, kernel, kernel, used))
    arrays = {
        "weight": np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little"),
        "threshold": random.normal(size=repeat * width) / 2,
        "multiplier": random.normal(size=experts * out) / np.sqrt(kernel * kernel * used),
        "scale": random.normal(size=out),
    }
    for name in ("bias", "inner_slope", "shift", "slope"):
        arrays[name] = random.normal(size=out) / 2

    def matrix(name, outputs, inputs):
        arrays[f"{name}.weight"] = random.normal(size=(outputs, inputs)) / np.sqrt(inputs)
        arrays[f"{name}.bias"] = random.normal(size=outputs) / 2

    if experts > 1:
        matrix("choice", experts, width)

    def rounded(name, outputs, inputs):
        arrays[f"{name}.weight"] = random.integers(-9999, 9999, (outputs, inputs)).astype("<i2")
        arrays[f"{name}.scale"] = random.random(outputs) / 5_000 / np.sqrt(inputs)
        arrays[f"{name}.bias"] = random.normal(size=outputs) / 2

    if gate != "none":
        rounded("gate.down", hidden, width if gate == "input" else out)
        rounded("gate.up", out, hidden)
    if gate == "mixed":
        arrays["mix"] = random.random(out)
    if shortcut and not side:
        arrays["shortcut_slope"] = random.normal(size=width) / 2
    if not slopes:
        arrays |= {name: np.ones_like(arrays[name]) for name in ("slope", "shortcut_slope")}
    before = width
    for index, after in enumerate(side):
        (matrix if float_sides else rounded)(f"side.{index}", after, before)
        arrays[f"side.{index}.slope"] = random.normal(size=after) / 2
        before = after
    fields = {
        **{"stride": stride, "repeat": repeat, "groups": groups, "experts": experts},
        **{"gate": gate, "product": product, "shortcut": shortcut, "side": len(side)},
    }
    return out, fields, arrays


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
    "scaled": {"linears": (9,), "num_classes": 3, "scaled": True},
    "not scaled": {"blocks": ({"out": 16}, (16, 1, 2, True)), "scaled": False},
    # As in BNext: gates of a mix, the product with the shortcut, twice the channels.
    "gated": {
        "first": (16, 3, 2),
        "blocks": (
            {"out": 16, "product": True},
            {"out": 32, "kernel": 1, "repeat": 2, "groups": 2},
            {"out": 32, "stride": 2, "product": True},
            {"out": 64, "kernel": 1, "repeat": 2, "groups": 2},
        ),
        "num_classes": 3,
    },
    # BNext's layers without PReLUs of the shortcut.
    "no slopes": {
        "first": (16, 3, 1),
        "blocks": (
            {"out": 16, "stride": 2, "product": True, "slopes": False},
            {"out": 32, "kernel": 1, "repeat": 2, "groups": 2, "slopes": False},
            {"out": 32, "stride": 2, "slopes": False},
        ),
    },
    # As in expert networks: a stem of branches, groups, experts, shortcuts with convolutions.
    "experts": {
        "first": {"out": 32},
        "blocks": (
            {"out": 64, "groups": 2, "experts": 3, "gate": "input", "side": (5, 64)},
            {"out": 64, "groups": 4, "experts": 2, "gate": "input"},
            {"out": 64, "kernel": 1, "experts": 4, "gate": "input"},
            {"out": 96, "stride": 2, "groups": 2, "experts": 2, "gate": "none", "side": (96,)},
        ),
    },
    "float sides": {
        "first": {"out": 32},
        "blocks": (
            {
                **{"out": 64, "groups": 2, "experts": 3, "gate": "input"},
                **{"side": (5, 64), "float_sides": True},
            },
            {"out": 99, "stride": 2, "gate": "none", "side": (99,), "float_sides": True},
        ),
        "scaled": False,
    },
    # Means of several maps: of one that a run of 1×1 convolutions would pass on, of a strided one.
    "several": {
        "first": (16, 3, 1),
        "blocks": (
            (16, 3, 1, True),
            (32, 1, 1, True),
            (33, 1, 1, False),
            (33, 3, 2, True),
            (66, 1, 1, True),
            (66, 3, 1, True),
        ),
        "also": (0, 1, 3, 4),
        "scaled": True,
        "num_classes": 3,
    },
    "several gated": {
        "first": {"out": 8},
        "blocks": (
            {"out": 8, "gate": "input"},
            (13, 3, 1, False),
            {"out": 26, "kernel": 1, "experts": 2, "gate": "mixed"},
            {"out": 26, "stride": 2, "gate": "none", "side": (26,), "float_sides": True},
            {"out": 26, "product": True},
        ),
        "also": (0, 1, 2, 3),
        "linears": (6,),
    },
    # Odd widths in everything, gated and plain layers by turns.
    "mixture": {
        "first": {"out": 5, "kernel": 5, "stride": 1, "second_stride": 1, "widen": 1},
        "blocks": (
            {"out": 15, "gate": "mixed", "hidden": 1, "repeat": 3, "groups": 3},
            (15, 3, 2, True),
            {"out": 9, "groups": 3, "experts": 2, "shortcut": False, "gate": "none"},
            (9, 1, 1, True),
            {"out": 27, "stride": 2, "product": True, "side": (4, 27), "gate": "input"},
            {"out": 27, "kernel": 1, "shortcut": False, "gate": "input"},
        ),
        "linears": (6,),
    },
}


def random_images(seed=0, shape=(2, 11, 14, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
