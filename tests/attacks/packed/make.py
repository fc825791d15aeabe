"""Writes the malformed packed files of this folder, each a small valid file with one thing wrong.

    python tests/attacks/packed/make.py            (re)write every .bnn file here

A reader refuses all of them (docs/project/pack-format.md). `valid()` gives the files that they were
made from; the fuzzer's seeds and the comparison of the two readers begin there.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent


@dataclass
class Packed:
    """What a packed file is made of; `write` lays it out as the format wants it."""

    program: dict[str, Any]
    tensors: dict[str, np.ndarray]
    metadata: dict[str, Any] = field(default_factory=dict)

    def entries(self) -> dict[str, dict[str, Any]]:
        """The header's tensors, one behind the other."""
        entries, begin = {}, 0
        for name, tensor in self.tensors.items():
            end = begin + tensor.nbytes
            dtype = {"f": "F32", "u": "U8", "i": "I16"}[tensor.dtype.kind]
            entries[name] = {
                "dtype": dtype,
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
            begin = end
        return entries

    def data(self) -> bytes:
        return b"".join(tensor.tobytes() for tensor in self.tensors.values())

    def header(self, program: str | None = None) -> dict[str, Any]:
        text = compact(self.program) if program is None else program
        return {"__metadata__": {"bnn": text, **self.metadata}, **self.entries()}

    def write(self) -> bytes:
        return assemble(compact(self.header()), self.data())

    def write_program(self, text: str) -> bytes:
        """With this text in the program's place."""
        return assemble(compact(self.header(text)), self.data())

    def layer(self, name: str) -> dict[str, Any]:
        return next(layer for layer in self.program["layers"] if layer["name"] == name)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def assemble(header: str, data: bytes) -> bytes:
    """Length field, header padded to a multiple of 8, data. U+DCxx becomes the byte xx."""
    text = header.encode(errors="surrogateescape")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def bits(rng: np.random.Generator, out: int, kernel: int, channels: int) -> np.ndarray:
    """Random weights (out, kernel, kernel, ceil(channels / 8)), spare bits 0."""
    signs = rng.integers(0, 2, (out, kernel, kernel, channels), dtype=np.uint8)
    return np.packbits(signs, axis=-1, bitorder="little")


class Builder:
    """Adds layers one by one, each behind the one before it."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.packed = Packed({"format": 1, "layers": []}, {})
        self.channels = 3

    def floats(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(np.float32)

    def integers(self, *shape: int) -> np.ndarray:
        return self.rng.integers(-9999, 9999, shape).astype("<i2")

    def _add(self, kind: str, name: str, fields: dict[str, Any], **tensors: np.ndarray) -> None:
        layers = self.packed.program["layers"]
        before = layers[-1]["name"] if layers else "image"
        layers.append({"kind": kind, "name": name, "input": before, **fields})
        for field_name, tensor in tensors.items():
            self.packed.tensors[f"{name}.{field_name}"] = tensor

    def convolution(self, name: str, out: int, kernel: int, stride: int) -> None:
        self._add(
            "convolution", name, {"stride": stride},
            weight=self.floats(out, kernel, kernel, 3), bias=self.floats(out),
            padding=self.floats(3),
        )  # fmt: skip
        self.channels = out

    def binary(self, name: str, out: int, kernel: int, stride: int, shortcut: bool) -> None:
        self._add(
            "binary_convolution", name, {"stride": stride, "shortcut": shortcut},
            threshold=self.floats(self.channels), multiplier=self.floats(out),
            bias=self.floats(out), slope=self.floats(out),
            weight=bits(self.rng, out, kernel, self.channels),
        )  # fmt: skip
        self.channels = out

    def gated(self, name: str, out: int, **fields: Any) -> None:
        """A gated_convolution of kernel 3; fields that are not given are the simplest."""
        fields = {
            **{"stride": 1, "repeat": 1, "groups": 1, "experts": 1, "gate": "none"},
            **{"product": False, "shortcut": False, "side": 0, **fields},
        }
        experts, gate, width = fields["experts"], fields["gate"], self.channels
        read = fields["repeat"] * width
        tensors = {"threshold": self.floats(read), "multiplier": self.floats(experts * out)}
        for part in ("bias", "inner_slope", "scale", "shift", "slope"):
            tensors[part] = self.floats(out)
        if experts > 1:
            tensors["choice.weight"] = self.floats(experts, width)
            tensors["choice.bias"] = self.floats(experts)
        if gate != "none":
            for part, after, before in (
                ("gate.down", 2, width if gate == "input" else out),
                ("gate.up", out, 2),
            ):
                tensors[f"{part}.weight"] = self.integers(after, before)
                tensors[f"{part}.scale"] = self.floats(after)
                tensors[f"{part}.bias"] = self.floats(after)
        if gate == "mixed":
            tensors["mix"] = self.floats(out)
        if fields["shortcut"] and not fields["side"]:
            tensors["shortcut_slope"] = self.floats(width)
        tensors["weight"] = bits(self.rng, experts * out, 3, read // fields["groups"])
        before = width
        for index in range(fields["side"]):
            after = out if index == fields["side"] - 1 else 3
            tensors[f"side.{index}.weight"] = self.integers(after, before)
            for part in ("scale", "bias", "slope"):
                tensors[f"side.{index}.{part}"] = self.floats(after)
            before = after
        self._add("gated_convolution", name, fields, **tensors)
        self.packed.program["format"] = 2
        self.channels = out

    def branched(self, name: str, out: int) -> None:
        self._add(
            "branched_convolution", name, {"stride": 2, "second_stride": 2},
            **{
                "padding": self.floats(3),
                "first.weight": self.floats(4, 3, 3, 3), "first.bias": self.floats(4),
                "narrow.weight": self.floats(2, 4), "narrow.bias": self.floats(2),
                "widen.weight": self.floats(3, 3, 3, 2), "widen.bias": self.floats(3),
                "last.weight": self.floats(out, 7), "last.bias": self.floats(out),
            },
        )  # fmt: skip
        self.packed.program["format"] = 2
        self.channels = out

    def mean(self, name: str) -> None:
        self._add("global_mean", name, {}, bias=self.floats(self.channels))

    def scaled_mean(self, name: str) -> None:
        tensors = {"bias": self.floats(self.channels), "scale": self.floats(self.channels)}
        self._add("global_mean", name, {"scaled": True}, **tensors)
        self.packed.program["format"] = 3

    def means(self, name: str, also: dict[str, int]) -> None:
        """A global_mean of earlier maps too, whose channels are given by the layers' names."""
        self.channels += sum(also.values())
        tensors = {"bias": self.floats(self.channels), "scale": self.floats(self.channels)}
        self._add("global_mean", name, {"scaled": True, "also": list(also)}, **tensors)
        self.packed.program["format"] = 5

    def linear(self, name: str, out: int, relu: bool) -> None:
        self._add(
            "linear", name, {"relu": relu},
            weight=self.floats(out, self.channels), bias=self.floats(out),
        )  # fmt: skip
        self.channels = out

    def finish(self, features: str, **more: Any) -> Packed:
        self.packed.program.update(features=features, **more)
        # Bytes behind floats, so that every float stays aligned.
        tensors = self.packed.tensors
        self.packed.tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
        return self.packed


def classifier() -> Packed:
    builder = Builder(1)
    builder.convolution("stem", 4, 3, 2)
    builder.binary("b.1", 4, 3, 1, True)
    builder.binary("b.2", 8, 1, 2, True)
    builder.mean("mean")
    builder.linear("top", 3, False)
    image = {"resize": 40, "size": 32}
    return builder.finish("mean", classes=["cat", "dog", "gnu"], image=image, origin={"run": "x"})


def features_only() -> Packed:
    builder = Builder(2)
    builder.convolution("stem", 2, 1, 1)
    builder.binary("block", 9, 3, 2, False)
    builder.mean("mean")
    return builder.finish("mean")


def projected() -> Packed:
    builder = Builder(3)
    builder.convolution("stem", 1, 7, 2)
    builder.binary("block", 16, 1, 1, True)
    builder.mean("mean")
    builder.linear("fc1", 5, True)
    builder.linear("fc2", 4, False)
    builder.linear("top", 1, False)
    return builder.finish("fc2", classes=["é"])


def many_channels() -> Packed:
    builder = Builder(4)
    builder.convolution("a", 10, 5, 1)
    builder.binary("b", 20, 3, 2, True)
    builder.binary("c", 3, 1, 1, False)
    builder.mean("d")
    builder.linear("e", 2, True)
    return builder.finish("e")


def gated() -> Packed:
    builder = Builder(5)
    builder.convolution("stem", 4, 3, 2)
    builder.gated("b.1", 4, gate="mixed", shortcut=True, product=True)
    builder.gated("b.2", 8, gate="mixed", shortcut=True, stride=2, repeat=2, groups=2)
    builder.mean("mean")
    return builder.finish("mean")


def experts() -> Packed:
    builder = Builder(6)
    builder.branched("stem", 4)
    builder.gated("b.1", 6, groups=2, experts=3, gate="input", shortcut=True, side=2)
    builder.gated("b.2", 6, gate="input", shortcut=True)
    builder.binary("b.3", 6, 3, 1, True)
    builder.mean("mean")
    builder.linear("top", 2, False)
    return builder.finish("mean", classes=["a", "b"])


def scaled() -> Packed:
    builder = Builder(7)
    builder.convolution("stem", 2, 1, 1)
    builder.binary("block", 9, 3, 2, False)
    builder.scaled_mean("mean")
    return builder.finish("mean")


def several(*, gated: bool = True) -> Packed:
    builder = Builder(8)
    builder.convolution("stem", 2, 1, 1)
    builder.binary("b.1", 9, 3, 2, False)
    if gated:
        builder.gated("b.2", 9, gate="mixed", shortcut=True)
    else:
        builder.binary("b.2", 9, 3, 1, True)
    builder.binary("b.3", 3, 1, 1, False)
    builder.means("mean", {"b.1": 9, "b.2": 9})
    builder.linear("top", 2, False)
    return builder.finish("mean", classes=["a", "b"])


def valid() -> dict[str, Packed]:
    """Small valid files, between them every kind and every optional key."""
    makers = (classifier, features_only, projected, many_channels, gated, experts, scaled, several)
    return {make.__name__: make() for make in makers}


# ---- The malformed files: one function each, of the file's name

Attack = Callable[[], bytes]
ATTACKS: dict[str, Attack] = {}


def attack(make: Attack) -> Attack:
    ATTACKS[make.__name__] = make
    return make


def changed(change: Callable[[Packed], Any]) -> bytes:
    packed = features_only()
    change(packed)
    return packed.write()


def changed_header(change: Callable[[dict[str, Any]], Any]) -> bytes:
    packed = features_only()
    header = packed.header()
    change(header)
    return assemble(compact(header), packed.data())


def with_length(length: int) -> bytes:
    return struct.pack("<Q", length) + features_only().write()[8:]


def with_program(old: str, new: str) -> bytes:
    packed = features_only()
    text = compact(packed.program)
    assert text.count(old) == 1, old
    return packed.write_program(text.replace(old, new))


@attack
def truncated_in_length() -> bytes:
    return features_only().write()[:7]


@attack
def truncated_in_header() -> bytes:
    return features_only().write()[:100]


@attack
def truncated_in_data() -> bytes:
    return features_only().write()[:-1]


@attack
def bytes_behind_data() -> bytes:
    return features_only().write() + b"\0"


@attack
def header_length_zero() -> bytes:
    return with_length(0)


@attack
def header_length_wraps() -> bytes:
    return with_length(2**64 - 8)


@attack
def header_length_beyond_end() -> bytes:
    return with_length(10_000_000)


@attack
def header_not_utf8() -> bytes:
    packed = features_only()
    header = compact(packed.header()).replace("stem", "st\udcc0\udc80", 1)  # an overlong NUL
    return assemble(header, packed.data())


@attack
def header_byte_order_mark() -> bytes:
    packed = features_only()
    return assemble("\ufeff" + compact(packed.header()), packed.data())


@attack
def header_nan_literal() -> bytes:
    packed = features_only()
    return assemble(compact(packed.header())[:-1] + ',"x":NaN}', packed.data())


@attack
def header_nested_deeply() -> bytes:
    return assemble('{"x":' + "[" * 3000, b"")


@attack
def origin_nested_17_levels() -> bytes:
    # The program is level 1, origin 2.
    return with_program('"format":1', '"format":1,"origin":{"x":' + "[" * 15 + "]" * 15 + "}")


@attack
def key_twice() -> bytes:
    return with_program('"format":1', '"format":2,"form\\u0061t":1')


@attack
def tensor_twice() -> bytes:
    packed = features_only()
    header = compact(packed.header())
    entry = compact({"mean.bias": packed.entries()["mean.bias"]})[1:-1]
    return assemble(f"{header[:-1]},{entry}}}", packed.data())


@attack
def half_a_surrogate_pair() -> bytes:
    return with_program('"format":1', '"format":1,"origin":{"x":"\\ud800"}')


@attack
def shape_product_overflows() -> bytes:
    def change(header: dict[str, Any]) -> None:  # 2^32 * 2^32 * 9 is 0 modulo 2^64
        header["mean.bias"]["shape"] = [2**32, 2**32, 9]

    return changed_header(change)


@attack
def shape_beyond_64_bits() -> bytes:
    return changed_header(lambda header: header["mean.bias"].update(shape=[2**64 + 9]))


@attack
def shape_negative() -> bytes:
    return changed_header(lambda header: header["mean.bias"].update(shape=[-3, -3]))


@attack
def offsets_overlap() -> bytes:
    return changed_header(lambda header: header["mean.bias"].update(data_offsets=[0, 36]))


@attack
def offsets_wrap() -> bytes:
    ends = [2**64 - 36, 2**64 - 1]
    return changed_header(lambda header: header["mean.bias"].update(data_offsets=ends))


@attack
def gap_between_tensors() -> bytes:
    packed = features_only()
    header = packed.header()
    for entry in list(header.values())[2:]:
        entry["data_offsets"] = [offset + 4 for offset in entry["data_offsets"]]
    data = packed.data()
    first = packed.entries()["stem.weight"]["data_offsets"][1]
    return assemble(compact(header), data[:first] + bytes(4) + data[first:])


@attack
def floats_not_aligned() -> bytes:
    packed = features_only()
    weight = packed.tensors.pop("block.weight")[:, :1, :1]
    packed.tensors = {"block.weight": weight, **packed.tensors}  # 9 bytes, then floats
    return packed.write()


@attack
def dtype_unknown() -> bytes:
    return changed_header(lambda header: header["mean.bias"].update(dtype="I32"))


@attack
def tensor_entry_unknown_key() -> bytes:
    return changed_header(lambda header: header["mean.bias"].update(device="cpu"))


@attack
def tensor_missing() -> bytes:
    return changed(lambda packed: packed.tensors.pop("mean.bias"))


@attack
def tensor_extra() -> bytes:
    return changed(lambda packed: packed.tensors.update(more=np.zeros(1, np.uint8)))


@attack
def shape_against_program() -> bytes:
    threshold = np.zeros(3, np.float32)
    return changed(lambda packed: packed.tensors.update({"block.threshold": threshold}))


@attack
def constant_nan() -> bytes:
    def change(packed: Packed) -> None:
        packed.tensors["block.slope"][8] = np.nan

    return changed(change)


@attack
def spare_bit_set() -> bytes:
    def change(packed: Packed) -> None:
        packed.tensors["block.weight"][8, 2, 2, 0] |= 4  # two channels: bits 0 and 1

    return changed(change)


@attack
def format_unknown() -> bytes:
    return changed(lambda packed: packed.program.update(format=6))


@attack
def format_float() -> bytes:
    return changed(lambda packed: packed.program.update(format=1.0))


@attack
def bool_as_integer() -> bytes:
    return changed(lambda packed: packed.layer("stem").update(stride=True))


@attack
def integer_as_bool() -> bytes:
    return changed(lambda packed: packed.layer("block").update(shortcut=0))


@attack
def layer_unknown_key() -> bytes:
    return changed(lambda packed: packed.layer("block").update(dilation=1))


@attack
def cycle() -> bytes:
    return changed(lambda packed: packed.layer("block").update(input="mean"))


@attack
def own_input() -> bytes:
    return changed(lambda packed: packed.layer("block").update(input="block"))


@attack
def shortcut_no_multiple() -> bytes:
    return changed(lambda packed: packed.layer("block").update(shortcut=True))


@attack
def classes_too_many() -> bytes:
    packed = classifier()
    packed.program["classes"].append("emu")
    return packed.write()


@attack
def metadata_not_strings() -> bytes:
    return changed(lambda packed: packed.metadata.update(epochs=100))


@attack
def classes_null() -> bytes:
    return changed(lambda packed: packed.program.update(classes=None))


@attack
def image_null() -> bytes:
    return changed(lambda packed: packed.program.update(image=None))


@attack
def origin_null() -> bytes:
    return changed(lambda packed: packed.program.update(origin=None))


@attack
def class_commands_the_terminal() -> bytes:
    packed = classifier()
    packed.program["classes"][1] = "\x1b[2Jdog"
    return packed.write()


@attack
def class_with_delete() -> bytes:
    packed = classifier()
    packed.program["classes"][1] = "dog\x7f"
    return packed.write()


@attack
def number_of_101_characters() -> bytes:
    return with_program('"format":1', '"format":1,"origin":{"x":' + "9" * 101 + "}")


@attack
def number_of_100_001_characters() -> bytes:
    return with_program('"format":1', '"format":1,"origin":{"x":1' + "0" * 100_000 + "}")


@attack
def number_not_finite() -> bytes:
    return with_program('"format":1', '"format":1,"origin":{"x":1.7976931348623159e308}')


@attack
def shape_empty() -> bytes:
    packed = features_only()
    packed.tensors["more"] = np.zeros((), np.uint8)
    return packed.write()


@attack
def shape_with_zero() -> bytes:
    return changed(lambda packed: packed.tensors.update(more=np.zeros((2, 0), np.uint8)))


def changed_gate(change: Callable[[Packed], object], base: Callable[[], Packed] = gated) -> bytes:
    packed = base()
    change(packed)
    return packed.write()


@attack
def gate_in_format_1() -> bytes:
    return changed_gate(lambda packed: packed.program.update(format=1))


@attack
def integers_in_format_1() -> bytes:
    return changed(lambda packed: packed.tensors.update(more=np.zeros(4, np.int16)))


@attack
def integers_out_of_line() -> bytes:
    packed = experts()
    odd = {"odd": np.zeros(1, np.uint8)}
    integers = {
        name: packed.tensors.pop(name) for name in ("b.1.side.0.weight", "b.1.side.1.weight")
    }
    packed.tensors |= odd | integers
    return packed.write()


@attack
def gate_of_wrong_size() -> bytes:
    tensor = {"b.1.gate.up.weight": np.zeros((4, 3), np.int16)}
    return changed_gate(lambda packed: packed.tensors.update(tensor))


@attack
def gate_with_nan() -> bytes:
    def change(packed: Packed) -> None:
        packed.tensors["b.2.gate.down.scale"][1] = np.nan

    return changed_gate(change)


@attack
def gate_unknown() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.1").update(gate="output"))


@attack
def gate_of_itself() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.1").update(input="b.1"))


@attack
def gate_of_a_later_layer() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.1").update(input="b.2"))


@attack
def product_without_shortcut() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.1").update(shortcut=False))


@attack
def experts_more_than_weights() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.1").update(experts=4), experts)


@attack
def experts_zero() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.1").update(experts=0), experts)


@attack
def experts_65() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.2").update(experts=65), experts)


@attack
def choice_of_another_number() -> bytes:
    tensor = {"b.1.choice.bias": np.zeros(2, np.float32)}
    return changed_gate(lambda packed: packed.tensors.update(tensor), experts)


@attack
def groups_that_do_not_divide() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.1").update(groups=3), experts)


@attack
def repeat_that_does_not_divide_groups() -> bytes:
    return changed_gate(lambda packed: packed.layer("b.2").update(repeat=3))


@attack
def side_of_another_width() -> bytes:
    tensor = {"b.1.side.1.weight": np.zeros((6, 4), np.int16)}
    return changed_gate(lambda packed: packed.tensors.update(tensor), experts)


@attack
def side_as_floats() -> bytes:
    tensor = {"b.1.side.1.weight": np.zeros((6, 3), np.float32)}
    return changed_gate(lambda packed: packed.tensors.update(tensor), experts)


@attack
def branches_in_the_middle() -> bytes:
    def change(packed: Packed) -> None:
        layers = packed.program["layers"]
        layers[0], layers[1] = layers[1], layers[0]
        layers[0]["input"], layers[1]["input"] = "image", "b.1"
        layers[2]["input"] = "stem"

    return changed_gate(change, experts)


@attack
def branch_narrower_than_its_reader() -> bytes:
    tensor = {"stem.widen.weight": np.zeros((3, 3, 3, 4), np.float32)}
    return changed_gate(lambda packed: packed.tensors.update(tensor), experts)


@attack
def scaled_in_format_2() -> bytes:
    return changed_gate(lambda packed: packed.program.update(format=2), scaled)


@attack
def scaled_not_said() -> bytes:
    return changed_gate(lambda packed: packed.layer("mean").pop("scaled"), scaled)


@attack
def scaled_as_integer() -> bytes:
    return changed_gate(lambda packed: packed.layer("mean").update(scaled=1), scaled)


@attack
def scale_not_wanted() -> bytes:
    return changed_gate(lambda packed: packed.layer("mean").update(scaled=False), scaled)


@attack
def scale_missing() -> bytes:
    return changed_gate(lambda packed: packed.tensors.pop("mean.scale"), scaled)


@attack
def scale_of_wrong_size() -> bytes:
    tensor = {"mean.scale": np.zeros(8, np.float32)}
    return changed_gate(lambda packed: packed.tensors.update(tensor), scaled)


@attack
def scale_infinite() -> bytes:
    tensor = {"mean.scale": np.full(9, np.inf, np.float32)}
    return changed_gate(lambda packed: packed.tensors.update(tensor), scaled)


def changed_also(also: Any) -> bytes:
    return changed_gate(lambda packed: packed.layer("mean").update(also=also), several)


@attack
def also_in_format_4() -> bytes:
    return changed_gate(lambda packed: packed.program.update(format=4), several)


@attack
def also_missing() -> bytes:
    return changed_gate(lambda packed: packed.layer("mean").pop("also"), several)


@attack
def also_null() -> bytes:
    return changed_also(None)


@attack
def also_of_numbers() -> bytes:
    return changed_also([1, 2])


@attack
def also_of_an_unknown_layer() -> bytes:
    return changed_also(["b.1", "b.4"])


@attack
def also_of_a_later_layer() -> bytes:
    return changed_also(["b.1", "top"])


@attack
def also_of_the_last_map() -> bytes:
    return changed_also(["b.1", "b.3"])


@attack
def also_of_itself() -> bytes:
    return changed_also(["b.1", "mean"])


@attack
def also_of_the_first_convolution() -> bytes:
    return changed_also(["stem", "b.1"])


@attack
def also_twice() -> bytes:
    return changed_also(["b.1", "b.1"])


@attack
def also_out_of_order() -> bytes:
    return changed_also(["b.2", "b.1"])


@attack
def also_of_17() -> bytes:
    return changed_also(["b.1"] * 17)


@attack
def also_fewer_than_biases() -> bytes:
    return changed_also(["b.1"])


@attack
def also_bias_of_the_last_map() -> bytes:
    tensor = {"mean.bias": np.zeros(3, np.float32)}
    return changed_gate(lambda packed: packed.tensors.update(tensor), several)


def main() -> None:
    for old in FOLDER.glob("*.bnn"):
        old.unlink()
    for name, make in ATTACKS.items():
        (FOLDER / f"{name}.bnn").write_bytes(make())


if __name__ == "__main__":
    main()
