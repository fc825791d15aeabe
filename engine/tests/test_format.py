"""Tests that a file which breaks a rule of docs/project/pack-format.md is refused with a reason."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

import packed
from burn_engine import ModelError
from burn_engine.format import Convolution, ImageSize, parse_program, read_program


def refuses(data, message):
    with pytest.raises(ModelError) as caught:
        parse_program(data)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("network", packed.NETWORKS)
def test_reads_what_was_written(network):
    built = packed.random_network(**packed.NETWORKS[network])
    program = parse_program(built.to_bytes())
    assert [layer.name for layer in program.layers] == [
        layer["name"] for layer in built.program["layers"]
    ]
    assert program.layers[program.features].name == built.program["features"]
    assert list(program.classes) == built.program.get("classes", [])
    image = built.program.get("image")
    assert program.image == (ImageSize(image["resize"], image["size"]) if image else None)
    assert program.origin == {"recipe": "test"}
    read = {
        f"{layer.name}.{key}": array
        for layer in program.layers
        for key, array in layer.tensors().items()
    }
    expected = dict(built.tensors)
    for name in [name for name in expected if ".side." in name and name.endswith(".scale")]:
        weight = name.replace(".scale", ".weight")  # integers, which are read as floats
        expected[weight] = expected.pop(name)[:, None] * expected[weight]
    assert read.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(read[name], array)


def good():
    """Return the header and the data of a valid file with classes."""
    return packed.random_network(first=(3, 3, 2), num_classes=4, blocks=[(6, 3, 1, True)]).header()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too short"),
        (b"\0" * 7, "too short"),
        (packed.raw(b"", b""), "length 0 is not in 2"),
        (packed.raw(b"{", b""), "length 1 is not in 2"),
        (packed.raw(b"{}", b"", length=10_000_001), "length 10000001 is not in 2"),
        (packed.raw(b"{}", b"", length=2**64 - 1), "is not in 2"),
        (packed.raw(b"{}", b"", length=3), "reaches past the end"),
        (packed.raw(b'{"\xff"}', b""), "not UTF-8 at byte 2"),
        (packed.raw(b'{"\xed\xa0\x80": 1}', b""), "not UTF-8"),
        (packed.raw(b"\xef\xbb\xbf{}", b""), "not JSON"),
        (packed.raw("{'a': 1}", b""), "header: not JSON"),
        (packed.raw("{} {}", b""), "header: not JSON"),
        (packed.raw('{"a": "\x01"}', b""), "header: not JSON"),
        (packed.raw("[1, 2]", b""), "header: not an object"),
        (packed.raw('{"a": NaN}', b""), "NaN is not finite"),
        (packed.raw('{"a": -Infinity}', b""), "-Infinity is not finite"),
        (packed.raw('{"a": 1e999}', b""), "'1e999' is not finite"),
        (packed.raw('{"a": -1.7976931348623159e308}', b""), "9e308' is not finite"),
        (packed.raw('{"a": ' + "9" * 5000 + "}", b""), "has more than 100 characters"),
        (packed.raw('{"a": ' + "9" * 101 + "}", b""), "has more than 100 characters"),
        (packed.raw('{"a": -0.' + "0" * 98 + "}", b""), "has more than 100 characters"),
        (packed.raw('{"a": "\\ud800"}', b""), "lone surrogate"),
        (packed.raw('{"\\udc00": 1}', b""), "lone surrogate"),
        (packed.raw('{"a": ["\\udc00\\ud800"]}', b""), "lone surrogate"),
        (packed.raw('{"a": 1, "\\u0061": 2}', b""), "key 'a' appears twice"),
        (packed.raw('{"a": {"b": 1, "b": 1}}', b""), "key 'b' appears twice"),
        (packed.raw('{"a": ' + "[" * 16 + "]" * 16 + "}", b""), "deeper than 16"),
        (packed.raw("[" * 5_000_000, b""), "deeper than 16"),
        (packed.raw('{"a":' * 100_000, b""), "deeper than 16"),
        (packed.raw('"' + '\\"' * 2_000_000, b""), "not JSON"),
        (packed.raw("{}", b""), "no __metadata__ object"),
        (packed.raw({"__metadata__": []}, b""), "no __metadata__ object"),
        (packed.raw({"__metadata__": {"bnn": 1}}, b""), "'bnn' is 1, not a string"),
        (packed.raw({"__metadata__": {"a": None, "bnn": ""}}, b""), "'a' is None, not a string"),
        (packed.raw({"__metadata__": {"a": "b"}}, b""), "has no 'bnn'"),
    ],
)
def test_refuses_headers(data, message):
    refuses(data, message)


def test_brackets_in_strings_are_not_nesting_and_16_levels_are_read():
    network = packed.random_network()
    deep = 1
    for _ in range(14):  # the program and origin are two more levels
        deep = [deep]
    network.program["origin"] = {"a": '[[[[[[[[[[[[[[[[[[\\"[[[[', "b": deep}
    parse_program(network.to_bytes())
    network.program["origin"]["b"] = [deep]
    refuses(network.to_bytes(), "program: nested deeper than 16")


def test_numbers_up_to_the_largest_are_read():
    program = packed.random_network().program
    numbers = ["9" * 100, "0." + "0" * 92 + "1e401", "1.7976931348623158e308", "0e9999", "1e-9999"]
    program["origin"] = {"a": 0}
    text = json.dumps(program).replace('{"a": 0}', f'{{"a": [{", ".join(numbers)}]}}')
    header, data = packed.random_network().header()
    header["__metadata__"]["bnn"] = text
    origin = parse_program(packed.raw(header, data)).origin
    assert origin is not None
    assert len(origin["a"]) == len(numbers)


def test_another_format_is_refused_before_all_other_rules():
    network = packed.random_network()
    network.program = {"format": 6, "new": None}
    header, data = network.header()
    header["stem.bias"]["dtype"] = "I64"
    words = "program: format 6; this reader knows 1, 2, 3, 4 and 5: update burn-engine"
    refuses(packed.raw(header, data), words)


def test_other_metadata_and_the_order_of_the_header_do_not_matter():
    header, data = good()
    header["__metadata__"]["format"] = "pt"
    parse_program(packed.raw(dict(reversed(header.items())), data))


def entry(**changes):
    """Return a change of the first tensor's entry; None removes a key."""

    def edit(header):
        header["stem.weight"].update(changes)
        for key, value in changes.items():
            if value is None:
                del header["stem.weight"][key]

    return edit


