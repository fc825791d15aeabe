"""Instructions per image on 64-bit ARM, of burn-engine's wheel and of ONNX Runtime's.

    make wheels build/aarch64/ready
    python benchmarks/arm.py --wheel dist/burn_engine-0.1.0-cp311-cp311-manylinux_2_27_aarch64.whl

QEMU runs Debian's Python for ARM with either wheel and counts the instructions of one thread, so
the numbers do not depend on the computer; repeated, they differ by up to 5 %. They are not times: a
processor executes up to four at once, waits for memory, and an instruction on 16 bytes counts as
one on 4. Networks have random weights. Prints the table of docs/guide/raspberry-pi.md.

It needs qemu-aarch64 with plugins (Debian: qemu-user), a C compiler, `burn-ssl[onnx]`, and the
network for ONNX Runtime's wheel.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torchvision
from microcontroller import packed

from burn.backbones.config import BackboneConfig
from burn.deploy.onnx import export_onnx
from burn.recipes.registry import find_recipe

ROOT = Path(__file__).parents[1]
ARM = ROOT / "build" / "aarch64"
CPU = "cortex-a76"  # a Raspberry Pi 5's
ONNX_RUNTIME = "onnxruntime==1.23.2"  # 1.32 ends with SIGSEGV on import in QEMU 7.2
PIXELS = 100_000  # of the images that are counted: a call's own instructions vary by millions

BURN = """
import sys, numpy, burn_engine
model = burn_engine.load(sys.argv[1], isa=sys.argv[4])
image = numpy.zeros((int(sys.argv[2]),) * 2 + (3,), numpy.uint8)
for _ in range(int(sys.argv[3])):
    model(image)
"""
ONNX = """
import sys, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
[given] = session.get_inputs()
side = int(sys.argv[2])
image = numpy.zeros((1, 3, side, side), numpy.float32)
for _ in range(int(sys.argv[3])):
    session.run(None, {given.name: image})
"""


class Emulator:
    """Debian's Python for ARM with the wheels installed, and the plugin that counts."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._plugin = folder / "libinstructions.so"
        source = ROOT / "benchmarks" / "instructions.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", self._plugin, source], check=True)
        root = ARM / "root"
        self._python = ["qemu-aarch64", "-cpu", CPU, "-L", str(root)]
        self._program = str(root / "usr" / "bin" / "python3")
        code = "import sys; print(*sys.version_info[:2], sep='.')"
        done = subprocess.run(
            [*self._python, self._program, "-c", code],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        self._site = folder / "site"
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "--only-binary=:all:", "--implementation", "cp", "--python-version",
            done.stdout.strip(), "--target", str(self._site),
        ]  # fmt: skip
        for glibc in ("2_28", "2_27", "2_17"):
            command += ["--platform", f"manylinux_{glibc}_aarch64"]
        subprocess.run([*command, str(wheel), ONNX_RUNTIME], check=True)

    def instructions(self, code: str, *arguments: str) -> float:
        """Return the instructions per image of code whose third argument is a number of images."""
        path, side, *rest = arguments
        images = max(2, PIXELS // int(side) ** 2)
        few, many = (self._count(code, path, side, str(n), *rest) for n in (2, 2 + images))
        return (many - few) / images

    def _count(self, code: str, *arguments: str) -> int:
        counting = ["-plugin", str(self._plugin), "-d", "plugin"]
        done = subprocess.run(
            [*self._python, *counting, self._program, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": str(self._site), "PYTHONHASHSEED": "0"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = re.findall(r"instructions: (\d+)", done.stderr)
        return int(found[-1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True, help="burn-engine's wheel for ARM")
    wheel = parser.parse_args(arguments).wheel
    for program in ("qemu-aarch64", "cc"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is missing (Debian: apt-get install qemu-user gcc)")
    if not (ARM / "ready").exists():
        sys.exit("no Python for ARM: make build/aarch64/ready")
    small, device = (find_recipe(name) for name in ("burn_small", "burn_device"))
    networks = {
        "`burn_small`": (small.backbone, small.views.size),
        "`burn_device`": (device.backbone, device.views.size),
        "ReActNet-A": (BackboneConfig(), 224),
    }
    print("| network | pixels | NEON | portable | ONNX Runtime, float | float / NEON |")
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        emulator = Emulator(folder, wheel)
        for label, (config, side) in networks.items():
            file = packed(folder, config, side)
            graph = folder / "network.onnx"
            export_onnx(folder / "network.safetensors", graph)
            neon, portable = (
                emulator.instructions(BURN, str(file), str(side), isa)
                for isa in ("neon", "portable")
            )
            peer = emulator.instructions(ONNX, str(graph), str(side))
            print(
                f"| {label} | {side} | {neon / 1e6:,.1f} M | {portable / 1e6:,.1f} M "
                f"| {peer / 1e6:,.1f} M | {peer / neon:.1f} |", flush=True
            )  # fmt: skip
            for path in folder.glob("*.*n*"):
                if path.suffix in (".bnn", ".onnx", ".safetensors"):
                    path.unlink()
        graph = folder / "mobilenet.onnx"
        torch.onnx.export(
            torchvision.models.mobilenet_v2().eval(), (torch.zeros(1, 3, 224, 224),), graph,
            dynamo=False,
        )  # fmt: skip
        peer = emulator.instructions(ONNX, str(graph), "224")
        print(f"| MobileNetV2 | 224 | | | {peer / 1e6:,.1f} M | |")


if __name__ == "__main__":
    main()
