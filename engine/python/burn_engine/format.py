"""Reads a packed file and checks every rule of docs/project/pack-format.md."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Container
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burn_engine.errors import ModelError, in_file
from burn_engine.strict_json import parse_json, short

FORMAT = 1
MAX_FILE_BYTES = 2**30
MAX_HEADER_BYTES = 10_000_000
MAX_LAYERS = 1_000
MAX_CHANNELS = 4_096
MAX_OUTPUTS = 1_000_000
MAX_IMAGE_SIDE = 4_096

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Layer:
    """A layer of any kind. docs/project/pack-format.md has the formulas.

    Attributes:
        name: name, unique in its program.
        bias: float32 (channels,).
    """

    kind: ClassVar[str]
    name: str
    bias: Floats

    @property
    def channels(self) -> int:
        """Number of channels of the output."""
        return len(self.bias)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the layer's constants by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Convolution(Layer):
    """Float convolution of the image, the first layer.

    Attributes:
        stride: 1 or 2.
        weight: float32 (channels, k, k, 3), k in 1, 3, 5, 7.
        padding: float32 (3,), the colour outside the image.
    """

    kind: ClassVar[str] = "convolution"
    stride: int
    weight: Floats
    padding: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class BinaryConvolution(Layer):
    """Binary convolution with a threshold before and multiplier, bias, shortcut, PReLU after it.

    Attributes:
        stride: 1 or 2.
        shortcut: whether the input is added to the output before the slope.
        weight: uint8 (channels, k, k, ⌈inputs / 8⌉), k in 1, 3; a bit 1 means +1, a bit 0 means
            -1, and the least significant bit is the first input.
        threshold: float32 (inputs,); the sign of an input is +1 where it is at least this.
        multiplier: float32 (channels,), by which the binary sum is multiplied.
        slope: float32 (channels,), by which negative outputs are multiplied.
    """

    kind: ClassVar[str] = "binary_convolution"
    stride: int
    shortcut: bool
    weight: NDArray[np.uint8]
    threshold: Floats
    multiplier: Floats
    slope: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class GlobalMean(Layer):
    """Mean over all pixels, plus a bias."""

    kind: ClassVar[str] = "global_mean"


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear(Layer):
    """Linear layer: a matrix product, plus a bias.

    Attributes:
        relu: whether negative outputs become 0.
        weight: float32 (channels, inputs).
    """

    kind: ClassVar[str] = "linear"
    relu: bool
    weight: Floats


class ImageSize(NamedTuple):
    """The size to which a photograph is resized, and that of the square then cut out of its centre.

    Attributes:
        resize: length of the short side after resizing, in pixels.
        size: side of the square, in pixels.
    """

    resize: int
    size: int


@dataclass(frozen=True, eq=False)
class Program:
    """The content of a packed file.

    Attributes:
        layers: layers in the order in which they run.
        features: index of the layer whose output is the features.
        classes: names of the last layer's outputs; empty if it is not a classifier.
        image: how a photograph becomes an input; None if the file does not say.
        origin: description, for people, of what was packed; None if the file does not say.
    """

    layers: tuple[Layer, ...]
    features: int
    classes: tuple[str, ...]
    image: ImageSize | None
    origin: dict[str, Any] | None


def read_program(path: str | os.PathLike[str]) -> Program:
    """Read and check a packed file.

    Raises:
        ModelError: The file breaks a rule of the format.
        OSError: The file cannot be read.
    """
    with in_file(path):
        return parse_program(read_bytes(path))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a whole file, once.

    Raises:
        ModelError: The file is too long, or is not a regular file but a pipe or a folder.
        OSError: The file cannot be read.
    """
    if not stat.S_ISREG(Path(path).stat().st_mode):  # before opening: a pipe would block
        raise ModelError("not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise ModelError(f"{size} bytes long; a packed file has at most {MAX_FILE_BYTES}")
        data = file.read(size + 1)
    if len(data) != size:
        raise ModelError("its length changed while it was read")
    return data


def parse_program(data: bytes) -> Program:
    """Check the bytes of a packed file.

    Returns:
        The program, whose arrays are read-only views of the bytes.

    Raises:
        ModelError: The bytes break a rule of the format.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ModelError(f"{len(data)} bytes long; a packed file has at most {MAX_FILE_BYTES}")
    header, start = _read_header(data)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict):
        raise ModelError("header: there is no __metadata__ object, so this is not a packed network")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise ModelError(f"header: __metadata__ {short(key)} is {short(value)}, not a string")
    if "bnn" not in metadata:
        raise ModelError("header: __metadata__ has no 'bnn', so this is not a packed network")
    program = parse_json(metadata["bnn"], "program")
    _check_format(program)  # first, because another format may have other keys and tensors
    return _parse_program(program, _Tensors(data, start, header))


def _read_header(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the header and the position of the first byte of data."""
    if len(data) < 8:
        raise ModelError(f"{len(data)} bytes long: too short for the header's length")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise ModelError(
            f"not a packed file: the header's length {length} is not in 2 … {MAX_HEADER_BYTES}"
        )
    if length > len(data) - 8:
        raise ModelError(f"the header's length {length} reaches past the end of the file")
    try:
        text = data[8 : 8 + length].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"header: not UTF-8 at byte {error.start}") from None
    header = parse_json(text, "header")
    if not isinstance(header, dict):
        raise ModelError("header: not an object")
    return header, 8 + length