def whole(value):
    def edit(header):
        header["stem.weight"] = value

    return edit


def shift(by, names=None):
    """Return a change that moves the offsets of tensors."""

    def edit(header):
        for name in names or [name for name in header if name != "__metadata__"]:
            begin, end = header[name]["data_offsets"]
            header[name]["data_offsets"] = [begin + by, end + by]

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (whole(1), "tensor 'stem.weight': 1 is not an object"),
        (whole([]), "is not an object"),
        (entry(dtype=None), "dtype is missing"),
        (entry(shape=None), "shape is missing"),
        (entry(data_offsets=None), "data_offsets is missing"),
        (entry(more=1), "unknown key 'more'"),
        (entry(dtype="F64"), "dtype 'F64' is none of F32, U8"),
        (entry(dtype=["F32"]), "dtype ['F32'] is none of"),
        (entry(dtype="I8"), "dtype 'I8' is none of F32, U8"),
        (entry(shape=81), "shape 81 is not"),
        (entry(shape=[]), "shape [] is not"),
        (entry(shape=[0, 3, 3, 3]), "shape [0, 3, 3, 3] is not"),
        (entry(shape=[3, 3, -3, -3]), "is not 1 to 4 positive"),
        (entry(shape=[3.0, 3, 3, 3]), "is not 1 to 4 positive"),
        (entry(shape=[True, 81]), "is not 1 to 4 positive"),
        (entry(shape=["81"]), "is not 1 to 4 positive"),
        (entry(shape=[81, 1, 1, 1, 1]), "is not 1 to 4 positive"),
        (entry(shape=[2**64, 2**64]), "is not 1 to 4 positive"),
        (entry(shape=[2**30, 2**30, 2**30, 2**30]), "has 53169119831396634916152282411"),
        (entry(shape=[2**16, 2**16, 2**16, 2**16]), "hold 324 bytes, but F32"),
        (entry(shape=[3, 3, 3, 4]), "hold 324 bytes, but F32 [3, 3, 3, 4] has 432"),
        (entry(dtype="U8"), "hold 324 bytes, but U8 [3, 3, 3, 3] has 81"),
        (entry(data_offsets=[0]), "are not two positions"),
        (entry(data_offsets=[0, 324, 0]), "are not two positions"),
        (entry(data_offsets=[0, 324.0]), "are not two positions"),
        (entry(data_offsets=[False, 324]), "are not two positions"),
        (entry(data_offsets=[-324, 0]), "are not two positions"),
        (entry(data_offsets=[2**64, 2**64 + 324]), "are not two positions"),
        (entry(data_offsets=[324, 0]), "hold -324 bytes"),
        (shift(4), "begins at 4, not 0: a gap"),
        (shift(-4, ["stem.bias"]), "begins at 320, not 324: it overlaps"),
        (shift(324, ["stem.weight"]), "begins at 324, not 0: a gap"),
        (lambda header: header.pop("stem.weight"), "a gap"),
    ],
)
def test_refuses_entries(edit, message):
    header, data = good()
    edit(header)
    refuses(packed.raw(header, data), message)


