"""Networks exported as C on Cortex-M and RISC-V: built with -Os, and run in QEMU.

`examples/microcontroller` is the firmware. QEMU counts instructions; it knows nothing of time.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import GATED, SHAPES, STRICT, call, digits, digits_file, need, random_file

import burn_engine
from burn.deploy.c.export import CODE_BYTES, STACK_BYTES, export_c
from burn.deploy.layout import Array

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from boards import BOARDS


def compiled(source: Path, board: str, *options: str) -> Path:
    """The object file of an exported network; beside it a .ci file has the stack of functions."""
    need(*BOARDS[board].programs[:3])
    options = options or ("-Os",)
    call(*BOARDS[board].compile(source, *STRICT, *options, "-fcallgraph-info=su"))
    return source.with_suffix(".o")


def stack(built: Path) -> int:
    """The most bytes of the stack that a compiled network takes, along its deepest calls."""
    text = built.with_suffix(".ci").read_text()
    assert "dynamic" not in text
    own = {
        name: int(size) for name, size in re.findall(r'title: "(\S+)" label: ".*\\n(\d+) b', text)
    }
    calls: dict[str, set[str]] = {}
    for caller, called in re.findall(r'sourcename: "(\S+)" targetname: "(\S+)"', text):
        calls.setdefault(caller, set()).add(called)

    @cache
    def deepest(name: str) -> int:  # the compiler's own library is not in the table
        return own.get(name, 0) + max(map(deepest, calls.get(name, ())), default=0)

    return max(map(deepest, own))


def emulated(folder: Path, board: str, firmware: str, files: Mapping[str, Array]) -> Array:
    """The numbers, a row for each line, that firmware prints with the network `student`.

    Args:
        folder: Folder of the network.
        board: One of `BOARDS`.
        firmware: Its source in the folder of examples.
        files: Contents of the files that it reads, by their names.
    """
    need(*BOARDS[board].programs)
    compiled(folder / "student.c", board)
    for command in BOARDS[board].link(folder, firmware):
        call(*command)
    for name, content in files.items():
        (folder / name).write_bytes(content.tobytes())
    printed = call(*BOARDS[board].emulator, cwd=folder, timeout=120)
    return np.array([line.split() for line in printed.splitlines()], np.int64)


def run(folder: Path, board: str, images: Array) -> tuple[Array, Array]:
    """Classes of images and instructions for each, of the network `student` in a folder."""
    lines = emulated(folder, board, "firmware.c", {"images.rgb": images})
    return lines[:, 0], lines[:, 1]


# Each epilogue, each board and two of the three levels once.
QUICK = (
    ("Cortex-M4", "float", "-O2"),
    ("Cortex-M4", "int32", "-Os"),
    ("RISC-V with Zbb", "int16", "-O2"),
)


@pytest.mark.parametrize(
    ("board", "epilogue", "least"),
    [
        ("Cortex-M4", "float", 98), ("Cortex-M3", "int32", 98), ("RISC-V with Zbb", "int16", 85),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("Cortex-M7", "float", 98), ("Cortex-M4", "int16", 85), ("RISC-V", "int32", 98)
            )
        ),
    ],
)  # fmt: skip
def test_the_class_is_the_desktop_engines(board: str, epilogue: str, least: int, tmp_path: Path):
    """All or nearly all, see test_c_source.py on how many."""
    packed = digits_file(tmp_path)
    images, _ = digits("test", 100)
    expected = np.asarray(burn_engine.load(packed)(images)).argmax(axis=1)
    export_c(packed, tmp_path / "code", name="student", epilogue=epilogue)
    classes, instructions = run(tmp_path / "code", board, images)
    assert (classes == expected).sum() >= least
    # More than what the last layer's outputs alone take, and less than what a mistake in the
    # startup code would show.
    assert (instructions > 100_000).all()
    assert (instructions < 30_000_000).all()
    assert len(set(instructions)) > 1  # they depend on how many signs are the rarer ones


@pytest.mark.parametrize(
    "board",
    [pytest.param("Cortex-M4", marks=pytest.mark.long), "RISC-V"],  # with and without floats
)
def test_gates_are_the_desktop_engines(board: str, tmp_path: Path):
    packed = digits_file(tmp_path, gates=True)
    images, _ = digits("test", 20)
    export_c(packed, tmp_path / "code", name="student")
    classes, _ = run(tmp_path / "code", board, images)
    expected = np.asarray(burn_engine.load(packed)(images)).argmax(axis=1)
    assert len(set(expected)) > 5
    assert (classes == expected).all()


@pytest.mark.parametrize(
    ("board", "epilogue", "optimise"),
    [
        pytest.param(*case, optimise, marks=() if (*case, optimise) in QUICK else pytest.mark.long)
        for case in (
            *(("Cortex-M4", epilogue) for epilogue in ("float", "int32", "int16")),
            ("RISC-V with Zbb", "int16"),
        )
        for optimise in ("-Os", "-O2", "-O3")
    ],
)
def test_flash_and_stack_are_what_the_export_says(
    board: str, epilogue: str, optimise: str, tmp_path: Path
):
    shapes = {name: SHAPES[name] for name in ("all kinds of layers", "whole words", "smallest")}
    for name, shape in (shapes | (GATED if epilogue == "float" else {})).items():
        packed = random_file(tmp_path / "n.bnn", shape)
        done = export_c(packed, tmp_path / name, epilogue=epilogue)
        built = compiled(done.source, board, optimise)
        tool = BOARDS[board].tools
        text, data, bss = map(int, call(f"{tool}-size", built).splitlines()[1].split()[:3])
        assert (data, bss) == (0, 0)
        assert done.constants < text
        if optimise != "-O3":  # which trades size for speed; the export promises nothing for it
            assert text <= done.flash
            assert stack(built) <= STACK_BYTES
        assert own_undefined(board, built) == set()
        defined = call(f"{tool}-nm", "-g", "--defined-only", built).split()[2::3]
        assert set(defined) <= {"n_run", "n_run_rows", "n_class_names"}
    assert CODE_BYTES == 6144


def own_undefined(board: str, built: Path) -> set[str]:
    """What a compiled network needs beside the compiler's own library, so of the C library."""
    undefined = set(call(f"{BOARDS[board].tools}-nm", "-u", built).split()) - {"U"}
    return {symbol for symbol in undefined if not re.match("__(aeabi_|[a-z]+[sd]i[23]$)", symbol)}


