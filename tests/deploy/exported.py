"""Networks to export as C, and their code compiled and run on this computer."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import burn_engine
from burn.data.base import Split
from burn.data.builtin.digits import Digits
from burn.deploy.c.export import ExportedC, export_c
from burn.deploy.layout import Array

CODE = Path(__file__).parent / "c"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
VALUES = {"float": np.float32, "int32": np.int32, "int16": np.int16}
SCORES = {"float": np.float32, "int32": np.int32, "int16": np.int32}


def need(*programs: str) -> None:
    """Skip the test where a program is missing."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"without {program}")


def call(*command: object, **settings: Any) -> str:
    """Run a command that must not fail, and return what it printed."""
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, **settings)
    assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


# (kernel, channels, stride) of the first layer; (kernel, channels, stride, shortcut) of the binary
# ones, or (kernel, channels, stride, groups, product) where they have a gate; outputs of the linear
# ones, and whether the last one is a classifier; side of the images.
SHAPES: dict[str, tuple[Any, ...]] = {
    "smallest": ((1, 1, 1), [(1, 1, 1, False)], [], False, 8),
    "all kinds of layers": (
        (5, 3, 2),
        [(3, 6, 1, True), (1, 6, 2, True), (3, 12, 2, False), (1, 12, 1, True), (3, 36, 2, True)],
        [7, 9, 4], True, 23,
    ),
    "whole words": (
        (7, 32, 2), [(3, 32, 1, True), (1, 64, 1, True), (3, 64, 2, True)], [5], True, 17
    ),
    "a pixel of many words": ((3, 160, 2), [(3, 160, 1, False), (1, 480, 2, True)], [], False, 9),
    "no shortcuts, large maps": (
        (3, 4, 1), [(1, 9, 2, False), (3, 5, 1, False), (3, 40, 2, False), (1, 3, 1, False)],
        [6], False, 30,
    ),
}  # fmt: skip


GATED: dict[str, tuple[Any, ...]] = {
    "between others": (
        (5, 6, 2),
        [(3, 6, 1, 1, True), (1, 12, 1, 2, False), (3, 12, 2, True), (3, 36, 2, 1, True)],
        [7, 4], True, 23,
    ),
    "first and last": ((1, 4, 1), [(1, 12, 2, 3, True), (3, 24, 1, 2, False)], [], False, 9),
}  # fmt: skip


def random_file(
    path: Path, shape: tuple[Any, ...], seed: int = 0, last: tuple[Array, Array] | None = None
) -> Path:
    """Write a packed file with random constants, whose maps stay of the size of their thresholds.

    `last` is the weight and the bias of the last linear layer.
    """
    random = np.random.default_rng(seed)

    def floats(*size: int, scale: float = 1.0) -> Array:
        return (scale * random.standard_normal(size)).astype(np.float32)

    (kernel, channels, stride), binary, linear, classifier, side = shape
    tensors = {
        "stem.weight": floats(channels, kernel, kernel, 3, scale=1 / kernel),
        "stem.bias": floats(channels),
        "stem.padding": floats(3),
    }
    layers: list[dict[str, Any]] = [{"kind": "convolution", "name": "stem", "stride": stride}]
    for index, (kernel, out, stride, *gate) in enumerate(binary):
        name = f"b{index}"
        if len(gate) == 2:
            layer, own = _gated(random, kernel, channels, out, *gate)
            tensors |= {f"{name}.{key}": value for key, value in own.items()}
            layers.append({**layer, "name": name, "stride": stride})
            channels = out
            continue
        (shortcut,) = gate
        bits = random.integers(0, 2, (out, kernel, kernel, channels), dtype=np.uint8)
        tensors |= {
            f"{name}.weight": np.packbits(bits, axis=-1, bitorder="little"),
            f"{name}.threshold": floats(channels, scale=0.5),
            f"{name}.multiplier": floats(out, scale=1 / (kernel * channels**0.5)),
            f"{name}.bias": floats(out, scale=0.5),
            f"{name}.slope": floats(out),
        }
        tensors[f"{name}.threshold"][::5] *= 1e9  # beyond all values
        tensors[f"{name}.slope"][::7] = 0
        layers.append(
            {"kind": "binary_convolution", "name": name, "stride": stride, "shortcut": shortcut}
        )
        channels = out
    layers.append({"kind": "global_mean", "name": "mean"})
    tensors["mean.bias"] = floats(channels)
    for index, out in enumerate(linear):
        name = f"l{index}"
        tensors[f"{name}.weight"] = floats(out, channels, scale=channels**-0.5)
        tensors[f"{name}.bias"] = floats(out)
        layers.append({"kind": "linear", "name": name, "relu": index < len(linear) - 1})
        channels = out
    if last:
        tensors[f"l{len(linear) - 1}.weight"], tensors[f"l{len(linear) - 1}.bias"] = last
    names = ["image", *(layer["name"] for layer in layers)]
    for layer, before in zip(layers, names, strict=False):
        layer["input"] = before
    program: dict[str, Any] = {
        "format": 2 if any(layer["kind"] == "gated_convolution" for layer in layers) else 1,
        "layers": layers,
        "features": names[-2 if classifier else -1],
        "image": {"resize": side, "size": side},
    }
    if classifier:
        program["classes"] = [f"class {i}" for i in range(channels)]
    save_file(tensors, path, metadata={"bnn": json.dumps(program)})
    return path