def test_refuses_missing_and_trailing_bytes():
    header, data = good()
    refuses(packed.raw(header, data[:-1]), f"end at {len(data)}, but there are {len(data) - 1}")
    refuses(packed.raw(header, data + b"\0"), f"end at {len(data)}, but there are {len(data) + 1}")


def test_refuses_floats_out_of_line():
    header, data = good()
    text = json.dumps(header)
    text += " " * (-len(text) % 8 + 1)
    refuses(packed.raw(text.encode(), data), "is not a multiple of 4")


NAMES = "1 to 100 of A-Z a-z 0-9 _ ."


def layers(edit):
    """Return a change of the program's list of layers."""
    return lambda network: edit(network.program["layers"])


def field(name, key, value):
    def edit(network):
        if value is None:
            del network.layer(name)[key]
        else:
            network.layer(name)[key] = value

    return edit


def top(key, value):
    def edit(network):
        network.program[key] = value

    return edit


def without(key):
    return lambda network: network.program.pop(key)


def tensor(name, value):
    """Return a change of a tensor; None removes it."""

    def edit(network):
        if value is None:
            del network.tensors[name]
        elif callable(value):
            network.tensors[name] = value(network.tensors[name])
        else:
            network.tensors[name] = np.asarray(value)

    return edit


def one_number(value):
    def edit(array):
        array.flat[-1] = value
        return array

    return edit


def zeros(*shape, dtype="f4"):
    return np.zeros(shape, dtype)


def rename(network):
    network.layer("stem")["name"] = "a\n"
    network.layer("block0")["input"] = "a\n"