def test_the_demos_student_fits_a_small_controller(tmp_path: Path):
    """320 KB of flash and 160 KB of RAM, whatever its weights are."""
    packed = demo_sized(tmp_path)
    for epilogue in ("float", "int32", "int16"):
        done = export_c(packed, tmp_path / epilogue, epilogue=epilogue, flash=320 * 1024,
                        ram=160 * 1024)  # fmt: skip
        if shutil.which("arm-none-eabi-gcc"):
            sizes = call("arm-none-eabi-size", compiled(done.source, "Cortex-M4"))
            assert int(sizes.splitlines()[1].split()[0]) <= done.flash <= 320 * 1024
        assert done.ram <= 32 * 1024


def demo_sized(folder: Path) -> Path:
    """The demo's student with a classifier of ten classes, untrained."""
    import torch
    from samples import save

    from burn.backbones.registry import build_backbone
    from burn.core.types import Precision
    from burn.deploy.pack import pack
    from burn.recipes.registry import find_recipe

    recipe = find_recipe("demo")
    torch.manual_seed(0)
    backbone: Any = build_backbone(recipe.backbone, Precision.BINARY)
    heads = {
        "classifier.weight": torch.randn(10, backbone.num_features),
        "classifier.bias": torch.randn(10),
    }
    file = save(folder / "n.safetensors", backbone, size=recipe.views.size, heads=heads)
    pack(file, folder / "student.bnn", file)
    return folder / "student.bnn"
