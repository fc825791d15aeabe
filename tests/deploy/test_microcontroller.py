"""Networks exported as C on Cortex-M: built with -Os, and run in QEMU.

`examples/microcontroller` is the firmware. QEMU counts instructions; it knows nothing of time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import SHAPES, STRICT, call, digits, digits_file, need, random_file

import burn_engine
from burn.deploy.c.export import CODE_BYTES, STACK_BYTES, export_c
from burn.deploy.layers import Array

EXAMPLE = Path(__file__).parents[2] / "examples" / "microcontroller"
HARD = ("-mthumb", "-mfloat-abi=hard")
PROCESSORS = {
    "M4": ("mps2-an386", ("-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", *HARD)),
    "M7": ("mps2-an500", ("-mcpu=cortex-m7", "-mfpu=fpv5-sp-d16", *HARD)),
    "M3": ("mps2-an385", ("-mcpu=cortex-m3", "-mthumb")),  # without floating point
}


def need_compiler() -> None:
    """Skip the test without the compiler or newlib, whose name the compiler finds with a folder."""
    need("arm-none-eabi-gcc", "arm-none-eabi-size", "arm-none-eabi-nm")
    if "/" not in call("arm-none-eabi-gcc", "-print-file-name=libc.a"):
        pytest.skip("without libnewlib-arm-none-eabi")


def compiled(source: Path, processor: str, *options: str) -> Path:
    """The object file of an exported network."""
    need_compiler()
    to = source.with_suffix(".o")
    flags = PROCESSORS[processor][1]
    call("arm-none-eabi-gcc", *STRICT, *flags, *(options or ("-Os",)), "-fstack-usage",
         "-c", source, "-o", to)  # fmt: skip
    return to


def emulated(folder: Path, processor: str, firmware: str, files: Mapping[str, Array]) -> Array:
    """The numbers, a row for each line, that firmware prints with the network `student`.

    Args:
        folder: Folder of the network.
        processor: One of `PROCESSORS`.
        firmware: Its source in the folder of examples.
        files: Contents of the files that it reads, by their names.
    """
    need_compiler()
    need("qemu-system-arm")
    board, flags = PROCESSORS[processor]
    call("arm-none-eabi-gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-Os", *flags,
         f"-I{folder}", EXAMPLE / firmware, folder / "student.c", "-nostartfiles",
         "-T", EXAMPLE / "mps2.ld", "-o", folder / "firmware.elf")  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content.tobytes())
    printed = call(
        "qemu-system-arm", "-M", board, "-icount", "shift=6", "-nographic", "-monitor", "none",
        "-serial", "none", "-semihosting-config", "enable=on,target=native", "-kernel",
        "firmware.elf", cwd=folder, timeout=120,
    )  # fmt: skip
    return np.array([line.split() for line in printed.splitlines()], np.int64)


def run(folder: Path, processor: str, images: Array) -> tuple[Array, Array]:
    """Classes of images and instructions for each, of the network `student` in a folder."""
    lines = emulated(folder, processor, "firmware.c", {"images.rgb": images})
    return lines[:, 0], lines[:, 1]


@pytest.mark.parametrize(
    ("processor", "epilogue", "least"),
    [("M4", "float", 98), ("M7", "float", 98), ("M4", "int16", 85), ("M3", "int32", 98)],
)
def test_the_class_is_the_desktop_engines(
    processor: str, epilogue: str, least: int, tmp_path: Path
):
    """All or nearly all, see test_c_source.py on how many."""
    packed = digits_file(tmp_path)
    images, _ = digits("test", 100)
    expected = np.asarray(burn_engine.load(packed)(images)).argmax(axis=1)
    export_c(packed, tmp_path / "code", name="student", epilogue=epilogue)
    classes, instructions = run(tmp_path / "code", processor, images)
    assert (classes == expected).sum() >= least
    # More than one for each word of weights and pixel, and less than what a mistake in the
    # startup code would show.
    assert (instructions > 100_000).all()
    assert (instructions < 30_000_000).all()
    assert instructions.max() < 1.05 * instructions.min()  # images differ in their signs alone


@pytest.mark.parametrize("optimise", ["-Os", "-O2", "-O3"])
@pytest.mark.parametrize("epilogue", ["float", "int32", "int16"])
def test_flash_and_stack_are_what_the_export_says(epilogue: str, optimise: str, tmp_path: Path):
    need_compiler()
    for name in ("all kinds of layers", "whole words", "smallest"):
        packed = random_file(tmp_path / "n.bnn", SHAPES[name])
        done = export_c(packed, tmp_path / name, epilogue=epilogue)
        built = compiled(done.source, "M4", optimise)
        text, data, bss = map(int, call("arm-none-eabi-size", built).splitlines()[1].split()[:3])
        assert (data, bss) == (0, 0)
        assert done.constants < text
        usage = built.with_suffix(".su").read_text()
        if optimise != "-O3":  # which trades size for speed; the export promises nothing for it
            assert text <= done.flash
            # The sum over all functions, none of which calls itself.
            assert sum(int(found) for found in re.findall(r"\t(\d+)\t", usage)) <= STACK_BYTES
        assert not re.search("dynamic", usage)
        # Of libc it calls memcpy alone. Where functions of the compiler's own library end up as
        # undefined symbols, they begin with __aeabi_.
        undefined = set(call("arm-none-eabi-nm", "-u", built).split()) - {"U"}
        assert {symbol for symbol in undefined if not symbol.startswith("__aeabi_")} == {"memcpy"}
        defined = call("arm-none-eabi-nm", "-g", "--defined-only", built).split()[2::3]
        assert set(defined) <= {"n_run", "n_class_names"}
    assert CODE_BYTES == 4096


def test_the_demos_student_fits_a_small_controller(tmp_path: Path):
    """320 KB of flash and 160 KB of RAM, whatever its weights are."""
    packed = demo_sized(tmp_path)
    for epilogue in ("float", "int32", "int16"):
        done = export_c(packed, tmp_path / epilogue, epilogue=epilogue, flash=320 * 1024,
                        ram=160 * 1024)  # fmt: skip
        if shutil.which("arm-none-eabi-gcc"):
            sizes = call("arm-none-eabi-size", compiled(done.source, "M4")).splitlines()[1].split()
            assert int(sizes[0]) <= done.flash <= 320 * 1024
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
