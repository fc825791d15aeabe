"""Compares the compiled core with the reference, layer by layer, for every instruction set."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import packed
from burn_engine import load, reference
from burn_engine.format import (
    BinaryConvolution,
    BranchedConvolution,
    GatedConvolution,
    GlobalMean,
    parse_program,
)
from burn_engine.model import load_bytes

_core = pytest.importorskip("burn_engine._core", exc_type=ImportError)

ROUNDING = 2.0**-24  # of float32, relative


def magnitude(layer, x, also=()):
    """Return the sum of the magnitudes of each output's summands, and the number of summands."""
    if isinstance(layer, BinaryConvolution):
        k = layer.weight.shape[1]
        product = np.abs(layer.multiplier) * k * k * x.shape[-1]  # d itself is exact
        largest = np.abs(x).max() if layer.shortcut else 0
        return (product + np.abs(layer.bias) + largest) * np.maximum(1, np.abs(layer.slope)), 8
    if isinstance(layer, GatedConvolution):
        return magnitude_of_gated(layer, x)
    if x.dtype == np.uint8:
        x = x.astype(np.float32) / np.float32(255)
    if isinstance(layer, BranchedConvolution):
        parts = {
            name: type(part)(weight=np.abs(part.weight), bias=np.abs(part.bias))
            for name in ("first", "narrow", "widen", "last")
            for part in [getattr(layer, name)]
        }
        summands = sum(part.weight[0].size + 2 for part in parts.values())
        return reference.run_layer(dataclasses.replace(layer, **parts), np.abs(x)), summands
    arrays = {key: np.abs(array) for key, array in layer.tensors().items()}
    if isinstance(layer, GlobalMean):
        maps = [np.abs(one) for one in (x, *also)]
        largest = reference.run_layer(dataclasses.replace(layer, **arrays), maps[0], maps[1:])
        return largest, max(one.shape[1] * one.shape[2] for one in maps) + 2
    largest = reference.run_layer(dataclasses.replace(layer, **arrays), np.abs(x))
    return largest, layer.weight[0].size + 2


def magnitude_of_gated(layer, x):
    """`magnitude` of a gated_convolution, where summands of the gate count as they change it."""
    k, used = layer.weight.shape[1], layer.repeat * x.shape[-1] // layer.groups
    multiplier = np.abs(layer.multiplier).reshape(layer.experts, -1).max(0)
    u = multiplier * k * k * used + np.abs(layer.bias)
    u = u * np.maximum(1, np.abs(layer.inner_slope))
    p = np.zeros(layer.channels) + np.abs(x).max() * layer.shortcut
    if layer.shortcut_slope is not None:
        p = p * np.maximum(1, np.abs(layer.shortcut_slope).max())
    additions = 16
    for side in layer.side:
        width = side.weight.shape[1]
        p = np.abs(side.weight.astype(float)) @ np.full(width, p.max())
        p = (p + np.abs(side.bias)) * np.maximum(1, np.abs(side.slope))
        additions += width + 4
    if layer.gate is not None:
        # The sigmoid changes by at most a quarter of what its argument does.
        value = np.full(layer.gate.down.weight.shape[1], max(np.abs(x).max(), u.max()))
        for matrix in (layer.gate.down, layer.gate.up):
            product = np.abs(matrix.weight.astype(float)) @ value
            value = np.abs(matrix.scale) * product + np.abs(matrix.bias)
        summands = x.shape[1] * x.shape[2] + layer.gate.down.weight.size
        additions += summands * value.max() / 4
    y = np.abs(layer.scale) * u * (p if layer.product else 1)
    return (y + np.abs(layer.shift) + p) * np.maximum(1, np.abs(layer.slope)), additions


def uncertain(layer, x):
    """Return a mask of the pixels with a sign in their sum that rounding of x could turn."""
    if not isinstance(layer, BinaryConvolution | GatedConvolution):
        return np.zeros(1, bool)
    x = np.tile(x, len(layer.threshold) // x.shape[-1])
    scale = np.maximum(np.abs(x), np.abs(layer.threshold))
    near = (np.abs(x - layer.threshold) <= 8 * ROUNDING * scale).any(-1, keepdims=True)
    k = layer.weight.shape[1]
    if isinstance(layer, GatedConvolution):  # such a sign changes the gate, and so all pixels
        return near.reshape(len(x), -1).any(-1).reshape(-1, 1, 1, 1)
    padded = reference._pad(np.asarray(near, np.float32), k // 2, np.zeros(1, np.float32))
    return sum(under for _, _, under in reference._taps(padded, k, layer.stride)) > 0


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (11, 14), (12, 20), (32, 33)])
@pytest.mark.parametrize("network", packed.NETWORKS)
@pytest.mark.parametrize("isa", _core.supported_isas())
def test_every_layer(write, isa, network, size, dtype):
    path = write(network)
    model = load(path, isa=isa)
    program = parse_program(path.read_bytes())
    images = packed.random_images(shape=(3, *size, 3))
    if dtype == "float32":
        images = images.astype(np.float32) / np.float32(255)
    x, maps = images, []
    for layer in program.layers:
        also = [maps[index] for index in getattr(layer, "also", ())]
        expected = reference.run_layer(layer, x, also)
        found = model.layer(images, layer.name)
        assert found.dtype == np.float32
        assert found.shape == expected.shape
        # Both sides round every addition and multiplication once at most.
        largest, additions = magnitude(layer, x, also)
        wrong = np.abs(found - expected) > 2 * ROUNDING * additions * largest + 1e-37
        assert not (wrong & ~uncertain(layer, x)).any(), layer.name
        x = found  # the core's own output, so that errors do not accumulate
        maps.append(x)