# Layers: stem (3 channels, k 3), block0 (12, k 3, shortcut), pool, linear0 (5), classifier (4).
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without("format"), "format None; this reader knows 1, 2, 3, 4 and 5"),
        (top("format", 6), "format 6; this reader knows 1, 2, 3, 4 and 5: update burn-engine"),
        (top("format", 0), "format 0; this reader knows 1, 2, 3, 4 and 5"),
        (top("format", True), "format True; this reader knows 1, 2, 3, 4 and 5"),
        (top("format", 1.0), "format 1.0; this reader knows 1, 2, 3, 4 and 5"),
        (top("format", "1"), "format '1'; this reader knows 1, 2, 3, 4 and 5"),
        (top("more", 1), "program: unknown key 'more'"),
        (without("layers"), "program: layers is missing"),
        (without("features"), "program: features is missing"),
        (top("layers", {}), "layers is not an array of 3 to 1000 (found {})"),
        (layers(lambda one: one.clear()), "(found 0)"),
        (layers(lambda one: one.__delitem__(slice(2, None))), "(found 2)"),
        (layers(lambda one: one.extend([one[-1]] * 996)), "(found 1001)"),
        (layers(lambda one: one.insert(0, 1)), "layer 0: 1 is not an object"),
        (field("stem", "kind", None), "layer 0: kind None is none of convolution"),
        (field("stem", "kind", "relu"), "kind 'relu' is none of"),
        (field("stem", "kind", ["linear"]), "kind ['linear'] is none of"),
        (field("stem", "name", None), NAMES),
        (field("stem", "name", ""), NAMES),
        (field("stem", "name", "a" * 101), NAMES),
        (field("stem", "name", "a/b"), NAMES),
        (field("stem", "name", "é"), NAMES),
        (field("stem", "name", 1), NAMES),
        (rename, NAMES),
        (field("stem", "name", "image"), "the name is reserved"),
        (field("block0", "name", "stem"), "layer 1 (stem): the name is taken"),
        (field("stem", "input", None), "layer 0 (stem): input is missing"),
        (field("stem", "input", "stem"), "input 'stem' is not the layer before it, 'image'"),
        (field("block0", "input", "block0"), "input 'block0' is not the layer before it, 'stem'"),
        (field("block0", "input", "pool"), "input 'pool' is not the layer before it, 'stem'"),
        (field("pool", "input", "stem"), "input 'stem' is not the layer before it, 'block0'"),
        (field("pool", "input", ["block0"]), "input ['block0'] is not"),
        (layers(lambda one: one.pop(0)), "layer 0 (block0): input 'stem'"),
        (layers(lambda one: one.reverse()), "layer 0 (classifier): input 'linear0'"),
        (field("stem", "stride", 0), "stride 0 is neither 1 nor 2"),
        (field("stem", "stride", 3), "stride 3 is neither 1 nor 2"),
        (field("stem", "stride", True), "stride True is neither 1 nor 2"),
        (field("stem", "stride", 2.0), "stride 2.0 is neither 1 nor 2"),
        (field("stem", "stride", None), "stride is missing"),
        (field("stem", "more", 1), "layer 0 (stem): unknown key 'more'"),
        (field("stem", "relu", True), "layer 0 (stem): unknown key 'relu'"),
        (field("pool", "stride", 1), "layer 2 (pool): unknown key 'stride'"),
        (field("block0", "stride", [1]), "stride [1] is neither 1 nor 2"),
        (field("block0", "shortcut", 1), "shortcut 1 is neither true nor false"),
        (field("block0", "shortcut", None), "shortcut is missing"),
        (field("linear0", "relu", 0), "relu 0 is neither true nor false"),
        (field("linear0", "relu", None), "relu is missing"),
        (tensor("stem.weight", None), "tensor 'stem.weight' is missing"),
        (tensor("stem.padding", None), "tensor 'stem.padding' is missing"),
        (tensor("block0.slope", None), "tensor 'block0.slope' is missing"),
        (tensor("pool.bias", None), "tensor 'pool.bias' is missing"),
        (tensor("extra", zeros(1)), "tensor 'extra' belongs to no layer"),
        (tensor("pool.weight", zeros(1)), "tensor 'pool.weight' belongs to no layer"),
        (tensor("a\x1b[31m\n", zeros(1)), "belongs to no layer"),
        (tensor("stem.weight", zeros(3, 3, 3, 3, dtype="u1")), "has dtype U8, expected F32"),
        (tensor("block0.weight", zeros(12, 3, 3, 1)), "has dtype F32, expected U8"),
        (tensor("stem.bias", zeros(3, dtype="u1")), "has dtype U8, expected F32"),
        (tensor("stem.weight", zeros(3, 2, 2, 3)), "shape [3, 2, 2, 3], expected [out, k, k, 3]"),
        (tensor("stem.weight", zeros(3, 9, 9, 3)), "shape [3, 9, 9, 3], expected [out, k, k, 3]"),
        (tensor("stem.weight", zeros(3, 3, 5, 3)), "the kernel is not square"),
        (tensor("stem.weight", zeros(3, 3, 3, 1)), "expected [out, k, k, 3]"),
        (tensor("stem.weight", zeros(27, 3)), "expected [out, k, k, 3]"),
        (tensor("stem.weight", zeros(4_097, 1, 1, 3)), "out in 1 … 4096"),
        (tensor("stem.bias", zeros(4)), "shape [4], expected [3]"),
        (tensor("stem.bias", zeros(3, 1)), "shape [3, 1], expected [3]"),
        (tensor("stem.padding", zeros(1)), "shape [1], expected [3]"),
        (tensor("block0.weight", zeros(12, 3, 3, 2, dtype="u1")), "expected [out, k, k, 1]"),
        (tensor("block0.weight", zeros(12, 5, 5, 1, dtype="u1")), "k in 1, 3"),
        (tensor("block0.weight", zeros(12, 1, 3, 1, dtype="u1")), "the kernel is not square"),
        (tensor("block0.weight", zeros(4_098, 1, 1, 1, dtype="u1")), "out in 1 … 4096"),
        (tensor("block0.weight", one_number(0b1000)), "bits after the last channel are not 0"),
        (tensor("block0.weight", zeros(13, 3, 3, 1, dtype="u1")), "from 3 to 13 channels"),
        (tensor("block0.weight", zeros(2, 3, 3, 1, dtype="u1")), "from 3 to 2 channels"),
        (tensor("block0.threshold", zeros(12)), "shape [12], expected [3]"),
        (tensor("block0.multiplier", zeros(3)), "shape [3], expected [12]"),
        (tensor("block0.bias", zeros(3)), "shape [3], expected [12]"),
        (tensor("block0.slope", zeros(3)), "shape [3], expected [12]"),
        (tensor("pool.bias", zeros(3)), "shape [3], expected [12]"),
        (tensor("linear0.weight", zeros(5, 11)), "expected [out, 12]"),
        (tensor("linear0.weight", zeros(60)), "expected [out, 12]"),
        (tensor("linear0.bias", zeros(6)), "shape [6], expected [5]"),
        (tensor("stem.weight", one_number(np.nan)), "'stem.weight' has a number that is not fin"),
        (tensor("block0.threshold", one_number(np.inf)), "threshold' has a number that is not"),
        (tensor("classifier.bias", one_number(-np.inf)), "bias' has a number that is not finite"),
        (top("features", "classifier"), "features 'classifier' is not the layer 'linear0'"),
        (top("features", "pool"), "features 'pool' is not the layer 'linear0', the last but one"),
        (top("features", "none"), "features 'none' is not the layer"),
        (top("features", 3), "features 3 is not the layer"),
        (without("classes"), "features 'linear0' is not the layer 'classifier', the last one"),
        (top("classes", None), "classes None is not an array"),
        (top("classes", {}), "classes {} is not an array"),
        (top("classes", []), "0 classes, but 'classifier' has 4 outputs"),
        (top("classes", list("abc")), "3 classes, but 'classifier' has 4 outputs"),
        (top("classes", list("abca")), "two classes have the same name"),
        (top("classes", ["a", "b", "c", ""]), "class '' is not a non-empty string"),
        (top("classes", ["a", "b", "c", 1]), "class 1 is not a non-empty string"),
        (top("classes", ["a", "b", "c", "d\t"]), "class 'd\\t' has a control character"),
        (top("classes", ["a", "b", "c", "\x00"]), "has a control character"),
        (top("classes", ["a", "b", "c", "\x1f"]), "has a control character"),
        (top("classes", ["a", "b", "c", "\x7f"]), "has a control character"),
        (top("image", None), "program: image: None is not an object"),
        (top("image", [256, 224]), "is not an object"),
        (top("image", {"size": 8}), "image: resize is missing"),
        (top("image", {"resize": 8, "size": 8, "mean": 0}), "image: unknown key 'mean'"),
        (top("image", {"resize": 8, "size": 9}), "image resize 8, size 9: not integers with"),
        (top("image", {"resize": 8, "size": 0}), "image resize 8, size 0"),
        (top("image", {"resize": 4097, "size": 8}), "image resize 4097, size 8"),
        (top("image", {"resize": 8.0, "size": 8}), "image resize 8.0, size 8"),
        (top("image", {"resize": 8, "size": True}), "image resize 8, size True"),
        (top("origin", "me"), "origin 'me' is not an object"),
        (top("origin", None), "origin None is not an object"),
        (top("origin", {"a": "\ud800"}), "program: a string with a lone surrogate"),
        (top("origin", {"a": float("nan")}), "program: the number NaN is not finite"),
    ],
)
def test_refuses_programs(edit, message):
    network = packed.random_network(
        first=(3, 3, 2), blocks=[(12, 3, 1, True)], linears=[5], num_classes=4
    )
    parse_program(network.to_bytes())
    edit(network)
    refuses(network.to_bytes(), message)


