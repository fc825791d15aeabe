"""Packed files exported as C: compiled here, under sanitizers, and compared layer by layer.

Each layer is compared on the inputs that the C code gave it, so that a sign that rounding turned
does not change what is compared after it.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import (
    GATED,
    SANITIZERS,
    SHAPES,
    STRICT,
    Host,
    call,
    digits,
    digits_file,
    host,
    need,
    noise,
    random_file,
)
from interpreter import read, run_layer
from safetensors import safe_open
from safetensors.numpy import save_file
from samples import NETWORKS, save

import burn_engine
from burn.cli.main import main
from burn.core.errors import UserError
from burn.deploy.c import arena, export, fixed_point, source
from burn.deploy.c.arena import Geometry, plan_arena
from burn.deploy.c.export import export_c
from burn.deploy.c.fixed_point import to_integers
from burn.deploy.c.fixed_point_run import run_integers
from burn.deploy.c.source import geometry_of
from burn.deploy.layout import Array
from burn.deploy.pack import pack
from burn_engine import reference
from burn_engine.format import BinaryConvolution, Convolution, GatedConvolution, read_program
from networks import randomize, tiny_reactnet

EPILOGUES = ("float", "int32", "int16")


def reactnet(folder: Path, name: str) -> tuple[Path, int]:
    settings, size = NETWORKS[name]
    backbone = randomize(tiny_reactnet(**settings)).eval()
    pack(save(folder / "n.safetensors", backbone, size=size), folder / "n.bnn")
    return folder / "n.bnn", size


def sizes(layer: Any, x: Array) -> Array:
    """The sum of the absolute values of the terms of each output, for rounding errors."""
    if isinstance(layer, Convolution):
        pixel = np.maximum(1, abs(layer.padding))
        return abs(layer.bias) + (abs(layer.weight) * pixel).sum(axis=(1, 2, 3))
    if isinstance(layer, BinaryConvolution):
        terms = np.prod(layer.weight.shape[1:]) * abs(layer.multiplier)
        steepest = np.maximum(1, abs(layer.slope))
        return steepest * (terms + abs(layer.bias) + (abs(x).max() if layer.shortcut else 0))
    if hasattr(layer, "weight"):
        return abs(x).max() * abs(layer.weight).sum(axis=1) + abs(layer.bias)
    return abs(x).max() + abs(layer.bias)


def check_float(network: Host, packed: Path, images: Array) -> None:
    program, layers = read_program(packed), read(packed)[1]
    geometry = geometry_of(program, images.shape[1])
    x: Array = images
    for layer, formula, flat, size in zip(
        program.layers, layers, network.maps(images, len(geometry)), geometry, strict=False
    ):
        found = flat.reshape(len(images), -1, size.out_size, size.out_channels)
        expected = reference.run_layer(layer, x)
        rows = found.shape[1]
        # Sums of at most 147 terms in float32, one after the other, on both sides; a binary sum is
        # exact, and three more operations follow it.
        tolerance = 2 * 150 * 2**-24 * sizes(formula, x)
        assert (abs(found - expected[:, :rows]) <= tolerance).all(), layer.name
        x = np.zeros_like(expected)
        x[:, :rows] = found
    best, scores = network.run(images)
    for layer, formula in zip(
        program.layers[len(geometry) :], layers[len(geometry) :], strict=True
    ):
        scale, x = sizes(formula, x), reference.run_layer(layer, x)
    # Sums of at most 480 terms in up to three layers, each of which adds up the errors before it.
    assert (abs(scores - x) <= 8 * 480 * 2**-24 * scale).all()
    assert np.array_equal(best, scores.argmax(axis=1) if len(program.classes) else best)


def largest_error(part: Any, size: Geometry, formula: Any, x: Array) -> float:
    """The most that an output in integers can differ from that in real numbers, of the same input.

    See the formulas in `fixed_point`, whose F and e are `sum_bits` and `slope_bits` here.
    """
    of_output = 2.0 ** -(part.bits + 1)
    if not size.is_binary:
        return (size.inputs * 255 / 2 + 0.5) * 2.0 ** -(part.shift + part.bits) + of_output
    sum_bits = part.positive_shift + part.bits
    slope_bits = part.negative_shift - part.positive_shift + 32
    steepest = max(1.0, float(abs(formula.slope).max()))
    of_sum = (size.inputs + 1) * 2.0 ** -(sum_bits + 1)
    most = float((size.inputs * abs(formula.multiplier) + abs(formula.bias)).max())  # of |t|
    most += float(abs(x).max()) if formula.shortcut else 0.0
    of_slope = most * 2.0 ** -(slope_bits + 1)
    of_product = 2.0 ** -(sum_bits + slope_bits - 32)
    return steepest * of_sum + of_slope + of_product + of_output


def check_integers(network: Host, packed: Path, images: Array) -> None:
    program, layers = read_program(packed), read(packed)[1]
    geometry = geometry_of(program, images.shape[1])
    bits = {"int16": 16, "int32": 32}[network.epilogue]
    integers = to_integers(program, geometry, bits, "network")
    twin = run_integers(integers, program, images)
    parts = [integers.stem, *integers.layers]
    x = images.astype(np.float64) / 255
    for part, formula, flat, expected, size in zip(
        parts, layers, network.maps(images, len(geometry)), twin, geometry, strict=False
    ):
        found = flat.reshape(len(images), -1, size.out_size, size.out_channels)
        rows = found.shape[1]
        assert np.array_equal(found, expected[:, :rows]), formula.name
        real = np.ldexp(expected.astype(np.float64), -part.bits)
        # The bound is a proof; 2^-40 is for float64 in the comparison itself.
        difference = abs(real - run_layer(formula, x)[1])
        bound = largest_error(part, size, formula, x) + 2**-40 * sizes(formula, x)
        assert (difference <= bound).all(), formula.name
        x = real
    best, scores = network.run(images)
    assert np.array_equal(scores, twin[-1])
    assert np.array_equal(best, scores.argmax(axis=1))


def gated_sizes(layer: Any, x: Array) -> Array:
    """What `sizes` is, of a layer in the packed file, with a gate or not."""
    if not isinstance(layer, GatedConvolution):
        formula = layer
        if isinstance(layer, BinaryConvolution):
            count = x.shape[-1]
            formula = replace(layer, weight=np.unpackbits(layer.weight, axis=-1, count=count))
        return sizes(formula, x)
    terms = np.prod(layer.weight.shape[1:3]) * x.shape[-1] * abs(layer.multiplier)
    inner = np.maximum(1, abs(layer.inner_slope)) * (terms + abs(layer.bias))
    assert layer.shortcut_slope is not None
    slope = np.maximum(1, abs(layer.shortcut_slope))
    shortcut = abs(x).max() * np.tile(slope, layer.channels // x.shape[-1])
    outer = abs(layer.scale) * inner * (shortcut if layer.product else 1)
    return np.maximum(1, abs(layer.slope)) * (outer + abs(layer.shift) + shortcut)


@pytest.mark.parametrize("shape", GATED)
def test_every_layer_of_networks_with_gates(shape: str, tmp_path: Path):
    packed = random_file(tmp_path / "n.bnn", GATED[shape])
    network, images = host(packed, tmp_path, "float"), noise(GATED[shape][-1])
    program = read_program(packed)
    geometry = geometry_of(program, images.shape[1])
    x: Array = images
    for layer, flat, size in zip(
        program.layers, network.maps(images, len(geometry)), geometry, strict=False
    ):
        found = flat.reshape(len(images), -1, size.out_size, size.out_channels)
        expected = reference.run_layer(layer, x)[:, : found.shape[1]]
        # Sums of at most 529 pixels in float32, which a gate's two matrices and the sigmoid follow.
        assert (abs(found - expected) <= 600 * 2**-24 * gated_sizes(layer, x)).all(), layer.name
        x = found
    best, scores = network.run(images)
    for layer in program.layers[len(geometry) :]:
        x = reference.run_layer(layer, x)
    np.testing.assert_allclose(scores, x, rtol=0, atol=1e-5 * abs(x).max())
    assert np.array_equal(best, scores.argmax(axis=1) if len(program.classes) else best)


ENDED = """
import os, signal, sys
from burn.cli.main import main
from burn.deploy.c import export
write = export._write_text
def write_and_end(*arguments):
    write(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
export._write_text = write_and_end
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_leaves_both_files_or_none(tmp_path: Path):
    packed = random_file(tmp_path / "n.bnn", SHAPES["smallest"])
    command = [sys.executable, "-c", ENDED, "export", packed, "out", "--format", "c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        143, "burn: ended by SIGTERM; nothing more was saved\n"
    )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["n.bnn"]


def test_what_is_no_number_stays_none_in_a_gate(tmp_path: Path):
    packed = random_file(tmp_path / "n.bnn", GATED["between others"])
    with safe_open(packed, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        metadata = file.metadata()
    tensors["b0.mix"][:] = 3e38
    save_file(tensors, packed, metadata=metadata)
    images = noise(GATED["between others"][-1])
    x: Array = images
    with np.errstate(all="ignore"):
        for layer in read_program(packed).layers:
            x = reference.run_layer(layer, x)
    assert np.isnan(x).all()
    assert np.isnan(host(packed, tmp_path, "float").run(images)[1]).all()


def test_gates_are_computed_in_floats_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    packed = random_file(tmp_path / "n.bnn", GATED["between others"])
    said = refused(capsys, packed, tmp_path / "out", "--epilogue", "int32")
    assert "layer 'b0' has a gate, which is computed in floats alone: give --epilogue" in said
    said = refused(capsys, packed, tmp_path / "out", "--ram", "1K")
    assert "give a smaller --image-size" in said
    assert not (tmp_path / "out").exists()


QUICK = {
    ("all kinds of layers", "float"),
    ("all kinds of layers", "int32"),
    ("a pixel of many words", "int16"),
}
# Of the others each has something that these have not, or that is in no random network.
SELDOM = (
    ("9 channels, fewer blocks", "int16"),
    ("plain", "float"),
    ("twice as wide, stem at 1", "float"),
    ("narrowest", "int32"),
    ("normalized features", "float"),
)


@pytest.mark.parametrize(
    ("shape", "epilogue"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
        for case in itertools.product(SHAPES, EPILOGUES)
    ],
)
def test_every_layer_of_random_networks(shape: str, epilogue: str, tmp_path: Path):
    packed = random_file(tmp_path / "n.bnn", SHAPES[shape])
    network = host(packed, tmp_path, epilogue)
    check = check_float if epilogue == "float" else check_integers
    check(network, packed, noise(SHAPES[shape][-1]))


@pytest.mark.parametrize(
    ("name", "epilogue"),
    [
        pytest.param(*case, marks=pytest.mark.long if case in SELDOM else ())
        for case in (*zip(NETWORKS, itertools.cycle(EPILOGUES), strict=False), *SELDOM[-1:])
    ],
)
def test_every_layer_of_reactnets(name: str, epilogue: str, tmp_path: Path):
    packed, size = reactnet(tmp_path, name)
    # gcc takes twice as long for -O2, with which the digits below are classified as well.
    level = "-O2" if (name, epilogue) in SELDOM else "-O1"
    network = host(packed, tmp_path, epilogue, options=(level, *SANITIZERS))
    check = check_float if epilogue == "float" else check_integers
    check(network, packed, noise(size))


@pytest.mark.parametrize(
    ("shape", "epilogue"),
    [
        ("a pixel of many words", "int32"),
        pytest.param("all kinds of layers", "float", marks=pytest.mark.long),
    ],
)
def test_ones_that_fit_into_no_list_are_counted_in_parts(
    shape: str, epilogue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(arena, "_LONGEST_LIST", 40)  # of one word
    packed = random_file(tmp_path / "n.bnn", SHAPES[shape])
    network = host(packed, tmp_path, epilogue)
    check = check_float if epilogue == "float" else check_integers
    check(network, packed, noise(SHAPES[shape][-1], 1))


def test_which_signs_are_stored_as_ones_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    packed = random_file(tmp_path / "n.bnn", SHAPES["all kinds of layers"])
    images = noise(SHAPES["all kinds of layers"][-1])
    maps = []
    rarer = source._rarer_signs
    for name, chosen in (
        ("rarer", rarer),
        ("commoner", lambda *given: [~flipped for flipped in rarer(*given)]),
    ):
        monkeypatch.setattr(source, "_rarer_signs", chosen)
        (tmp_path / name).mkdir()
        maps.append(host(packed, tmp_path / name, "float").maps(images, 6))
    assert all(np.array_equal(one, other) for one, other in zip(*maps, strict=True))


@pytest.mark.parametrize(("epilogue", "least"), [("float", 98), ("int32", 98), ("int16", 90)])
def test_the_class_is_the_desktop_engines(epilogue: str, least: int, tmp_path: Path):
    packed = digits_file(tmp_path)
    images, labels = digits("test", 100)
    expected = np.asarray(burn_engine.load(packed)(images)).argmax(axis=1)
    assert (expected == labels).mean() > 0.5
    best, _ = host(packed, tmp_path, epilogue, options=("-O2",)).run(images)
    assert (best == expected).sum() >= least


def live(shape: tuple[Any, ...], file: Path, value_bytes: int) -> Iterator[list[tuple[int, int]]]:
    """What is in use at once, as places and sizes: the common memory and that of each phase."""
    program = read_program(random_file(file, shape))
    layers = geometry_of(program, shape[-1])
    plan = plan_arena(layers, shape[2], value_bytes)
    last = len(layers) - 1
    offsets = 2 * max(layer.out_channels for layer in layers[1:])
    blocks = max(-(-layer.out_channels // 32) for layer in layers[1:])
    common = [
        (plan.places["rows"], 2 * len(layers)),
        (plan.places["list"], max(2 * plan.list_length, 13 * layers[0].kernel ** 2, offsets)),
        (plan.places["eights"], 4 * (-(-plan.list_length // 64) * 8)),
        (plan.places["more"], 4 * plan.planes),
        (plan.places["planes"], 4 * plan.planes * blocks),
        (plan.places["counts"], 2 * 32 * blocks),
    ]
    assert [first for first, _ in plan.phases] == [0, *(end + 1 for _, end in plan.phases[:-1])]
    assert plan.phases[-1][1] == last
    for first, end in plan.phases:
        used = list(common)
        for index in range(max(first - 1, 0), end + 1):
            layer, rows = layers[index], plan.values_rows[index]
            is_whole = index in (first - 1, end) and index < last
            assert rows == (layer.out_size if is_whole else rows)
            size = rows * layer.out_size * layer.out_channels * value_bytes
            used.append((plan.values_at[index], size))
            if index >= max(first, 1):
                signs = 4 * layer.signs_rows * layer.in_size * layer.sign_words
                used.append((plan.signs_at[index], signs))
        if end == last and shape[2]:
            used.append((plan.places["sums"], 4 * layers[-1].out_channels))
        yield [*used, (plan.bytes, 0)]
    vectors = [layers[-1].out_channels, *shape[2]]
    places = [plan.places["sums"], *plan.vectors_at]
    for index in range(len(shape[2])):
        both = [(places[index], 4 * vectors[index])]
        if index < len(shape[2]) - 1:
            both.append((places[index + 1], 4 * vectors[index + 1]))
        yield [*both, (plan.bytes, 0)]


@pytest.mark.parametrize("value_bytes", [2, 4])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_is_in_use_at_once_does_not_overlap(
    shape: tuple[Any, ...], value_bytes: int, tmp_path: Path
):
    for unsorted in live(shape, tmp_path / "n.bnn", value_bytes):
        *parts, end = unsorted
        used = [*sorted(part for part in parts if part[1]), end]
        assert all(place % 4 == 0 for place, _ in used)
        for (place, size), (following, _) in itertools.pairwise(used):
            assert place + size <= following


def phase_bytes(layers: list[Geometry], first: int, last: int) -> int:
    """The memory of a phase of maps of 4-byte numbers, from its definition."""

    def rows(index: int, count: int) -> int:
        return 4 * count * layers[index].out_size * layers[index].out_channels

    total = rows(first - 1, layers[first].in_size) if first else 0
    for index in range(first, last + 1):
        layer = layers[index]
        if index:
            total += 4 * layer.signs_rows * layer.in_size * layer.sign_words
        if index > first:
            total += rows(index - 1, layer.input_rows)
    return total + rows(last, 1 if last == len(layers) - 1 else layers[last].out_size)


def test_the_arena_is_the_smallest_of_all_phases():
    random = np.random.default_rng(0)
    for _ in range(30):
        layers = [Geometry(48, 24, 3, int(random.integers(1, 20)), 3, 2, False, False)]
        while len(layers) < 7:
            size, channels = layers[-1].out_size, layers[-1].out_channels
            kernel, stride = int(random.choice([1, 3])), int(random.choice([1, 1, 2]))
            out = channels * int(random.choice([1, 1, 2, 4]))
            shortcut = bool(random.integers(4))
            after = -(-size // stride)
            layers.append(Geometry(size, after, channels, out, kernel, stride, shortcut, True))
        plan = plan_arena(layers, [], 4)
        peaks: list[int] = []
        for count in range(len(layers)):
            for cuts in itertools.combinations(range(1, len(layers)), count):
                begins = [0, *cuts]
                ends = [*(cut - 1 for cut in cuts), len(layers) - 1]
                phases = zip(begins, ends, strict=True)
                peaks.append(max(phase_bytes(layers, *phase) for phase in phases))
        assert plan.bytes - plan.places["sums"] == min(peaks)


def exported(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What `burn export` prints."""
    assert main(["export", *map(str, arguments), "--format", "c"]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that `burn export` prints instead of exporting."""
    assert main(["export", *map(str, arguments), "--format", "c"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_command_prints_what_the_network_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    packed = random_file(tmp_path / "My net-2.bnn", SHAPES["all kinds of layers"])
    printed = exported(capsys, packed, tmp_path / "out", "--flash", "64K", "--ram", "32K")
    done = export_c(packed, tmp_path / "again")
    assert f"flash: {done.flash:,} bytes" in printed
    assert f"RAM: {done.ram:,} bytes (arena {done.arena:,}, image 1,587, scores 16" in printed
    by_rows = done.ram - 1587 + 5 * 23 * 3
    assert f"RAM where the image comes row by row: {by_rows:,} bytes\n" in printed
    assert "no room" not in printed
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["my_net_2.c", "my_net_2.h"]
    header = (tmp_path / "out" / "my_net_2.h").read_text()
    assert f"#define MY_NET_2_ARENA_BYTES {done.arena}\n" in header
    printed = exported(capsys, packed, tmp_path / "out", "--epilogue", "int32", "--name", "Net")
    assert "computed in int32 and compared with the packed file on 8 images" in printed
    assert "int Net_run(" in (tmp_path / "out" / "Net.h").read_text()


def test_what_does_not_fit_is_refused_with_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    packed = random_file(tmp_path / "n.bnn", SHAPES["whole words"])
    out = tmp_path / "out"
    done = export_c(packed, tmp_path / "fits")
    error = refused(capsys, packed, out, "--flash", done.flash - 1)
    assert f"needs {done.flash:,} bytes of flash" in error
    assert f"more than --flash {done.flash - 1:,}" in error
    error = refused(capsys, packed, out, "--ram", done.ram_by_rows - 1)
    assert f"needs {done.ram_by_rows:,} bytes of RAM (arena {done.arena:,}" in error
    assert "--epilogue int16" in error
    error = refused(capsys, packed, out, "--ram", "1K", "--epilogue", "int16")
    assert "--epilogue int16" not in error
    assert not out.exists()
    exported(capsys, packed, out, "--flash", done.flash, "--ram", done.ram)
    printed = exported(capsys, packed, tmp_path / "rows", "--ram", done.ram - 1)
    assert "--ram has no room for a whole image: call n_run_rows\n" in printed


def test_other_refusals_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    packed = random_file(tmp_path / "n.bnn", SHAPES["smallest"])
    out = tmp_path / "out"
    for arguments, message in (
        (["--epilogue", "int8"], "--epilogue 'int8' is none of float, int32, int16"),
        (["--name", "2nd"], "--name '2nd' cannot begin names in C"),
        (["--image-size", "7"], "--image-size 7 is not in 8 … 2048 pixels"),
        (["--image-size", "0"], "--image-size 0 is not in 8 … 2048 pixels"),
        (["--flash", "many"], "--flash 'many' is not a number of bytes"),
    ):
        assert message in refused(capsys, packed, out, *arguments)
        assert not out.exists()
    assert "make it first" in refused(capsys, packed, tmp_path / "no" / "out")
    assert "give the folder" in refused(capsys, packed, packed)
    (tmp_path / "bad.bnn").write_bytes(b"not a packed file")
    assert "bad.bnn: " in refused(capsys, tmp_path / "bad.bnn", out)
    assert not out.exists()
    out.mkdir()
    (out / "n.c").write_text("mine")
    assert "n.c already exists" in refused(capsys, packed, out)
    assert [p.name for p in out.iterdir()] == ["n.c"]


def test_a_layer_too_wide_for_16_bit_offsets_is_refused(tmp_path: Path):
    def wide(channels: int) -> Path:
        layers = [(1, channels, 1, False), (3, 1, 1, False)]
        return random_file(tmp_path / "n.bnn", ((1, 8, 1), layers, [], False, 8))

    with pytest.raises(UserError, match="layer 'b1' has 16,389 inputs, more than the 16,383 of C"):
        export_c(wide(1821), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    packed = wide(1820)
    check_float(host(packed, tmp_path, "float"), packed, noise(8, 0))


def test_a_source_that_cannot_be_written_takes_the_header_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    packed = random_file(tmp_path / "n.bnn", SHAPES["smallest"])
    write = export._write_text

    def full(file: Path, text: str) -> None:
        if file.suffix == ".c":
            raise OSError(28, "No space left on device")
        write(file, text)

    monkeypatch.setattr(export, "_write_text", full)
    with pytest.raises(UserError, match="out cannot be written: No space left on device"):
        export_c(packed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_image_size_is_needed_once(tmp_path: Path):
    packed = random_file(tmp_path / "n.bnn", SHAPES["smallest"])
    program, tensors = header_of(packed)
    del program["image"]
    save_file(tensors, tmp_path / "m.bnn", metadata={"bnn": json.dumps(program)})
    with pytest.raises(UserError, match="does not say how large its images are"):
        export_c(tmp_path / "m.bnn", tmp_path / "out")
    assert export_c(tmp_path / "m.bnn", tmp_path / "out", image_size=11).image == 3 * 11**2


def header_of(packed: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    with safe_open(packed, framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(file.metadata()["bnn"]), tensors


# Whether C of this name compiles, or what is said instead, with and without classes to learn.
ALL_NAMES = {
    "network": "", "NETWORK": "", "NETWORK_a": "", "a_network": "", "network_network_h": "",
    "network_class": "", "Net": "", "burn": "", "BURN": "", "row": "", "int": "", "layer_1": "",
    "add": "make add_row,", "run_image": "make run_image_row,", "run_binary": "run_binary_row,",
    "features": "hide <features.h>", "stddef": "hide <stddef.h>", "String": "hide <string.h>",
    "stdint": "hide <stdint.h>", "newlib": "hide <newlib.h>", "unistd": "hide <unistd.h>",
}  # fmt: skip


@pytest.mark.parametrize(("name", "message"), ALL_NAMES.items(), ids=ALL_NAMES)
def test_any_name_compiles_or_is_refused(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    need("gcc")
    packed, out = random_file(tmp_path / "n.bnn", SHAPES["whole words"]), tmp_path / "out"
    for more in ([], ["--epilogue", "int16", "--classes-on-device", "2"]):
        if message:
            assert message in refused(capsys, packed, out, "--name", name, *more)
            assert not out.exists()
            continue
        exported(capsys, packed, out, "--name", name, *more)
        main_c = f'#include <stdio.h>\n#include "{name}.h"\nint main(void) {{ return 1 + '
        (tmp_path / "main.c").write_text(f"{main_c}{name}_run(NULL, NULL, NULL); }}")
        sources = tmp_path / "main.c", out / f"{name}.c"
        if name == "network_network_h":
            call("gcc", *STRICT, "-I", out, *sources, "-o", tmp_path / "main")
            call(tmp_path / "main")
        else:  # in a third of the time
            call("gcc", *STRICT, "-I", out, *sources, "-fsyntax-only")
        shutil.rmtree(out)


def test_every_function_of_the_code_is_refused_where_a_name_would_make_it(tmp_path: Path):
    packed = random_file(tmp_path / "n.bnn", SHAPES["smallest"])
    done = export_c(packed, tmp_path / "out", name="net", classes_on_device=2)
    endings = set(re.findall(r"\bnet(_\w+)", done.header.read_text()))
    assert {"_row", "_run", "_score"} < endings
    code = set(re.findall(r"\b[a-z]\w*(?=\()", done.source.read_text()))
    found = {one.removesuffix(end) for one in code for end in endings if one.endswith(end)}
    assert {"add", "run_binary", "run_image"} < found
    for name in found - {"net"}:
        with pytest.raises(UserError, match=f"--name '{name}' would make {name}_"):
            export_c(packed, tmp_path / "no", name=name, classes_on_device=2)


def test_names_of_classes_are_text_whatever_they_contain(tmp_path: Path):
    packed = random_file(tmp_path / "n.bnn", SHAPES["whole words"])
    program, tensors = header_of(packed)
    program["classes"] = ['";*/ #include "x', "??/\\", "%s\u2028\u202e", "network_a Käse 9", "*/"]
    save_file(tensors, tmp_path / "m.bnn", metadata={"bnn": json.dumps(program)})
    done = export_c(tmp_path / "m.bnn", tmp_path / "out", name="net")
    assert all("\u202e" not in file.read_text() for file in (done.header, done.source))
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "net.h"\n'
        "int main(void) { for (int i = 0; i < NET_NUM_CLASSES; ++i) puts(net_class_names[i]); }"
    )
    need("gcc")
    call("gcc", *STRICT, f"-I{tmp_path / 'out'}", tmp_path / "main.c", done.source,
         "-o", tmp_path / "names")  # fmt: skip
    assert call(tmp_path / "names").split("\n")[:-1] == program["classes"]


def test_two_networks_in_one_program_and_from_cpp(tmp_path: Path):
    need("gcc", "g++")
    made = [
        export_c(random_file(tmp_path / f"{name}.bnn", shape), tmp_path / "out", epilogue=epilogue)
        for name, shape, epilogue in (
            ("one", SHAPES["smallest"], "float"), ("two", SHAPES["whole words"], "int16")
        )
    ]  # fmt: skip
    (tmp_path / "main.cc").write_text(
        '#include "one.h"\n#include "two.h"\n'
        "int main() { return one_run(nullptr, nullptr, nullptr) + two_run(nullptr, nullptr, "
        "nullptr) + 2; }"
    )
    for done in made:
        call("gcc", *STRICT, "-c", done.source, "-o", done.source.with_suffix(".o"))
    call("g++", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{tmp_path / 'out'}",
         tmp_path / "main.cc", *(done.source.with_suffix(".o") for done in made),
         "-o", tmp_path / "main")  # fmt: skip
    call(tmp_path / "main")


def test_the_proof_finds_constants_that_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packed = random_file(tmp_path / "n.bnn", SHAPES["whole words"])
    export_c(packed, tmp_path, name="a", epilogue="int16")
    monkeypatch.setattr(fixed_point, "_MARGIN", 4)  # two bits more than the bounds allow
    for epilogue in ("int32", "int16"):
        with pytest.raises(UserError, match="too wide a range for integers of"):
            export_c(packed, tmp_path, name="b", epilogue=epilogue)


CONSTANTS = ("b1.slope", "b1.multiplier", "b1.bias", "stem.weight")
QUICK_CONSTANTS = {
    ("b1.slope", 1e-30, "int16"),
    ("b1.multiplier", 1e30, "int16"),
    ("stem.weight", 1e30, "int32"),
}


@pytest.mark.parametrize(
    ("tensor", "value", "epilogue"),
    [
        pytest.param(*case, marks=() if case in QUICK_CONSTANTS else pytest.mark.long)
        for case in itertools.product(CONSTANTS, [1e30, 1e-30], ["int32", "int16"])
    ],
)
def test_constants_of_any_size_are_exact_or_refused(
    tensor: str, value: float, epilogue: str, tmp_path: Path
):
    """No overflow, which the sanitizers would find, and no result that the proof does not cover."""
    packed = random_file(tmp_path / "n.bnn", SHAPES["whole words"])
    program, tensors = header_of(packed)
    tensors[tensor] = tensors[tensor] * np.float32(value)
    packed = tmp_path / "m.bnn"
    save_file(tensors, packed, metadata={"bnn": json.dumps(program)})
    try:
        network = host(packed, tmp_path, epilogue)
    except UserError as error:
        assert "span too wide a range for integers" in str(error)  # noqa: PT017
        assert value > 1
    else:
        check_integers(network, packed, noise(17))


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_constants_that_become_infinite_are_refused(
    epilogue: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    packed = random_file(tmp_path / "n.bnn", SHAPES["whole words"])
    program, tensors = header_of(packed)
    packed, out = tmp_path / "m.bnn", tmp_path / "out"

    def save_with(weight: float, padding: float) -> None:
        for key, value in (("stem.weight", weight), ("stem.padding", padding)):
            tensors[key] = np.full_like(tensors[key], value)
        save_file(tensors, packed, metadata={"bnn": json.dumps(program)})

    for sign in (1, -1):
        save_with(sign * 3e38, 3)
        assert (
            f"{packed}: weight times padding of layer 'stem' is too large for a float: pack"
        ) in refused(capsys, packed, out, "--epilogue", epilogue)
        assert not out.exists()
    save_with(1e38, 1)  # all constants are numbers
    if epilogue == "float":
        done = export_c(packed, out)
        assert not {"inf", "nan"} & set(re.findall(r"[a-z]+", done.source.read_text()))
    else:
        said = refused(capsys, packed, out, "--epilogue", epilogue)
        assert f"{packed}: outputs of layer 'l0' are too large for a float" in said
        assert not out.exists()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("make.experts()", "layer 'stem' is a branched_convolution that cannot be exported to C"),
        ("make.several(gated=False)", "layer 'mean' averages several maps, which cannot be"),
    ],
)
def test_a_network_that_c_cannot_run_is_refused(
    code: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    attacks = Path(__file__).parents[1] / "attacks/packed"
    code = f"import make, sys; sys.stdout.buffer.write({code}.write())"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=attacks, capture_output=True, check=True
    )
    (tmp_path / "m.bnn").write_bytes(made.stdout)
    said = refused(capsys, tmp_path / "m.bnn", tmp_path / "out", "--image-size", 32)
    assert why in said
    assert not (tmp_path / "out").exists()
    gated = [
        each
        for each in read_program(tmp_path / "m.bnn").layers
        if isinstance(each, GatedConvolution)
    ]
    assert not any(map(export._is_bnext, gated))