class _Entry(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Tensors:
    """The tensors that the header lists; each must be taken exactly once."""

    def __init__(self, data: bytes, start: int, header: dict[str, Any]) -> None:
        self._data = data
        self._start = start
        self._entries = {name: _parse_entry(name, value) for name, value in header.items()}
        position = 0
        in_order = sorted(self._entries.items(), key=lambda item: item[1].begin)
        for name, entry in in_order:
            if entry.begin != position:
                problem = "a gap before it" if entry.begin > position else "it overlaps another"
                raise ModelError(
                    f"tensor {short(name)} begins at {entry.begin}, not {position}: {problem}"
                )
            if entry.dtype == "F32" and (start + entry.begin) % 4:
                raise ModelError(
                    f"tensor {short(name)}: its position in the file, {start + entry.begin}, "
                    "is not a multiple of 4"
                )
            position = entry.end
        if position != len(data) - start:
            raise ModelError(
                f"the tensors end at {position}, but there are {len(data) - start} bytes of data"
            )

    def take(
        self, name: str, dtype: str, sizes: tuple[Container[int], ...], expected: str
    ) -> NDArray[Any]:
        """Return a tensor as an array.

        Args:
            name: Name of the tensor.
            dtype: "F32" or "U8".
            sizes: The sizes that each axis may have.
            expected: The same in words, for the error message.

        Raises:
            ModelError: The tensor is missing, has another dtype or shape, or holds a number that
                is not finite.
        """
        entry = self._entries.pop(name, None)
        if entry is None:
            raise ModelError(f"tensor {name!r} is missing")
        if entry.dtype != dtype:
            raise ModelError(f"tensor {name!r} has dtype {entry.dtype}, expected {dtype}")
        if len(entry.shape) != len(sizes) or not all(
            size in allowed for size, allowed in zip(entry.shape, sizes, strict=True)
        ):
            raise ModelError(f"tensor {name!r} has shape {list(entry.shape)}, expected {expected}")
        stored = np.dtype("<f4") if dtype == "F32" else np.dtype(np.uint8)
        count = (entry.end - entry.begin) // stored.itemsize
        array = np.frombuffer(self._data, stored, count, self._start + entry.begin)
        if dtype == "F32":
            array = array.astype(np.float32, copy=False)
            if not np.isfinite(array).all():
                raise ModelError(f"tensor {name!r} has a number that is not finite")
        return array.reshape(entry.shape)

    def floats(self, name: str, length: int) -> Floats:
        """Return a vector of F32."""
        return self.take(name, "F32", ((length,),), f"[{length}]")

    def check_all_taken(self) -> None:
        for name in self._entries:
            raise ModelError(f"tensor {short(name)} belongs to no layer")


def _parse_entry(name: str, value: Any) -> _Entry:
    where = f"tensor {short(name)}"
    _check_keys(value, where, {"dtype", "shape", "data_offsets"})
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in ("F32", "U8"):
        raise ModelError(f"{where}: dtype {short(dtype)} is neither 'F32' nor 'U8'")
    # No axis can be longer than the file, so the product below stays small.
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 4
        or not all(_is_int(size, 1, MAX_FILE_BYTES) for size in shape)
    ):
        raise ModelError(f"{where}: shape {short(shape)} is not 1 to 4 positive integers")
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(_is_int(offset, 0, MAX_FILE_BYTES) for offset in offsets)
    ):
        raise ModelError(f"{where}: data_offsets {short(offsets)} are not two positions")
    begin, end = offsets
    size = 4 if dtype == "F32" else 1
    for axis in shape:
        size *= axis
    if end - begin != size:
        raise ModelError(
            f"{where}: data_offsets {short(offsets)} hold {end - begin} bytes, "
            f"but {dtype} {shape} has {size}"
        )
    return _Entry(dtype, tuple(shape), begin, end)