def _gated(
    random: np.random.Generator, kernel: int, channels: int, out: int, groups: int, product: bool
) -> tuple[dict[str, Any], dict[str, Array]]:
    """A layer with a gate, and its tensors; the gate's factors are between 0.1 and 0.9."""

    def floats(*size: int, scale: float = 1.0) -> Array:
        return (scale * random.standard_normal(size)).astype(np.float32)

    def integers(*size: int) -> Array:
        return random.integers(-(2**15) + 1, 2**15, size, dtype=np.int16)

    hidden = out // 2 + 1
    bits = random.integers(0, 2, (out, kernel, kernel, channels), dtype=np.uint8)
    tensors = {
        "weight": np.packbits(bits, axis=-1, bitorder="little"),
        "threshold": floats(groups * channels, scale=0.5),
        "multiplier": floats(out, scale=1 / (kernel * channels**0.5)),
        **{key: floats(out) for key in ("inner_slope", "scale", "slope")},
        **{key: floats(out, scale=0.5) for key in ("bias", "shift")},
        "mix": random.random(out, np.float32),
        "gate.down.weight": integers(hidden, out),
        "gate.down.scale": floats(hidden, scale=2**-15 * out**-0.5),
        "gate.down.bias": floats(hidden),
        "gate.up.weight": integers(out, hidden),
        "gate.up.scale": floats(out, scale=2**-15 * hidden**-0.5),
        "gate.up.bias": floats(out),
        "shortcut_slope": floats(channels),
    }
    described = {
        "kind": "gated_convolution", "repeat": groups, "groups": groups, "experts": 1,
        "gate": "mixed", "product": product, "shortcut": True, "side": 0,
    }  # fmt: skip
    return described, tensors


# Few layers: in many, a random network loses the image.
_DIGITS = (
    (3, 16, 1),
    [(3, 16, 2, True), (1, 32, 1, True), (3, 32, 2, True), (1, 128, 1, True), (3, 128, 2, True)],
)
_GATED_DIGITS = ((3, 16, 2), [(3, 16, 1, 1, False), (1, 32, 1, 2, False), (3, 64, 2, 1, True)])


def digits(split: Split, count: int) -> tuple[Array, Array]:
    """The first digits and their labels."""
    source = Digits(split)
    assert source.labels is not None
    images = np.stack([source.read(i).permute(1, 2, 0).numpy() for i in range(count)])
    return np.ascontiguousarray(images), np.array([int(source.labels[i]) for i in range(count)])


def digits_file(folder: Path, *, gates: bool = False) -> Path:
    """Write a random network whose last layer is a classifier of digits, by least squares."""
    layers = _GATED_DIGITS if gates else _DIGITS
    images, labels = digits("train", 1000)
    seen = random_file(folder / "features.bnn", (*layers, [], False, 32))
    features = np.asarray(burn_engine.load(seen)(images), np.float64)
    mean = features.mean(axis=0)
    gram = (features - mean).T @ (features - mean)
    targets = np.eye(10)[labels] - 0.1
    ridge = np.trace(gram) / 1e4 * np.eye(len(gram))
    weight = np.linalg.solve(gram + ridge, (features - mean).T @ targets).T
    last = (np.ascontiguousarray(weight, np.float32), (-weight @ mean).astype(np.float32))
    return random_file(folder / "digits.bnn", (*layers, [10], True, 32), last=last)


def noise(side: int, count: int = 2) -> Array:
    """Images that reach all bytes: noise, and then black and white."""
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (count + 2, side, side, 3), dtype=np.uint8)
    images[-2], images[-1] = 0, 255
    return images


@dataclass(frozen=True)
class Host:
    """An exported network, compiled for this computer."""

    exported: ExportedC
    epilogue: str
    program: Path

    def run(self, images: Array) -> tuple[Array, Array]:
        """The class of each image, and the scores as the code gives them."""
        folder = self.program.parent
        (folder / "images").write_bytes(images.tobytes())
        call(self.program, folder / "images", folder / "scores")
        numbers = np.fromfile(folder / "scores", np.int32).reshape(len(images), -1)
        return numbers[:, 0], np.ascontiguousarray(numbers[:, 1:]).view(SCORES[self.epilogue])

    def maps(self, images: Array, layers: int) -> list[Array]:
        """Every map (n, h, w, channels) as it is stored; rows that nobody needs stay 0."""
        folder = self.program.parent
        (folder / "rows").unlink(missing_ok=True)
        (folder / "images").write_bytes(images.tobytes())
        call(self.program, folder / "images", folder / "scores", folder / "rows")
        data = (folder / "rows").read_bytes()
        dtype = np.dtype(VALUES[self.epilogue])
        found: list[list[dict[int, Array]]] = [[] for _ in range(layers)]
        at = 0
        while at < len(data):
            layer, row, size = struct.unpack_from("<3I", data, at)
            if row == 0:
                found[layer].append({})
            else:
                assert row - 1 in found[layer][-1]  # in order, each once
            found[layer][-1][row] = np.frombuffer(data, dtype, size // dtype.itemsize, at + 12)
            at += 12 + size
        return [_map(rows) for rows in found]


def _map(images: list[dict[int, Array]]) -> Array:
    return np.stack([np.stack([rows[row] for row in sorted(rows)]) for rows in images])


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def host(
    packed: Path, folder: Path, epilogue: str, *, options: tuple[str, ...] = ("-O1", *SANITIZERS)
) -> Host:
    """Export a packed file and compile it with every warning an error."""
    need("gcc")
    exported = export_c(packed, folder / "code", name="net", epilogue=epilogue)
    program = folder / "host"
    call(
        "gcc", *STRICT, *options,
        "-include", CODE / "trace.h", f"-I{folder / 'code'}", f"-I{CODE}",
        exported.source, CODE / "host.c", "-o", program,
    )  # fmt: skip
    return Host(exported, epilogue, program)