KINDS = {"convolution": "c", "binary_convolution": "b", "global_mean": "g", "linear": "l"}


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("bbg", "layer 0 (l0): binary_convolution cannot follow image; expected convolution"),
        ("cgl", "layer 1 (l1): global_mean cannot follow convolution"),
        ("ccbg", "layer 1 (l1): convolution cannot follow convolution"),
        ("cbcg", "layer 2 (l2): convolution cannot follow binary_convolution"),
        ("cblg", "layer 2 (l2): linear cannot follow binary_convolution"),
        ("cbgg", "layer 3 (l3): global_mean cannot follow global_mean"),
        ("cbglb", "layer 4 (l4): binary_convolution cannot follow linear"),
        ("cbb", "no global_mean after"),
    ],
)
def test_refuses_another_order_of_kinds(order, message):
    kinds = {letter: kind for kind, letter in KINDS.items()}
    fields = {
        "c": {"stride": 1},
        "b": {"stride": 1, "shortcut": False},
        "g": {},
        "l": {"relu": False},
    }
    arrays = {
        "c": {"weight": zeros(8, 1, 1, 3), "bias": zeros(8), "padding": zeros(3)},
        "b": {
            "weight": zeros(8, 1, 1, 1, dtype="u1"),
            **{key: zeros(8) for key in ("threshold", "multiplier", "bias", "slope")},
        },
        "g": {"bias": zeros(8)},
        "l": {"weight": zeros(8, 8), "bias": zeros(8)},
    }
    network = packed.Packed({"format": 1, "layers": [], "features": f"l{len(order) - 1}"}, {})
    before = "image"
    for index, letter in enumerate(order):
        name = f"l{index}"
        network.program["layers"].append(
            {"kind": kinds[letter], "name": name, "input": before, **fields[letter]}
        )
        for key, array in arrays[letter].items():
            network.tensors[f"{name}.{key}"] = array
        before = name
    refuses(network.to_bytes(), message)