def _check_format(program: Any) -> None:
    if not isinstance(program, dict):
        raise ModelError("program: not an object")
    found = program.get("format")
    if not _is_int(found, FORMAT, FORMAT):
        raise ModelError(f"program: format {short(found)}; this reader knows format {FORMAT}")


def _parse_program(program: dict[str, Any], tensors: _Tensors) -> Program:
    optional = {"classes", "image", "origin"}
    _check_keys(program, "program", {"format", "layers", "features"}, optional)
    described = program["layers"]
    if not isinstance(described, list) or not 3 <= len(described) <= MAX_LAYERS:
        count = len(described) if isinstance(described, list) else short(described)
        raise ModelError(f"program: layers is not an array of 3 to {MAX_LAYERS} (found {count})")

    layers: list[Layer] = []
    names = {"image"}
    for index, value in enumerate(described):
        layer = _parse_layer(value, index, layers[-1] if layers else None, names, tensors)
        names.add(layer.name)
        layers.append(layer)
    if not isinstance(layers[-1], GlobalMean | Linear):
        raise ModelError("program: there is no global_mean after the last binary_convolution")
    tensors.check_all_taken()

    classes = _parse_classes(program["classes"], layers) if "classes" in program else ()
    features = len(layers) - (2 if classes else 1)
    if program["features"] != layers[features].name:
        place = "last but one, because there are classes" if classes else "last one"
        raise ModelError(
            f"program: features {short(program['features'])} is not the layer "
            f"{layers[features].name!r}, the {place}"
        )
    origin = program.get("origin")
    if "origin" in program and not isinstance(origin, dict):
        raise ModelError(f"program: origin {short(origin)} is not an object")
    image = _parse_image(program["image"]) if "image" in program else None
    return Program(tuple(layers), features, classes, image, origin)


def _parse_classes(classes: Any, layers: list[Layer]) -> tuple[str, ...]:
    if not isinstance(layers[-1], Linear):
        raise ModelError("program: classes without a classifier: the last layer is not a linear")
    if not isinstance(classes, list):
        raise ModelError(f"program: classes {short(classes)} is not an array")
    for name in classes:
        if not isinstance(name, str) or not name:
            raise ModelError(f"program: class {short(name)} is not a non-empty string")
        if _CONTROL.search(name):
            raise ModelError(f"program: class {short(name)} has a control character")
    if len(classes) != layers[-1].channels:
        raise ModelError(
            f"program: {len(classes)} classes, but {layers[-1].name!r} has "
            f"{layers[-1].channels} outputs"
        )
    if len(set(classes)) != len(classes):
        raise ModelError("program: two classes have the same name")
    return tuple(classes)


def _parse_image(image: Any) -> ImageSize:
    _check_keys(image, "program: image", {"resize", "size"})
    resize, size = image["resize"], image["size"]
    if not _is_int(resize, 1, MAX_IMAGE_SIDE) or not _is_int(size, 1, resize):
        raise ModelError(
            f"program: image resize {short(resize)}, size {short(size)}: "
            f"not integers with 1 ≤ size ≤ resize ≤ {MAX_IMAGE_SIDE}"
        )
    return ImageSize(resize, size)


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"[A-Za-z0-9_.]{1,100}")
_FIELDS: dict[str, set[str]] = {
    "convolution": {"stride"},
    "binary_convolution": {"stride", "shortcut"},
    "global_mean": set(),
    "linear": {"relu"},
}
_FOLLOWS = {
    "image": ("convolution",),
    "convolution": ("binary_convolution",),
    "binary_convolution": ("binary_convolution", "global_mean"),
    "global_mean": ("linear",),
    "linear": ("linear",),
}


