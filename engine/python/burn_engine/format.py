"""Reads a packed file and checks every rule of docs/project/pack-format.md."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Container, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from burn_engine.errors import ModelError, in_file, path_of, reading
from burn_engine.kinds import PACKED, kind_of, not_regular
from burn_engine.strict_json import parse_json, short

FORMATS = (1, 2, 3, 4, 5)
MAX_FILE_BYTES = 2**30
MAX_HEADER_BYTES = 10_000_000
MAX_LAYERS = 1_000
MAX_CHANNELS = 4_096
MAX_EXPERTS = 64
MAX_REPEAT = 16
MAX_ALSO = 16
MAX_OUTPUTS = 1_000_000
MAX_IMAGE_SIDE = 4_096

Floats = NDArray[np.float32]
# Float32 in a file. burn folds networks into these classes in float64, and rounds as it writes.
Constants = NDArray[Any]
Gate = Literal["none", "input", "mixed"]
GATES: tuple[Gate, ...] = ("none", "input", "mixed")


@dataclass(frozen=True, eq=False, kw_only=True)
class Layer:
    """A layer of any kind. docs/project/pack-format.md has the formulas.

    Attributes:
        name: name, unique in its program.
        bias: float32 (channels,).
    """

    kind: ClassVar[str]
    name: str
    bias: Constants

    @property
    def channels(self) -> int:
        """Number of channels of the output."""
        return len(self.bias)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the layer's constants by name."""
        return dict(_arrays(self))