THREADED = ["odd", "gated", "no slopes", "experts", "mixture", "several", "several gated"]


@pytest.mark.parametrize("network", THREADED)
@pytest.mark.parametrize("isa", _core.supported_isas())
def test_threads_do_not_change_the_result(write, isa, network):
    path = write(network)
    images = packed.random_images(shape=(2, 35, 38, 3))
    expected = load(path, isa=isa)(images)
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(load(path, threads, isa)(images), expected)


@pytest.mark.parametrize("size", [(1, 1), (13, 10), (90, 95)])
@pytest.mark.parametrize("network", ["several", "several gated"])
@pytest.mark.parametrize("isa", _core.supported_isas())
def test_means_of_more_maps_do_not_change_those_of_the_last(write, isa, network, size):
    """At the largest size, maps that only the next layer reads are kept a few rows at a time."""
    images = packed.random_images(shape=(2, *size, 3))
    whole = packed.random_network(**packed.NETWORKS[network])
    bias, scale = whole.tensors["pool.bias"], whole.tensors.get("pool.scale")
    model = load(write(network), isa=isa)
    settings = {"scaled": False, **packed.NETWORKS[network]}
    settings |= {"also": (), "linears": (), "num_classes": 0}
    alone = packed.random_network(**settings)
    width = alone.tensors["pool.bias"].size
    alone.tensors["pool.bias"] = bias[:width]
    if scale is not None:
        alone.tensors["pool.scale"] = scale[:width]
    expected = load_bytes(alone.to_bytes(), isa=isa)(images)
    np.testing.assert_array_equal(model.layer(images, "pool")[:, :width], expected)


@pytest.mark.parametrize("isa", _core.supported_isas())
def test_gates_that_are_open_and_shut(tmp_path, isa):
    """The engine has an e^x of its own: arguments at which float32's is 0, tiny, large or inf."""
    network = packed.random_network(blocks=({"out": 500, "gate": "input", "shortcut": False},))
    arguments = np.concatenate([np.linspace(-120, 120, 241), np.linspace(-3, 3, 259)])
    network.tensors["block0.gate.up.weight"][:] = 0
    network.tensors["block0.gate.up.bias"][:] = arguments
    for name in ("multiplier", "shift"):
        network.tensors[f"block0.{name}"][:] = 0
    for name in ("bias", "inner_slope", "scale", "slope"):  # so that the output is the gate
        network.tensors[f"block0.{name}"][:] = 1
    path = tmp_path / "model.bnn"
    path.write_bytes(network.to_bytes())
    found = load(path, isa=isa).layer(packed.random_images(), "block0")
    expected = 1 / (1 + np.exp(-arguments.astype(np.float32).astype(float)))
    # About two roundings are seen; a coefficient that is wrong by a thousandth gives 5e-7.
    expected = np.broadcast_to(expected, found.shape)
    np.testing.assert_allclose(found, expected, rtol=3e-7, atol=2e-38)


@pytest.mark.parametrize("network", ["odd", "gated", "experts"])
@pytest.mark.parametrize("isa", _core.supported_isas())
def test_a_batch_is_its_images(write, isa, network):
    model = load(write(network), isa=isa, threads=3)
    images = packed.random_images(shape=(7, 19, 18, 3))
    alone = np.stack([model(image) for image in images])
    np.testing.assert_array_equal(model(images), alone)


def test_the_core_refuses_what_the_reader_refuses():
    with pytest.raises(ValueError, match="header"):
        _core.Model(b"12345678", None)
    with pytest.raises(ValueError, match="sse9"):
        _core.Model(packed.random_network().to_bytes(), "sse9")


def test_a_forked_process_runs_the_model_with_threads_of_its_own(tmp_path):
    path = tmp_path / "model.bnn"
    path.write_bytes(packed.random_network(seed=3).to_bytes())
    program = """
import os, sys
import numpy as np
import burn_engine
model = burn_engine.load(sys.argv[1], threads=2)
images = np.arange(20 * 20 * 3, dtype=np.uint8).reshape(20, 20, 3)
before = model(images)
child = os.fork()
if child == 0:
    os._exit(0 if (model(images) == before).all() else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=60)


def test_the_instruction_sets_are_those_that_linux_names():
    if platform.machine() != "x86_64" or not (info := Path("/proc/cpuinfo")).exists():
        pytest.skip("not Linux on x86-64")
    line = next(x for x in info.read_text().splitlines() if x.startswith("flags"))
    flags = {*line.partition(":")[2].split()}
    avx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"}
    needed = {
        "avx512-vpopcnt": {*avx512, "avx512_vpopcntdq"},
        "avx512-bw": avx512,
        "avx2": {"avx2", "fma"},
        "portable": set(),
    }
    assert _core.supported_isas() == [name for name, flag in needed.items() if flag <= flags]