def _parse_layer(
    value: Any, index: int, before: Layer | None, names: set[str], tensors: _Tensors
) -> Layer:
    where = f"program: layer {index}"
    if not isinstance(value, dict):
        raise ModelError(f"{where}: {short(value)} is not an object")
    kind, name = value.get("kind"), value.get("name")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise ModelError(f"{where}: kind {short(kind)} is none of {', '.join(_FIELDS)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ModelError(f"{where}: name {short(name)} is not 1 to 100 of A-Z a-z 0-9 _ .")
    where += f" ({name})"
    if name in names:
        raise ModelError(f"{where}: the name is {'taken' if name != 'image' else 'reserved'}")
    _check_keys(value, where, {"kind", "name", "input"} | _FIELDS[kind])
    kind_before, name_before = (before.kind, before.name) if before else ("image", "image")
    if value["input"] != name_before:
        raise ModelError(
            f"{where}: input {short(value['input'])} is not the layer before it, {name_before!r}"
        )
    if kind not in _FOLLOWS[kind_before]:
        raise ModelError(
            f"{where}: {kind} cannot follow {kind_before}; expected "
            f"{' or '.join(_FOLLOWS[kind_before])}"
        )
    if "stride" in value and not _is_int(value["stride"], 1, 2):
        raise ModelError(f"{where}: stride {short(value['stride'])} is neither 1 nor 2")
    for key in ("shortcut", "relu"):
        if key in value and not isinstance(value[key], bool):
            raise ModelError(f"{where}: {key} {short(value[key])} is neither true nor false")

    if before is None:
        return _convolution(name, value["stride"], tensors)
    inputs = before.channels
    if kind == "binary_convolution":
        return _binary_convolution(name, value["stride"], value["shortcut"], inputs, tensors)
    if kind == "global_mean":
        return GlobalMean(name=name, bias=tensors.floats(f"{name}.bias", inputs))
    return _linear(name, value["relu"], inputs, tensors)


def _convolution(name: str, stride: int, tensors: _Tensors) -> Convolution:
    kernels = (1, 3, 5, 7)
    weight = tensors.take(
        f"{name}.weight",
        "F32",
        (range(1, MAX_CHANNELS + 1), kernels, kernels, (3,)),
        f"[out, k, k, 3], out in 1 … {MAX_CHANNELS}, k in 1, 3, 5, 7",
    )
    _check_square(f"{name}.weight", weight)
    return Convolution(
        name=name,
        stride=stride,
        weight=weight,
        bias=tensors.floats(f"{name}.bias", len(weight)),
        padding=tensors.floats(f"{name}.padding", 3),
    )


def _binary_convolution(
    name: str, stride: int, shortcut: bool, inputs: int, tensors: _Tensors
) -> BinaryConvolution:
    width = (inputs + 7) // 8
    weight = tensors.take(
        f"{name}.weight",
        "U8",
        (range(1, MAX_CHANNELS + 1), (1, 3), (1, 3), (width,)),
        f"[out, k, k, {width}], out in 1 … {MAX_CHANNELS}, k in 1, 3",
    )
    _check_square(f"{name}.weight", weight)
    outputs = len(weight)
    if inputs % 8 and (weight[..., -1] >> (inputs % 8)).any():
        raise ModelError(f"tensor '{name}.weight': bits after the last channel are not 0")
    if shortcut and outputs % inputs:
        raise ModelError(
            f"layer {name!r}: a shortcut from {inputs} to {outputs} channels, "
            "which is not a multiple"
        )
    return BinaryConvolution(
        name=name,
        stride=stride,
        shortcut=shortcut,
        weight=weight,
        threshold=tensors.floats(f"{name}.threshold", inputs),
        multiplier=tensors.floats(f"{name}.multiplier", outputs),
        bias=tensors.floats(f"{name}.bias", outputs),
        slope=tensors.floats(f"{name}.slope", outputs),
    )


def _linear(name: str, relu: bool, inputs: int, tensors: _Tensors) -> Linear:
    weight = tensors.take(
        f"{name}.weight",
        "F32",
        (range(1, MAX_OUTPUTS + 1), (inputs,)),
        f"[out, {inputs}], out in 1 … {MAX_OUTPUTS}",
    )
    bias = tensors.floats(f"{name}.bias", len(weight))
    return Linear(name=name, relu=relu, weight=weight, bias=bias)


def _check_square(name: str, weight: NDArray[Any]) -> None:
    if weight.shape[1] != weight.shape[2]:
        raise ModelError(
            f"tensor {name!r} has shape {list(weight.shape)}: the kernel is not square"
        )


def _check_keys(
    value: Any, where: str, required: set[str], optional: set[str] | None = None
) -> None:
    if not isinstance(value, dict):
        raise ModelError(f"{where}: {short(value)} is not an object")
    for key in value:
        if key not in required and key not in (optional or ()):
            raise ModelError(f"{where}: unknown key {short(key)}")
    for key in sorted(required - value.keys()):
        raise ModelError(f"{where}: {key} is missing")


def _is_int(value: Any, least: int, most: int) -> bool:
    """Return whether a value is a JSON integer from `least` to `most`; true and 1.0 are not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