def _arrays(part: Any, prefix: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a dataclass by their names in the file."""
    for field in fields(part):
        name, value = prefix + field.name, getattr(part, field.name)
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, tuple):
            for index, element in enumerate(value):
                if is_dataclass(element):
                    yield from _arrays(element, f"{name}.{index}.")
        elif is_dataclass(value):
            yield from _arrays(value, f"{name}.")


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
    weight: Constants
    padding: Constants


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
    threshold: Constants
    multiplier: Constants
    slope: Constants


@dataclass(frozen=True, eq=False, kw_only=True)
class Matrix:
    """A matrix and what is added to its products.

    Attributes:
        weight: float32 (outputs, inputs).
        bias: float32 (outputs,).
    """

    weight: Constants
    bias: Constants


@dataclass(frozen=True, eq=False, kw_only=True)
class Rounded:
    """A matrix of integers, and what its products are multiplied by and added to.

    Attributes:
        weight: int16 (outputs, inputs).
        scale: float32 (outputs,), by which a product is multiplied.
        bias: float32 (outputs,), added after that.
    """

    weight: NDArray[np.int16]
    scale: Constants
    bias: Constants

    def matrix(self) -> Matrix:
        """Return the same as a matrix of floats."""
        return Matrix(weight=self.scale[:, None] * self.weight, bias=self.bias)


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoMatrices:
    """The matrices of a gate; between them, negative values become 0.

    Attributes:
        down: from the means to fewer values.
        up: from these to the channels.
    """

    down: Rounded
    up: Rounded


@dataclass(frozen=True, eq=False, kw_only=True)
class Side(Matrix):
    """A 1×1 convolution of a shortcut; in a file of format 2 or 3, of integers times a scale.

    Attributes:
        slope: float32 (outputs,), by which negative outputs are multiplied.
    """

    slope: Constants


@dataclass(frozen=True, eq=False, kw_only=True)
class GatedConvolution(Layer):
    """Binary convolution of which means over the image choose the weights or scale the channels.

    Attributes:
        stride: 1 or 2.
        repeat: how many times the convolution reads its inputs, with other thresholds each time.
        groups: number of groups of channels.
        experts: number of weights of which the means of the input choose one.
        gate_of: what the gate's means are of: the input, or a mix of the input and the output; or
            none, for no gate.
        product: whether the output is multiplied by the shortcut before the shortcut is added.
        shortcut: whether there is one.
        weight: uint8 (experts · channels, k, k, ⌈repeat · inputs / groups / 8⌉), k in 1, 3, bits as
            in `BinaryConvolution`.
        threshold: float32 (repeat · inputs,); the sign of an input is +1 where it is at least this.
        multiplier: float32 (experts · channels,), by which the binary sum is multiplied.
        inner_slope: float32 (channels,), by which negative values are multiplied before the gate.
        scale: float32 (channels,), by which the gated values are multiplied.
        shift: float32 (channels,), added after that.
        slope: float32 (channels,), by which negative outputs are multiplied.
        choice: matrix from the means to the experts' values, of which the largest is chosen; None
            for one expert.
        gate: the gate's matrices, or None.
        mix: float32 (channels,), the input's share in a mixed gate's means; otherwise None.
        shortcut_slope: float32 (inputs,), by which the shortcut's negative values are multiplied;
            None without a shortcut or with `side`.
        side: 1×1 convolutions of the shortcut.
    """

    kind: ClassVar[str] = "gated_convolution"
    stride: int
    repeat: int
    groups: int
    experts: int
    gate_of: Gate
    product: bool
    shortcut: bool
    weight: NDArray[np.uint8]
    threshold: Constants
    multiplier: Constants
    inner_slope: Constants
    scale: Constants
    shift: Constants
    slope: Constants
    choice: Matrix | None
    gate: TwoMatrices | None
    mix: Constants | None
    shortcut_slope: Constants | None
    side: tuple[Side, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Kernel:
    """A float convolution's weights.

    Attributes:
        weight: float32 (outputs, k, k, inputs).
        bias: float32 (outputs,).
    """

    weight: Constants
    bias: Constants


@dataclass(frozen=True, eq=False, kw_only=True)
class BranchedConvolution(Layer):
    """Float convolutions with two branches, the first layer of some networks.

    Attributes:
        stride: of `first`, 1 or 2.
        second_stride: of both branches, 1 or 2.
        padding: float32 (3,), the colour outside the image.
        first: convolution of the image.
        narrow: 1×1 convolution of its output.
        widen: convolution of that.
        last: 1×1 convolution of `widen`'s outputs and the largest values of `first`'s.
    """

    kind: ClassVar[str] = "branched_convolution"
    stride: int
    second_stride: int
    padding: Constants
    first: Kernel
    narrow: Matrix
    widen: Kernel
    last: Matrix

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the layer's constants by name; its bias is that of `last`."""
        return {name: value for name, value in _arrays(self) if name != "bias"}


@dataclass(frozen=True, eq=False, kw_only=True)
class GlobalMean(Layer):
    """Means over all pixels, of the last map and of earlier ones, times a scale, plus a bias.

    Attributes:
        scale: float32 (channels,), or None for 1.
        also: indices of the layers whose maps' means follow those of the last map.
    """

    kind: ClassVar[str] = "global_mean"
    scale: Constants | None = None
    also: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear(Layer):
    """Linear layer: a matrix product, plus a bias.

    Attributes:
        relu: whether negative outputs become 0.
        weight: float32 (channels, inputs).
    """

    kind: ClassVar[str] = "linear"
    relu: bool
    weight: Constants


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

    def fingerprint(self) -> str:
        """Return the SHA-256 of all that features depend on, hexadecimal.

        Networks with the same fingerprint have the same features, whatever their classifiers are.
        """
        digest = hashlib.sha256(repr(self.image).encode())
        for layer in self.layers[: self.features + 1]:
            settings = {
                field.name: value
                for field in fields(layer)
                if isinstance(value := getattr(layer, field.name), str | int)
                and field.name != "name"
            }
            if isinstance(layer, GlobalMean) and layer.also:
                settings["also"] = str(layer.also)
            digest.update(f"{layer.kind} {sorted(settings.items())}".encode())
            for name, array in sorted(layer.tensors().items()):
                digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


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
        TypeError: `path` is not a path.
    """
    there = path_of(path)
    mode = there.stat().st_mode
    if not stat.S_ISREG(mode):  # before opening: a pipe would block
        raise ModelError(not_regular(mode))
    with reading(there), open(there, "rb") as file:
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
        reason = "header: there is no __metadata__ object, so this is not a packed network"
        raise _of_another_kind(data, reason)
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise ModelError(f"header: __metadata__ {short(key)} is {short(value)}, not a string")
    if "bnn" not in metadata:
        reason = "header: __metadata__ has no 'bnn', so this is not a packed network"
        raise _of_another_kind(data, reason)
    program = parse_json(metadata["bnn"], "program")
    _check_format(program)  # first, because another format may have other keys and tensors
    return _parse_program(program, _Tensors(data, start, header, program["format"]))


def _of_another_kind(data: bytes, reason: str) -> ModelError:
    """Return the error for bytes that are no packed file: what else they are, or the reason."""
    kind = kind_of(data)
    return ModelError(reason if kind in (None, PACKED) else f"not a packed network but {kind}")


def _read_header(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the header and the position of the first byte of data."""
    if len(data) < 8:
        raise ModelError(f"{len(data)} bytes long: too short for the header's length")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        reason = f"not a packed file: the header's length {length} is not in 2 … {MAX_HEADER_BYTES}"
        raise _of_another_kind(data, reason)
    if length > len(data) - 8:
        reason = f"the header's length {length} reaches past the end of the file"
        raise _of_another_kind(data, reason)
    try:
        text = data[8 : 8 + length].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _of_another_kind(data, f"header: not UTF-8 at byte {error.start}") from None
    header = parse_json(text, "header")
    if not isinstance(header, dict):
        raise ModelError("header: not an object")
    return header, 8 + length


_ITEM_BYTES = {"F32": 4, "U8": 1, "I16": 2}


class _Entry(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Tensors:
    """The tensors that the header lists; each must be taken exactly once."""

    def __init__(self, data: bytes, start: int, header: dict[str, Any], format: int) -> None:
        self._data = data
        self._start = start
        dtypes = ("F32", "U8") if format == 1 else ("F32", "U8", "I16")
        self._entries = {name: _parse_entry(name, value, dtypes) for name, value in header.items()}
        position = 0
        in_order = sorted(self._entries.items(), key=lambda item: item[1].begin)
        for name, entry in in_order:
            if entry.begin != position:
                problem = "a gap before it" if entry.begin > position else "it overlaps another"
                raise ModelError(
                    f"tensor {short(name)} begins at {entry.begin}, not {position}: {problem}"
                )
            size = _ITEM_BYTES[entry.dtype]
            if (start + entry.begin) % size:
                raise ModelError(
                    f"tensor {short(name)}: its position in the file, {start + entry.begin}, "
                    f"is not a multiple of {size}"
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
            dtype: "F32", "U8" or "I16".
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
        stored = np.dtype({"F32": "<f4", "U8": "u1", "I16": "<i2"}[dtype])
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


def _parse_entry(name: str, value: Any, dtypes: tuple[str, ...]) -> _Entry:
    where = f"tensor {short(name)}"
    _check_keys(value, where, {"dtype", "shape", "data_offsets"})
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in dtypes:
        raise ModelError(f"{where}: dtype {short(dtype)} is none of {', '.join(dtypes)}")
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
    size = _ITEM_BYTES[dtype]
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
    number = program.get("format")
    if not _is_int(number, FORMATS[0], FORMATS[-1]):
        readable = f"{', '.join(map(str, FORMATS[:-1]))} and {FORMATS[-1]}"
        newer = _is_int(number, FORMATS[-1] + 1, 10**6)
        advice = ": update burn-engine" if newer else ""
        raise ModelError(f"program: format {short(number)}; this reader knows {readable}{advice}")


def _parse_program(program: dict[str, Any], tensors: _Tensors) -> Program:
    optional = {"classes", "image", "origin"}
    _check_keys(program, "program", {"format", "layers", "features"}, optional)
    described = program["layers"]
    if not isinstance(described, list) or not 3 <= len(described) <= MAX_LAYERS:
        count = len(described) if isinstance(described, list) else short(described)
        raise ModelError(f"program: layers is not an array of 3 to {MAX_LAYERS} (found {count})")

    layers: list[Layer] = []
    for value in described:
        layers.append(_parse_layer(value, layers, tensors, program["format"]))
    if not isinstance(layers[-1], GlobalMean | Linear):
        raise ModelError(f"program: there is no global_mean after {layers[-1].name!r}")
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
    "gated_convolution": {
        *("stride", "repeat", "groups", "experts", "gate", "product", "shortcut", "side"),
    },
    "branched_convolution": {"stride", "second_stride"},
}
_SINCE_FORMAT_2 = {"gated_convolution", "branched_convolution"}
_BINARY = ("binary_convolution", "gated_convolution")
_FOLLOWS = {
    "image": ("convolution", "branched_convolution"),
    "convolution": _BINARY,
    "branched_convolution": _BINARY,
    "binary_convolution": (*_BINARY, "global_mean"),
    "gated_convolution": (*_BINARY, "global_mean"),
    "global_mean": ("linear",),
    "linear": ("linear",),
}


def _parse_layer(value: Any, layers: list[Layer], tensors: _Tensors, format: int) -> Layer:
    """Return the layer that follows `layers`."""
    where = f"program: layer {len(layers)}"
    before = layers[-1] if layers else None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: {short(value)} is not an object")
    kind, name = value.get("kind"), value.get("name")
    kinds = [one for one in _FIELDS if format > 1 or one not in _SINCE_FORMAT_2]
    if not isinstance(kind, str) or kind not in kinds:
        raise ModelError(f"{where}: kind {short(kind)} is none of {', '.join(kinds)}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ModelError(f"{where}: name {short(name)} is not 1 to 100 of A-Z a-z 0-9 _ .")
    where += f" ({name})"
    if name == "image" or any(name == layer.name for layer in layers):
        raise ModelError(f"{where}: the name is {'taken' if name != 'image' else 'reserved'}")
    fields = _FIELDS[kind]
    if kind == "global_mean" and format > 2:
        fields = {"scaled"} if format < 5 else {"scaled", "also"}
    _check_keys(value, where, {"kind", "name", "input"} | fields)
    kind_before, name_before = (before.kind, before.name) if before else ("image", "image")
    if value["input"] != name_before:
        raise ModelError(
            f"{where}: input {short(value['input'])} is not the layer before it, {name_before!r}"
        )
    if kind not in _FOLLOWS[kind_before]:
        raise ModelError(
            f"{where}: {kind} cannot follow {kind_before}; expected "
            f"{' or '.join(one for one in _FOLLOWS[kind_before] if one in kinds)}"
        )
    for key in ("stride", "second_stride"):
        if key in value and not _is_int(value[key], 1, 2):
            raise ModelError(f"{where}: {key} {short(value[key])} is neither 1 nor 2")
    for key in ("shortcut", "relu", "product", "scaled"):
        if key in value and not isinstance(value[key], bool):
            raise ModelError(f"{where}: {key} {short(value[key])} is neither true nor false")

    if kind == "branched_convolution":
        return _branched_convolution(name, value["stride"], value["second_stride"], tensors)
    if before is None:
        return _convolution(name, value["stride"], tensors)
    inputs = before.channels
    if kind == "gated_convolution":
        return _gated_convolution(name, value, where, inputs, tensors, format)
    if kind == "binary_convolution":
        return _binary_convolution(name, value["stride"], value["shortcut"], inputs, tensors)
    if kind == "global_mean":
        also = _also(value["also"], where, layers) if "also" in value else ()
        inputs += sum(layers[one].channels for one in also)
        bias = tensors.floats(f"{name}.bias", inputs)
        scale = tensors.floats(f"{name}.scale", inputs) if value.get("scaled") else None
        return GlobalMean(name=name, bias=bias, scale=scale, also=also)
    return _linear(name, value["relu"], inputs, tensors)


def _also(value: Any, where: str, layers: list[Layer]) -> tuple[int, ...]:
    """Return the indices of the layers besides the last whose maps a global_mean averages."""
    if not isinstance(value, list):
        raise ModelError(f"{where}: also {short(value)} is not an array")
    if len(value) > MAX_ALSO:
        raise ModelError(f"{where}: also has {len(value)} names, at most {MAX_ALSO} are allowed")
    *earlier, last = layers
    places = {layer.name: at for at, layer in enumerate(earlier) if layer.kind in _BINARY}
    also: list[int] = []
    for name in value:
        if not isinstance(name, str) or name not in places:
            raise ModelError(
                f"{where}: also names {short(name)}, which is no binary or gated convolution "
                f"before {last.name!r}"
            )
        if also and places[name] <= also[-1]:
            raise ModelError(
                f"{where}: also names {short(name)} after {layers[also[-1]].name!r}, needs each "
                "name once, in the order of the program"
            )
        also.append(places[name])
    return tuple(also)


_CHANNELS = range(1, MAX_CHANNELS + 1)


def _kernel(
    name: str, kernels: tuple[int, ...], inputs: int, tensors: _Tensors
) -> tuple[Floats, Floats]:
    """Return weight and bias of a float convolution."""
    weight = tensors.take(
        f"{name}.weight",
        "F32",
        (_CHANNELS, kernels, kernels, (inputs,)),
        f"[out, k, k, {inputs}], out in 1 … {MAX_CHANNELS}, k in {', '.join(map(str, kernels))}",
    )
    _check_square(f"{name}.weight", weight)
    return weight, tensors.floats(f"{name}.bias", len(weight))


def _matrix(
    name: str, outputs: Container[int], inputs: int, expected: str, tensors: _Tensors
) -> Matrix:
    """Return a matrix; `expected` says in words which numbers of outputs are allowed."""
    weight = tensors.take(f"{name}.weight", "F32", (outputs, (inputs,)), f"[{expected}, {inputs}]")
    return Matrix(weight=weight, bias=tensors.floats(f"{name}.bias", len(weight)))


def _rounded(
    name: str, outputs: Container[int], inputs: int, expected: str, tensors: _Tensors
) -> Rounded:
    """Return a matrix of integers; `expected` is that of `_matrix`."""
    weight = tensors.take(f"{name}.weight", "I16", (outputs, (inputs,)), f"[{expected}, {inputs}]")
    scale, bias = (tensors.floats(f"{name}.{key}", len(weight)) for key in ("scale", "bias"))
    return Rounded(weight=weight, scale=scale, bias=bias)


_ANY_WIDTH = f"1 … {MAX_CHANNELS}"


def _convolution(name: str, stride: int, tensors: _Tensors) -> Convolution:
    weight, bias = _kernel(name, (1, 3, 5, 7), 3, tensors)
    padding = tensors.floats(f"{name}.padding", 3)
    return Convolution(name=name, stride=stride, weight=weight, bias=bias, padding=padding)


def _branched_convolution(
    name: str, stride: int, second_stride: int, tensors: _Tensors
) -> BranchedConvolution:
    weight, bias = _kernel(f"{name}.first", (1, 3, 5, 7), 3, tensors)
    first = Kernel(weight=weight, bias=bias)
    padding = tensors.floats(f"{name}.padding", 3)
    narrow = _matrix(f"{name}.narrow", _CHANNELS, len(bias), _ANY_WIDTH, tensors)
    weight, bias = _kernel(f"{name}.widen", (1, 3), len(narrow.bias), tensors)
    widen = Kernel(weight=weight, bias=bias)
    both = len(widen.bias) + len(first.bias)
    last = _matrix(f"{name}.last", _CHANNELS, both, _ANY_WIDTH, tensors)
    return BranchedConvolution(
        name=name,
        stride=stride,
        second_stride=second_stride,
        padding=padding,
        first=first,
        narrow=narrow,
        widen=widen,
        last=last,
        bias=last.bias,
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


def _gated_convolution(
    name: str, value: dict[str, Any], where: str, inputs: int, tensors: _Tensors, format: int
) -> GatedConvolution:
    limits = {"repeat": MAX_REPEAT, "groups": MAX_CHANNELS, "experts": MAX_EXPERTS}
    for key, most in limits.items():
        if not _is_int(value[key], 1, most):
            raise ModelError(f"{where}: {key} {short(value[key])} is not an integer in 1 … {most}")
    if not _is_int(value["side"], 0, 2):
        raise ModelError(f"{where}: side {short(value['side'])} is none of 0, 1, 2")
    gate_of = value["gate"]
    if not isinstance(gate_of, str) or gate_of not in GATES:
        raise ModelError(f"{where}: gate {short(gate_of)} is none of {', '.join(GATES)}")
    shortcut, product, side = value["shortcut"], value["product"], value["side"]
    if not shortcut and (product or side):
        raise ModelError(f"{where}: {'product' if product else 'side'} without a shortcut")
    repeat, groups, experts = value["repeat"], value["groups"], value["experts"]
    if repeat * inputs % groups or groups % repeat:
        raise ModelError(
            f"{where}: {groups} groups of {inputs} inputs repeated {repeat} times, which is not a "
            "multiple"
        )
    used = repeat * inputs // groups
    width = (used + 7) // 8
    weight = tensors.take(
        f"{name}.weight",
        "U8",
        (range(1, MAX_CHANNELS * experts + 1), (1, 3), (1, 3), (width,)),
        f"[experts · out, k, k, {width}], out in 1 … {MAX_CHANNELS}, k in 1, 3",
    )
    _check_square(f"{name}.weight", weight)
    if used % 8 and (weight[..., -1] >> (used % 8)).any():
        raise ModelError(f"tensor '{name}.weight': bits after the last channel are not 0")
    outputs = len(weight) // experts
    if len(weight) % experts or outputs % groups:
        raise ModelError(
            f"{where}: {len(weight)} weights are not a multiple of {experts} experts of "
            f"{groups} groups"
        )
    if (gate_of == "mixed" or (shortcut and not side)) and outputs % inputs:
        what = "a shortcut" if shortcut and not side else "a mixed gate"
        raise ModelError(
            f"{where}: {what} from {inputs} to {outputs} channels, which is not a multiple"
        )
    vectors = {
        key: tensors.floats(f"{name}.{key}", outputs)
        for key in ("bias", "inner_slope", "scale", "shift", "slope")
    }
    choice = gate = None
    if experts > 1:
        choice = _matrix(f"{name}.choice", (experts,), inputs, str(experts), tensors)
    if gate_of != "none":
        taken = inputs if gate_of == "input" else outputs
        down = _rounded(f"{name}.gate.down", _CHANNELS, taken, _ANY_WIDTH, tensors)
        up = _rounded(f"{name}.gate.up", (outputs,), len(down.bias), str(outputs), tensors)
        gate = TwoMatrices(down=down, up=up)
    return GatedConvolution(
        name=name,
        stride=value["stride"],
        repeat=repeat,
        groups=groups,
        experts=experts,
        gate_of=cast(Gate, gate_of),
        product=product,
        shortcut=shortcut,
        weight=weight,
        threshold=tensors.floats(f"{name}.threshold", repeat * inputs),
        multiplier=tensors.floats(f"{name}.multiplier", experts * outputs),
        choice=choice,
        gate=gate,
        mix=tensors.floats(f"{name}.mix", outputs) if gate_of == "mixed" else None,
        shortcut_slope=(
            tensors.floats(f"{name}.shortcut_slope", inputs) if shortcut and not side else None
        ),
        side=_sides(name, side, inputs, outputs, tensors, format),
        **vectors,
    )


def _sides(
    name: str, count: int, inputs: int, outputs: int, tensors: _Tensors, format: int
) -> tuple[Side, ...]:
    sides: list[Side] = []
    for index in range(count):
        before = len(sides[-1].bias) if sides else inputs
        last = index == count - 1
        part = f"{name}.side.{index}"
        widths, expected = ((outputs,), str(outputs)) if last else (_CHANNELS, _ANY_WIDTH)
        if format > 3:
            matrix = _matrix(part, widths, before, expected, tensors)
        else:
            matrix = _rounded(part, widths, before, expected, tensors).matrix()
        slope = tensors.floats(f"{part}.slope", len(matrix.bias))
        sides.append(Side(weight=matrix.weight, bias=matrix.bias, slope=slope))
    return tuple(sides)


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
