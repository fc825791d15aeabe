"""Writes a packed file as C: the code in `c/`, with a network's name, sizes and constants in it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burn.core.errors import UserError
from burn.deploy.c.arena import TAPS, Geometry, plan_arena
from burn.deploy.c.fixed_point import IntegerNetwork, to_integers
from burn.deploy.c.text import (
    filled,
    initializer,
    numbers,
    renamed,
    require_no_clash,
    string,
    with_part,
)
from burn.deploy.shared import sample_images
from burn_engine import reference
from burn_engine.format import (
    BinaryConvolution,
    Convolution,
    GatedConvolution,
    GlobalMean,
    Layer,
    Linear,
    Program,
)

_STRUCT_BYTES = {"layer": 52, "gate": 36, "linear": 28, "phase": 4}  # with pointers of 32 bits
_MOST_INPUTS = 2**14 - 1  # offsets of their words, and of one more, are 16 bits
_COUNTED_SIZE = 96  # most of the side in pixels of images on which signs are counted
_ORDER = np.arange(32).reshape(8, 4)[:, [0, 2, 1, 3]].T.ravel()  # see `_rows`
_SIZES = ("in_size", "out_size", "in_channels", "out_channels", "kernel", "stride", "shortcut")


def geometry_of(program: Program, image_size: int) -> list[Geometry]:
    """Return the sizes of the convolution of the image and of the binary layers."""
    geometry: list[Geometry] = []
    size, channels = image_size, 3
    for layer in program.layers:
        if isinstance(layer, Convolution | BinaryConvolution | GatedConvolution):
            after = -(-size // layer.stride)
            is_binary = not isinstance(layer, Convolution)
            shortcut = isinstance(layer, BinaryConvolution) and layer.shortcut
            kernel = layer.weight.shape[1]
            parts = hidden = 0
            if isinstance(layer, GatedConvolution):
                assert layer.gate is not None
                parts, hidden = layer.groups, len(layer.gate.down.weight)
            geometry.append(
                Geometry(
                    size, after, channels, layer.channels, kernel, layer.stride, shortcut,
                    is_binary, parts, hidden,
                )
            )  # fmt: skip
            size, channels = after, layer.channels
    return geometry


class _Part(NamedTuple):
    """A binary convolution, or one of those of a layer with a gate, which compute some outputs."""

    # The weights as `network.c` has them, (out, k, k, in): 1 for -1, or for +1 where the input is
    # flipped.
    bits: NDArray[np.bool]
    threshold: NDArray[np.generic]  # (in,)
    flipped: NDArray[np.bool]  # inputs whose signs are 1 for +1, (in,)
    multiplier: NDArray[np.generic]  # (out,), as are bias and slope
    bias: NDArray[np.generic]
    slope: NDArray[np.generic]

    @property
    def ones(self) -> NDArray[np.int64]:
        """How many weights of each tap are ones, minus half of the weights: (k, k, out)."""
        return self.bits.sum(axis=3).transpose(1, 2, 0) - self.bits.shape[3] // 2


class CSource:
    """The C of a network, which is text, and what it takes, in bytes.

    All names begin with `name`; `epilogue` is float, int32 or int16; `origin` is the packed file,
    for messages, and `digest` its SHA-256. Of 0 `classes_on_device` there is no code that learns
    them; of more, the program has no classifier. `constants` are counted with pointers of 32 bits,
    `image_rows` are as many rows of an image as are needed at once, and `integers` are None with
    floats. Raises UserError if a layer is too wide, or its constants are too large or span too wide
    a range.
    """

    def __init__(
        self,
        program: Program,
        image_size: int,
        name: str,
        epilogue: str,
        origin: str,
        digest: str,
        classes_on_device: int,
    ) -> None:
        self._program, self._name, self._digest = program, name, digest
        self._classes_on_device = classes_on_device
        self._size = image_size
        self._epilogue = epilogue
        self._value_bytes = 2 if epilogue == "int16" else 4
        self._geometry = geometry_of(program, image_size)
        for layer, geometry in zip(program.layers, self._geometry, strict=False):
            if geometry.is_binary and geometry.inputs > _MOST_INPUTS:
                raise UserError(
                    f"{origin}: an output of layer {layer.name!r} has {geometry.inputs:,} inputs, "
                    f"more than the {_MOST_INPUTS:,} of C: give a narrower network"
                )
        self._linears = [each for each in program.layers if isinstance(each, Linear)]
        outputs = [linear.channels for linear in self._linears]
        self._arena = plan_arena(self._geometry, outputs, self._value_bytes)
        stem = program.layers[0]
        assert isinstance(stem, Convolution)
        # Larger scores than a float's are nothing to compare with, so integers do not help.
        if abs(_outside(stem)).max() > np.finfo(np.float32).max:
            raise UserError(
                f"{origin}: weight times padding of layer {stem.name!r} is too large for a float: "
                "pack a network with smaller constants"
            )
        self.integers: IntegerNetwork | None = None
        if epilogue != "float":
            bits = 8 * self._value_bytes
            self.integers = to_integers(program, self._geometry, bits, origin)
        binary = program.layers[1 : len(self._geometry)]
        flipped = _rarer_signs(program, image_size)
        self._parts = [_parts(*both) for both in zip(binary, flipped, strict=True)]
        if self.integers:
            self._parts = [
                [parts[0]._replace(threshold=stored.threshold, multiplier=stored.multiplier,
                                   bias=stored.bias, slope=stored.slope)]
                for parts, stored in zip(self._parts, self.integers.layers, strict=True)
            ]  # fmt: skip
        largest = max(abs(part.ones).max() for parts in self._parts for part in parts)
        self._tap_bytes = 1 if largest < 128 else 2
        self._arrays: list[str] = []
        self.constants = sum(len(name.encode()) + 1 + 4 for name in program.classes)
        self._constants = self._make_constants()
        self._gates = self._make_gates()
        self.arena = self._arena.bytes
        self.has_gates = any(sizes.parts for sizes in self._geometry)
        self.image, self.scores = 3 * image_size**2, 4 * program.layers[-1].channels
        self.image_rows = 3 * image_size * self._geometry[0].kernel
        counts = -(-2 * classes_on_device // 4) * 4
        self.classes = self.scores * classes_on_device + counts

    def texts(self) -> tuple[str, str]:
        """Return the header and the source. Raises UserError for a name that is in them already."""
        learns = f" --classes-on-device {self._classes_on_device}" * (self._classes_on_device > 0)
        banner = (
            f"/* Written by `burn export --format c --epilogue {self._epilogue}{learns}`, burn "
            f"{version('burn-ssl')}, from a packed file\n * with SHA-256 {self._digest}. */\n"
        )
        header = filled("network.h", {"sizes": self._sizes()})
        source = filled(
            "network.c",
            {"types": self._types(), "constants": self._constants, "gated": self._gates},
        )
        if self._classes_on_device:
            before, ending, after = header.rpartition("#ifdef __cplusplus")
            header = f"{before}{filled('learning.h', {})}\n{ending}{after}"
            source += "\n" + filled("learning.c", {})
        require_no_clash(self._name, header + source)
        header, source = (renamed(text, self._name) for text in (header, source))
        if self._program.classes:  # only now, as names of classes are no names in C
            rows = [f"    {string(name)}," for name in self._program.classes]
            source = with_part(source, "classes", "\n".join(rows))
        return banner + header, banner + source

    def _sizes(self) -> str:
        last = self._program.layers[-1]
        classes = len(self._program.classes)
        score = "float" if self.integers is None else "int32_t"
        lines = [
            f"#define NETWORK_IMAGE_SIZE {self._size}",
            f"#define NETWORK_IMAGE_BYTES {3 * self._size**2}",
            f"#define NETWORK_IMAGE_ROWS {self._geometry[0].kernel}",
            f"#define NETWORK_ARENA_BYTES {self._arena.bytes}",
            f"#define NETWORK_NUM_SCORES {last.channels}",
            f"#define NETWORK_NUM_CLASSES {classes}",
        ]
        if self._classes_on_device:
            lines.append(f"#define NETWORK_MAX_CLASSES {self._classes_on_device}")
            lines.append("#define NETWORK_SIMILARITY_ONE 1048576")
        if self.integers:
            bits = self.integers.score_bits
            lines.append(f"#define NETWORK_SCORE_BITS {bits if bits >= 0 else f'({bits})'}")
        lines += ["", f"typedef {score} network_score;"]
        if classes:
            names = "network_class_names[NETWORK_NUM_CLASSES]"
            lines += ["", "/* In UTF-8. */", f"extern const char *const {names};"]
        return "\n".join(lines)

    def _types(self) -> str:
        value, number, weight = "float", "float", "float"
        if self.integers:
            value, number, weight = f"int{8 * self._value_bytes}_t", "int32_t", "int16_t"
        kinds = {
            "value_t": (value, "of a map"),
            "sum_t": (number, "of arithmetic, and of vectors"),
            "weight_t": (weight, "of linear layers"),
            "tap_t": (f"int{8 * self._tap_bytes}_t", "numbers of weights of a pixel"),
        }
        lines = [f"typedef {kind} {name}; /* {why} */" for name, (kind, why) in kinds.items()]
        return "\n".join([f"#define BURN_INTEGER {int(self.integers is not None)}", "", *lines])

    def _make_constants(self) -> str:
        arena, geometry = self._arena, self._geometry
        mean = self._program.layers[len(geometry)]
        assert isinstance(mean, GlobalMean)
        defines = {
            "STEM_KERNEL": geometry[0].kernel,
            "NUM_LAYERS": len(geometry),
            "NUM_PHASES": len(arena.phases),
            "NUM_MEANS": mean.channels,
            "NUM_LINEAR": len(self._linears),
            "NUM_GATES": sum(layer.parts > 0 for layer in geometry),
            "LIST_LENGTH": arena.list_length,
            "PLANES": arena.planes,
            **{f"{key.upper()}_AT": place for key, place in arena.places.items()},
            "MEAN_PIXELS": geometry[-1].out_size ** 2,
            "MEAN_SCALED": int(mean.scale is not None),
        }
        scale: NDArray[np.generic] | None = mean.scale
        if self.integers:
            if scale is None:
                defines["MEAN_FACTOR"] = int(self.integers.mean.factor)
            else:
                scale = np.asarray(self.integers.mean.factor)
            defines["MEAN_SHIFT"] = self.integers.mean.shift
        lines = [f"#define BURN_{key} {value}" for key, value in defines.items()]
        stem = self._stem()
        layers = [stem, *(self._layer(index) for index in range(1, len(geometry)))]
        bias = mean.bias if self.integers is None else self.integers.mean.bias
        self._array("sum_t", "mean_bias", bias)
        if scale is not None:
            self._array("sum_t", "mean_scale", scale)
        linears = [self._linear(index) for index in range(len(self._linears))]
        self._table("layer", "layers", layers)
        self._table("phase", "phases", [f"{{{first}, {last}}}" for first, last in arena.phases])
        if linears:
            self._table("linear", "linears", linears)
        if self._program.classes:
            name = "network_class_names[NETWORK_NUM_CLASSES]"
            self._arrays.append(f"const char *const {name} = {{\n/* @classes */\n}};")
        return "\n\n".join(["\n".join(lines), *self._arrays])

    def _table(self, kind: str, name: str, rows: Sequence[str]) -> None:
        """Add a constant array of structs."""
        body = ",\n".join(f"    {row}" for row in rows)
        table = f"static const struct {kind} {name}[{len(rows)}] = {{\n{body},\n}};"
        self._arrays.append(table)
        self.constants += _STRUCT_BYTES[kind] * len(rows)

    def _array(self, kind: str, name: str, values: NDArray[np.generic]) -> str:
        """Add a constant array; return its name."""
        texts = numbers(values.ravel())
        widths = {
            "uint32_t": 4, "int16_t": 2, "float": 4, "sum_t": 4, "value_t": self._value_bytes,
            "tap_t": self._tap_bytes,
        }  # fmt: skip
        width = widths.get(kind, 4 if self.integers is None else 2)  # else weight_t
        self.constants += -(-len(texts) * width // 4) * 4
        per_line = 8 if len(texts[0]) > 6 else 12
        rows = [
            "    " + ", ".join(texts[at : at + per_line]) + ","
            for at in range(0, len(texts), per_line)
        ]
        opening = f"static const {kind} {name}[{len(texts)}] = {{"
        self._arrays.append("\n".join([opening, *rows, "};"]))
        return name

    def _stem(self) -> str:
        layer = self._program.layers[0]
        assert isinstance(layer, Convolution)
        fields: dict[str, object] = {}
        if self.integers:
            stem = self.integers.stem
            weight, outside, bias = stem.weight, stem.outside, stem.bias
            fields["positive_shift"] = stem.shift
        else:
            exact = layer.weight.astype(np.float64)
            weight = (exact / 255).astype(np.float32)
            outside = _outside(layer).astype(np.float32)
            bias = layer.bias
        self._array("sum_t", "stem_weight", weight)
        self._array("sum_t", "stem_outside", outside)
        self._array("sum_t", "stem_bias", bias)
        return self._described(0, fields)

    def _layer(self, index: int) -> str:
        if self._geometry[index].parts:  # `struct gate` has the rest
            return self._described(index, {})
        fields = self._part(index, f"layer_{index}", self._parts[index - 1][0])
        if self.integers:
            integers = self.integers.layers[index - 1]
            for key in ("shortcut_shift", "positive_shift", "negative_shift"):
                fields[key] = getattr(integers, key)
        return self._described(index, fields)

    def _part(self, index: int, name: str, part: _Part) -> dict[str, object]:
        """Add the constants of a binary convolution; return their names by the fields' names."""
        ones = part.ones
        self._array("uint32_t", f"{name}_weight", _rows(part.bits))
        self._array("int16_t", f"{name}_offset", -2 * ones.sum(axis=(0, 1)))
        pointers = ["weight", "offset", "threshold", "flipped", "constants"]
        if outer := TAPS[: self._geometry[index].outer_taps]:
            self._array("tap_t", f"{name}_taps", np.stack([ones[tap] for tap in outer]))
            pointers.append("taps")
        self._array("value_t", f"{name}_threshold", part.threshold)
        self._array("uint32_t", f"{name}_flipped", _packed(part.flipped))
        constants = np.stack([part.multiplier, part.bias, part.slope], axis=1)
        self._array("sum_t", f"{name}_constants", constants)
        return {key: f"{name}_{key}" for key in pointers}

    def _make_gates(self) -> str:
        """Return the code of layers with gates, and their tables; "" without any."""
        gated = [index for index, layer in enumerate(self._geometry) if layer.parts]
        if not gated:
            return ""
        self._arrays = []  # `_make_constants` has taken the others
        self._table("gate", "gates", [self._gate(index) for index in gated])
        return filled("gates.c", {"gates": "\n\n".join(self._arrays)})

    def _gate(self, index: int) -> str:
        """Add the constants of a layer with a gate; return what describes it."""
        layer, geometry, name = self._program.layers[index], self._geometry[index], f"gate_{index}"
        assert isinstance(layer, GatedConvolution)
        assert layer.gate is not None
        assert layer.mix is not None
        assert layer.shortcut_slope is not None
        parts: list[str] = []
        signs = 4 * geometry.signs_rows * geometry.in_size * geometry.sign_words
        for number, part in enumerate(self._parts[index - 1]):
            fields = self._part(index, f"{name}_part_{number}", part)
            fields["signs_at"] = self._arena.signs_at[index] + number * signs
            fields["out_channels"] = geometry.counted
            parts.append(self._described(index, fields))
        down, up = layer.gate.down, layer.gate.up
        arrays: dict[str, tuple[str, NDArray[np.generic]]] = {
            "down": ("int16_t", down.weight),
            "up": ("int16_t", up.weight),
            "down_constants": ("float", np.stack([down.scale, down.bias], axis=1)),
            "up_constants": ("float", np.stack([up.scale, up.bias], axis=1)),
            "constants": (
                "float", np.stack([layer.mix, layer.scale, layer.shift, layer.slope], axis=1)
            ),
            "shortcut_slope": ("float", layer.shortcut_slope),
        }  # fmt: skip
        for key, (kind, values) in arrays.items():
            self._array(kind, f"{name}_{key}", values)
        self._table("layer", f"{name}_parts", parts)
        return initializer(
            {
                "parts": f"{name}_parts",
                **{key: f"{name}_{key}" for key in arrays},
                "layer": index,
                "hidden": geometry.hidden,
                "num_parts": geometry.parts,
                "product": int(layer.product),
            }
        )

    def _described(self, index: int, fields: dict[str, object]) -> str:
        """Return what describes a layer or a part of it; `fields` come before the layer's own."""
        geometry, arena = self._geometry[index], self._arena
        of_layer: dict[str, object] = {
            "signs_at": arena.signs_at[index],
            "values_at": arena.values_at[index],
            "signs_rows": geometry.signs_rows,
            "values_rows": arena.values_rows[index],
            **{key: int(getattr(geometry, key)) for key in _SIZES},
        }
        if geometry.is_binary:
            of_layer["inputs"] = geometry.inputs
        return initializer(of_layer | fields)

    def _linear(self, index: int) -> str:
        layer, name, arena = self._linears[index], f"linear_{index}", self._arena
        constants = self.integers.linears[index] if self.integers else layer
        self._array("weight_t", f"{name}_weight", constants.weight)
        self._array("sum_t", f"{name}_bias", constants.bias)
        return initializer(
            {
                "weight": f"{name}_weight",
                "bias": f"{name}_bias",
                "input_at": arena.vectors_at[index - 1] if index else arena.places["sums"],
                "output_at": arena.vectors_at[index],
                "inputs": layer.weight.shape[1],
                "outputs": layer.channels,
                "relu": int(layer.relu),
                "shift": 0 if isinstance(constants, Linear) else constants.shift,
            }
        )