def test_refuses_a_program_that_is_no_object():
    refuses(packed.raw({"__metadata__": {"bnn": "[]"}}, b""), "program: not an object")
    refuses(packed.raw({"__metadata__": {"bnn": ""}}, b""), "program: not JSON")
    refuses(packed.raw({"__metadata__": {"bnn": '{"a": 1, "a": 1}'}}, b""), "appears twice")


def test_refuses_classes_without_a_classifier():
    network = packed.random_network()
    network.program["classes"] = ["a"] * 16
    refuses(network.to_bytes(), "classes without a classifier")


def test_files(tmp_path):
    path = tmp_path / "model.bnn"
    with pytest.raises(FileNotFoundError):
        read_program(path)
    with pytest.raises(ModelError, match="not a regular file"):
        read_program(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="pipe: not a regular file"):
        read_program(tmp_path / "pipe")
    path.write_bytes(b"12345678")
    with pytest.raises(ModelError, match=r"model\.bnn: not a packed file: the header's length"):
        read_program(path)
    with path.open("wb") as file:
        file.truncate(2**30 + 1)  # sparse
    with pytest.raises(ModelError, match=r"1073741825 bytes long; .* at most 1073741824"):
        read_program(path)
    path.write_bytes(packed.random_network().to_bytes())
    stem = read_program(path).layers[0]
    assert isinstance(stem, Convolution)
    before = stem.weight.copy()
    path.write_bytes(b"")
    np.testing.assert_array_equal(stem.weight, before)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_never_raise_anything_else(seed):
    random = np.random.default_rng(seed)
    whole_file = packed.random_network(num_classes=4).to_bytes()
    for _ in range(150):
        damaged = bytearray(whole_file)
        for position in random.integers(0, 2500, random.integers(1, 4)):
            damaged[position] = random.integers(0, 256)
        with contextlib.suppress(ModelError):
            parse_program(bytes(damaged))
    for end in random.integers(0, len(whole_file), 50):
        with pytest.raises(ModelError):
            parse_program(whole_file[:end])


