"""Flash, RAM and instructions per image of small networks on a Cortex-M4.

Makes the table of docs/guide/microcontroller.md:

    python benchmarks/microcontroller.py

The networks have random weights: sizes do not depend on them, and the number of instructions by
less than one in a hundred. Needs arm-none-eabi-gcc and qemu-system-arm, which counts instructions,
so the numbers are the same on every computer. They are not times.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import torch

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.checkpoints.native import save_checkpoint
from burn.core.types import Precision
from burn.data.view_config import ViewConfig
from burn.deploy.c.export import EPILOGUES, export_c
from burn.deploy.pack import pack
from burn.deploy.shared import sample_images
from burn.recipes.registry import find_recipe

EXAMPLE = Path(__file__).parents[1] / "examples" / "microcontroller"
CPU = ("-mthumb", "-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard")
RUN = [
    "qemu-system-arm", "-M", "mps2-an386", "-icount", "shift=6", "-nographic", "-monitor", "none",
    "-serial", "none", "-semihosting-config", "enable=on,target=native", "-kernel", "firmware.elf",
]  # fmt: skip


def networks() -> dict[str, tuple[BackboneConfig, int]]:
    """Backbones by name, and the sides of their images in pixels."""
    demo, small, device = (find_recipe(name) for name in ("demo", "burn_small", "burn_device"))
    return {
        "`demo`, half as wide": (replace(demo.backbone, width=0.125), demo.views.size),
        "`demo`": (demo.backbone, demo.views.size),
        "`burn_small`": (small.backbone, small.views.size),
        "`burn_device`": (device.backbone, device.views.size),
    }


def packed(folder: Path, config: BackboneConfig, size: int) -> Path:
    """Write a packed file of a random network with ten classes."""
    torch.manual_seed(0)
    backbone = build_backbone(config, Precision.BINARY)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.ndim == 1:  # -Os keeps one copy of equal constants: make them different
                parameter.add_(0.1 * torch.randn(parameter.shape))
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    weights["classifier.weight"] = torch.randn(10, backbone.num_features)
    weights["classifier.bias"] = torch.randn(10)
    views = asdict(ViewConfig(size=size))
    meta = {"backbone": asdict(config), "precision": "binary", "stage": 2, "views": views}
    file = folder / "network.safetensors"
    save_checkpoint(file, weights, meta)
    pack(file, folder / "student.bnn", file)
    return folder / "student.bnn"


def measured(source: Path, size: int) -> tuple[int, int]:
    """Return the bytes of flash of an exported network, and its instructions per image."""
    folder = source.parent
    build = ["arm-none-eabi-gcc", "-std=c99", "-Os", *CPU]
    subprocess.run([*build, "-c", source, "-o", folder / "student.o"], check=True)
    subprocess.run(
        [*build, f"-I{folder}", EXAMPLE / "firmware.c", folder / "student.o", "-nostartfiles",
         "-T", EXAMPLE / "mps2.ld", "-o", folder / "firmware.elf"],
        check=True,
    )  # fmt: skip
    image = sample_images(size)[:1].permute(0, 2, 3, 1).contiguous()
    (folder / "images.rgb").write_bytes(image.numpy().tobytes())
    printed = subprocess.run(
        RUN, cwd=folder, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ).stdout
    found = re.fullmatch(r"\d+ (\d+)\n", printed)
    assert found, printed
    sizes = ["arm-none-eabi-size", folder / "student.o"]
    text = subprocess.run(sizes, check=True, text=True, stdout=subprocess.PIPE).stdout
    return int(text.splitlines()[1].split()[0]), int(found[1])


def main() -> None:
    """Print the table."""
    print("| network | image | epilogue | flash | arena | RAM in all | instructions per image |")
    print("|---|---|---|---|---|---|---|")
    for name, (config, size) in networks().items():
        with tempfile.TemporaryDirectory() as temporary:
            file = packed(Path(temporary), config, size)
            for epilogue in EPILOGUES:
                done = export_c(file, Path(temporary) / epilogue, name="student", epilogue=epilogue)
                flash, count = measured(done.source, size)
                cells = f"{flash:,} | {done.arena:,} | {done.ram:,} | {count / 1e6:.1f} million"
                print(f"| {name} | {size} × {size} | {epilogue} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