def _outside(layer: Convolution) -> NDArray[np.float64]:
    """Return what each tap adds outside of the image, (out, k, k)."""
    return (layer.weight.astype(np.float64) * layer.padding).sum(axis=3)


def _rarer_signs(program: Program, image_size: int) -> list[NDArray[np.bool]]:
    """Return for each binary layer which thresholds have more signs -1 than +1, (thresholds,).

    Time on the device rises with the number of the signs that are stored as ones; which these are
    changes no result. They are counted on built-in images.
    """
    images = sample_images(min(image_size, _COUNTED_SIZE)).permute(0, 2, 3, 1).numpy()
    x: NDArray[Any] = np.ascontiguousarray(images)
    flipped: list[NDArray[np.bool]] = []
    with np.errstate(all="ignore"):  # whatever the constants are
        for layer in program.layers:
            if isinstance(layer, BinaryConvolution | GatedConvolution):
                read = np.tile(x, len(layer.threshold) // x.shape[-1])
                flipped.append((read >= layer.threshold).mean(axis=(0, 1, 2)) < 0.5)
            if isinstance(layer, GlobalMean):
                break
            x = reference.run_layer(layer, x)
    return flipped


def _parts(layer: Layer, flipped: NDArray[np.bool]) -> list[_Part]:
    """Return the binary convolutions of a layer, by which of its thresholds are flipped."""
    assert isinstance(layer, BinaryConvolution | GatedConvolution)
    count, slope = 1, layer.slope
    if isinstance(layer, GatedConvolution):
        count, slope = layer.groups, layer.inner_slope
    arrays = (layer.weight, layer.threshold, flipped, layer.multiplier, layer.bias, slope)
    return [
        _Part((_bits(weight, len(opposite)) == 0) ^ opposite, threshold, opposite, *others)
        for weight, threshold, opposite, *others in zip(
            *(np.split(each, count) for each in arrays), strict=True
        )
    ]


def _bits(weight: NDArray[np.uint8], inputs: int) -> NDArray[np.uint8]:
    return np.unpackbits(weight, axis=-1, count=inputs, bitorder="little")


def _rows(bits: NDArray[np.bool]) -> NDArray[np.uint32]:
    """Return for every 32 outputs a word for each input, then a zero: (out / 32, k · k · in + 1).

    Bit i is that of output `_ORDER`[i]: the code gets counts in another order than that of bits.
    """
    flat = bits.reshape(len(bits), -1)
    flat = np.pad(flat, [(0, -len(flat) % 32), (0, 1)])
    blocks = flat.reshape(-1, 32, flat.shape[1])[:, _ORDER].transpose(0, 2, 1)
    return _packed(np.ascontiguousarray(blocks))[..., 0]


def _packed(bits: NDArray[np.bool]) -> NDArray[np.uint32]:
    """Return bits as little-endian words along the last axis, filled up with zeros."""
    padded = np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, -bits.shape[-1] % 32)])
    return np.packbits(padded, axis=-1, bitorder="little").view("<u4").astype(np.uint32)