ATTACKS = sorted((Path(__file__).parents[2] / "tests" / "attacks" / "packed").glob("*.bnn"))


@pytest.mark.skipif(not ATTACKS, reason="without the repository around the engine")
def test_refuses_the_attacks():
    for path in ATTACKS:
        with pytest.raises(ModelError, match=f"{path.name}: "):
            read_program(path)


# Layers of "experts": stem (32), block0 (64, 2 groups, 3 experts, side 5, 64), block1 (64, 4
# groups, 2 experts), block2 (64, k 1, 4 experts), block3 (96, 2 groups, 2 experts, side 96), pool.
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (top("format", 1), "dtype 'I16' is none of F32, U8"),
        (field("block0", "groups", 0), "groups 0 is not an integer in 1 … 4096"),
        (field("block0", "groups", True), "groups True is not"),
        (field("block0", "groups", 3), "3 groups of 32 inputs repeated 1 times, which is not"),
        (field("block0", "repeat", 4), "2 groups of 32 inputs repeated 4 times, which is not"),
        (field("block0", "repeat", 17), "repeat 17 is not an integer in 1 … 16"),
        (field("block0", "repeat", 2), "tensor 'block0.weight' has shape"),
        (field("block0", "experts", 0), "experts 0 is not an integer in 1 … 64"),
        (field("block0", "experts", 65), "experts 65 is not"),
        (field("block0", "experts", 5), "192 weights are not a multiple of 5 experts"),
        (field("block0", "experts", 2), "tensor 'block0.bias' has shape [64], expected [96]"),
        (field("block0", "gate", "both"), "gate 'both' is none of none, input, mixed"),
        (field("block0", "gate", ["input"]), "gate ['input'] is none of"),
        (field("block0", "gate", "none"), "tensor 'block0.gate.down.scale' belongs to no"),
        (field("block3", "gate", "input"), "tensor 'block3.gate.down.weight' is missing"),
        (field("block3", "gate", "mixed"), "a mixed gate from 64 to 96 channels"),
        (field("block0", "product", 1), "product 1 is neither true nor false"),
        (field("block0", "side", 3), "side 3 is none of 0, 1, 2"),
        (field("block0", "side", False), "side False is none of"),
        (field("block0", "side", 1), "tensor 'block0.side.0.weight' has shape [5, 32]"),
        (field("block0", "side", 0), "tensor 'block0.shortcut_slope' is missing"),
        (field("block3", "side", 0), "a shortcut from 64 to 96 channels"),
        (field("block0", "shortcut", False), "side without a shortcut"),
        (field("block0", "side", None), "side is missing"),
        (field("block0", "more", 1), "unknown key 'more'"),
        (field("stem", "second_stride", 3), "second_stride 3 is neither 1 nor 2"),
        (tensor("block0.choice.weight", None), "tensor 'block0.choice.weight' is missing"),
        (tensor("block0.gate.down.bias", np.zeros(4, "f4")), "has shape [4], expected [3]"),
        (tensor("block0.gate.up.weight", np.zeros((64, 4), "i2")), "expected [64, 3]"),
        (tensor("block0.gate.up.weight", np.zeros((64, 3), "f4")), "dtype F32, expected I16"),
        (tensor("block0.gate.up.scale", None), "tensor 'block0.gate.up.scale' is missing"),
        (tensor("block0.gate.down.scale", np.full(3, np.nan, "f4")), "is not finite"),
        (tensor("block0.scale", np.full(64, np.nan, "f4")), "is not finite"),
        (tensor("block0.side.0.weight", np.zeros((5, 32), "u1")), "has dtype U8, expected I16"),
        (tensor("stem.narrow.weight", np.zeros((5, 7), "f4")), "expected [1 … 4096, 6]"),
        (tensor("stem.widen.weight", np.zeros((7, 5, 5, 5), "f4")), "k in 1, 3"),
        (tensor("stem.last.bias", None), "tensor 'stem.last.bias' is missing"),
    ],
)
def test_refuses_gates_and_branches(edit, message):
    network = packed.random_network(**packed.NETWORKS["experts"])
    edit(network)
    refuses(network.to_bytes(), message)


