"""Flash, RAM and instructions per image of small networks on a Cortex-M4 and on RISC-V.

Makes the table of docs/guide/microcontroller.md:

    python benchmarks/microcontroller.py

`photos` and `small` are the networks that come with burn-engine; the others have random weights, on
which sizes do not depend. The number of instructions does: only the signs that are rarer for their
channel take time. It is the mean over the ten photographs of docs/pictures/clothes.jpg, of which
none chose what the rarer signs are. Needs the compilers and emulators of `boards.py`; emulators
count instructions, so the numbers are the same on every computer. They are not times.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from boards import BOARDS
from PIL import Image

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.native import save_checkpoint
from burn.core.types import Precision
from burn.data.view_config import ViewConfig
from burn.deploy.c.export import export_c
from burn.deploy.c.source import geometry_of
from burn.deploy.layout import Array
from burn.deploy.pack import pack
from burn.recipes.registry import find_recipe
from burn_engine import pretrained
from burn_engine.format import read_program

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "clothes.jpg"
MEASURED = {"float": ("Cortex-M4",), "int32": ("Cortex-M4", "RISC-V with Zbb")}
MEASURED["int16"] = MEASURED["int32"]  # RISC-V with Zbb, such as a Pico 2, computes no floats


def networks() -> dict[str, tuple[BackboneConfig, int]]:
    """Backbones by name, and the sides of their images in pixels."""
    demo, small, bnext = (find_recipe(name) for name in ("demo", "burn_small", "bnext_small"))
    return {
        "`demo`, half as wide": (replace(demo.backbone, width=0.125), demo.views.size),
        "`demo`": (demo.backbone, demo.views.size),
        "`burn_small`": (small.backbone, small.views.size),
        "`bnext_small`": (bnext.backbone, bnext.views.size),
    }


def packed(folder: Path, config: BackboneConfig, size: int) -> Path:
    """Write a packed file of a random network with ten classes."""
    torch.manual_seed(0)
    backbone = build_backbone(config, Precision.BINARY)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.ndim == 1:  # -Os keeps one copy of equal constants: make them different
                parameter.add_(0.1 * torch.randn(parameter.shape))
            elif parameter.ndim == 4:  # burn_small's are all positive at first
                parameter.copy_(torch.randn(parameter.shape))
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    weights["classifier.weight"] = torch.randn(10, backbone.num_features)
    weights["classifier.bias"] = torch.randn(10)
    views = asdict(ViewConfig(size=size))
    meta = {"backbone": asdict(config), "precision": "binary", "stage": 2, "views": views}
    file = folder / "network.safetensors"
    save_checkpoint(file, weights, meta)
    pack(file, folder / "student.bnn", file)
    return folder / "student.bnn"


def photographs(size: int) -> Array:
    """Return ten photographs, (10, size, size, 3)."""
    with Image.open(PICTURE) as opened:
        sheet = opened.convert("RGB")
    places = [(20 + 213 * column, top) for top in (12, 270) for column in range(5)]
    crops = [sheet.crop((x, y, x + 195, y + 195)).resize((size, size)) for x, y in places]
    return np.stack([np.asarray(crop) for crop in crops])


def operations(file: Path, size: int) -> int:
    """Return the number of binary multiply-adds of an image, with those outside the maps."""
    return sum(
        layer.out_size**2 * layer.out_channels * layer.inputs
        for layer in geometry_of(read_program(file), size)
        if layer.is_binary
    )


def measured(source: Path, size: int, board: str) -> tuple[int, float]:
    """Return the bytes of flash of an exported network, and its mean instructions per image."""
    folder, used = source.parent, BOARDS[board]
    for command in (used.compile(source, "-Os"), *used.link(folder, "firmware.c")):
        subprocess.run(command, check=True)
    (folder / "images.rgb").write_bytes(photographs(size).tobytes())
    printed = subprocess.run(
        used.emulator, cwd=folder, check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ).stdout  # fmt: skip
    counts = [int(line.split()[1]) for line in printed.splitlines()]
    assert len(counts) == 10, printed
    sizes = [f"{used.tools}-size", folder / "student.o"]
    text = subprocess.run(sizes, check=True, text=True, stdout=subprocess.PIPE).stdout
    return int(text.splitlines()[1].split()[0]), sum(counts) / len(counts)


def lines(name: str, file: Path, size: int, folder: Path) -> None:
    """Print the lines of a network."""
    gated = any(layer.parts for layer in geometry_of(read_program(file), size))
    for epilogue, boards in MEASURED.items():
        if gated and epilogue != "float":
            continue
        done = export_c(file, folder / epilogue, name="student", epilogue=epilogue)
        found = [measured(done.source, size, board) for board in boards]
        cells = [f"{found[0][0]:,}", f"{done.arena:,}", f"{done.ram:,}", f"{done.ram_by_rows:,}"]
        each = [f"{count / 1e6:.1f} ({count / operations(file, size):.2f})" for _, count in found]
        cells += [*each, *["–"] * (2 - len(each))]
        print("|", " | ".join([name, f"{size} × {size}", epilogue, *cells]), "|", flush=True)


def main() -> None:
    """Print the table."""
    columns = ["network", "image", "epilogue", "flash", "arena", "RAM in all", "by rows"]
    print("|", " | ".join([*columns, "Cortex-M4", "RISC-V with Zbb"]), "|")
    print("|---" * 9 + "|")
    for name, (config, size) in networks().items():
        with tempfile.TemporaryDirectory() as temporary:
            lines(name, packed(Path(temporary), config, size), size, Path(temporary))
    for name, size in (("small", 32), ("photos", 96)):
        found = pretrained.find(name)
        assert found is not None
        with tempfile.TemporaryDirectory() as temporary:
            lines(f"`{name}`", found.path, size, Path(temporary))


if __name__ == "__main__":
    main()