@pytest.mark.parametrize(
    ("network", "array", "message"),
    [
        ("experts", np.zeros((5, 32), "f4"), "'block0.side.0.weight' has dtype F32, expected I16"),
        (
            "float sides",
            np.zeros((5, 32), "i2"),
            "'block0.side.0.weight' has dtype I16, expected F32",
        ),
        ("float sides", np.full((5, 32), np.inf, "f4"), "has a number that is not finite"),
        ("float sides", np.zeros((5, 31), "f4"), "has shape [5, 31], expected"),
    ],
)
def test_refuses_sides_of_another_format(network, array, message):
    built = packed.random_network(**packed.NETWORKS[network])
    built.tensors["block0.side.0.weight"] = array
    refuses(built.to_bytes(), message)


def test_refuses_a_scale_of_float_sides():
    built = packed.random_network(**packed.NETWORKS["float sides"])
    built.tensors["block0.side.0.scale"] = np.ones(5, "f4")
    refuses(built.to_bytes(), "tensor 'block0.side.0.scale' belongs to no layer")


def test_refuses_integers_in_format_1():
    network = packed.random_network()
    network.tensors["more"] = np.zeros(4, np.int16)
    refuses(network.to_bytes(), "tensor 'more': dtype 'I16' is none of F32, U8")


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (None, "layer 7 (pool): also None is not an array"),
        (["block0"] * 17, "layer 7 (pool): also has 17 names, at most 16 are allowed"),
        *(
            ([one], f"also names {one!r}, which is no binary or gated convolution before 'block5'")
            for one in (1, ["block0"], "block6", "block5", "pool", "classifier", "stem", "image")
        ),
        (["block0", "block0"], "also names 'block0' after 'block0', needs each name once"),
        (["block1", "block0"], "also names 'block0' after 'block1', needs each name once"),
        ([], "tensor 'pool.bias' has shape [213], expected [66]"),
        (["block0"], "tensor 'pool.bias' has shape [213], expected [82]"),
    ],
)
def test_refuses_other_maps(also, message):
    network = packed.random_network(**packed.NETWORKS["several"])
    network.layer("pool")["also"] = also
    refuses(network.to_bytes(), message)


@pytest.mark.parametrize("format", [3, 4])
def test_refuses_other_maps_in_an_older_format(format):
    network = packed.random_network(**packed.NETWORKS["several"])
    network.program["format"] = format
    refuses(network.to_bytes(), "layer 7 (pool): unknown key 'also'")


def test_a_program_of_format_5_says_which_maps():
    network = packed.random_network(**packed.NETWORKS["scaled"])
    network.program["format"] = 5
    refuses(network.to_bytes(), "(pool): also is missing")
    network.layer("pool")["also"] = []
    assert parse_program(network.to_bytes()).fingerprint() == fingerprint("scaled")


def test_the_fingerprint_depends_on_the_maps():
    # Blocks 2 and 3 have the same number of channels, so that nothing else differs.
    one, other = (fingerprint("several", also=(0, at, 4)) for at in (2, 3))
    assert one != other
    assert one == fingerprint("several", also=(0, 2, 4))


def fingerprint(network, **settings):
    built = packed.random_network(**packed.NETWORKS[network] | settings)
    return parse_program(built.to_bytes()).fingerprint()
