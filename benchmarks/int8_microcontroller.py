"""What small networks in 8 bits take on a Cortex-M4: instructions, flash and RAM, by CMSIS-NN.

    git clone https://github.com/ARM-software/CMSIS-NN
    python benchmarks/int8_microcontroller.py CMSIS-NN

Arm's kernels are compiled as their makers do (-Ofast), and run in the emulator of `boards.py`, in
the order of the networks' layers. Weights are random and images black: the number of instructions
does not depend on them. Flash is that of the weights, of 12 bytes for each output channel
(bias, multiplier, shift) and of the code; RAM that of the maps that are needed at once, of the
kernels' scratch memory and of the image. The networks have no classifier.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
from boards import BOARDS, EXAMPLE, Board
from torch import nn

SIDE = 96
_MOBILENET_V1 = ((1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), *[(1, 512)] * 5,
                 (2, 1024), (1, 1024))  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A layer.

    Attributes:
        kind: 0 for a convolution, 1 for a depthwise one, 2 for adding a map to the one before, 3
            for the mean of all pixels.
        size: Side of its input.
        channels: Channels of its input.
        out_channels: Channels of its output.
        kernel: Side of its kernel.
        stride: 1 or 2.
    """

    kind: int
    size: int
    channels: int
    out_channels: int
    kernel: int = 1
    stride: int = 1

    @property
    def out_size(self) -> int:
        """Side of its output."""
        return 1 if self.kind == 3 else -(-self.size // self.stride)

    @property
    def weights(self) -> int:
        """Number of its weights."""
        inputs = {0: self.channels, 1: 1}.get(self.kind, 0)
        return self.kernel**2 * inputs * self.out_channels

    @property
    def multiply_adds(self) -> int:
        """Number of multiply-adds, with those outside the map."""
        return self.out_size**2 * self.weights


def mobilenet_v1(width: float) -> Iterator[Step]:
    """Yield the layers of MobileNetV1."""
    channels, size = int(32 * width), SIDE // 2
    yield Step(0, SIDE, 3, channels, 3, 2)
    for stride, out in _MOBILENET_V1:
        yield Step(1, size, channels, channels, 3, stride)
        size = -(-size // stride)
        yield Step(0, size, channels, int(out * width))
        channels = int(out * width)
    yield Step(3, size, channels, channels)


def mobilenet_v2(name: str) -> Iterator[Step]:
    """Yield the layers of a MobileNetV2 of timm."""
    size = SIDE
    network: Any = timm.create_model(name)
    for block in (network.conv_stem, *[each for stage in network.blocks for each in stage],
                  network.conv_head):  # fmt: skip
        for convolution in block.modules():
            if not isinstance(convolution, nn.Conv2d):
                continue
            depthwise = convolution.groups > 1
            step = Step(int(depthwise), size, convolution.in_channels, convolution.out_channels,
                        convolution.kernel_size[0], convolution.stride[0])  # fmt: skip
            yield step
            size = step.out_size
        if getattr(block, "has_skip", False):
            yield Step(2, size, step.out_channels, step.out_channels)
    channels = network.conv_head.out_channels
    yield Step(3, size, channels, channels)


def maps_of(steps: list[Step]) -> tuple[list[tuple[int, int]], int]:
    """Return which of three maps each layer reads and writes, and the bytes needed at once.

    What a sum adds is the input of the third layer before it, which is kept until then.
    """
    current, kept, most = 0, 0, 0
    places: list[tuple[int, int]] = []
    for at, step in enumerate(steps):
        if step.kind == 2:
            places.append((kept, current))
            continue
        later = [each.kind for each in steps[at + 1 : at + 4]]
        before = later.index(2) + 1 if 2 in later else 0
        kept = current if before == 3 else kept
        to = min({0, 1, 2} - {current, kept if before else current})
        places.append((current, to))
        held = steps[at + before].size ** 2 * steps[at + before].channels if 0 < before < 3 else 0
        most = max(most, step.size**2 * step.channels + step.out_size**2 * step.out_channels + held)
        current = to
    return places, most


def measured(steps: list[Step], cmsis: Path, library: Path, board: Board, folder: Path) -> str:
    """Return a line of the table: instructions, flash and RAM."""
    random = np.random.default_rng(0)
    constants = b""
    rows = []
    places, most = maps_of(steps)
    for step, (one, other) in zip(steps, places, strict=True):
        rows.append(
            f"{{{step.kind}, {one}, {other}, {step.size}, {step.channels}, {step.out_size}, "
            f"{step.out_channels}, {step.kernel}, {step.stride}, {len(constants)}}},"
        )
        if step.kind < 2:
            weights = random.integers(-127, 128, step.weights, dtype=np.int8).tobytes()
            constants += weights + bytes(-len(weights) % 4)
            numbers = np.zeros((3, step.out_channels), np.int32)
            numbers[1], numbers[2] = 2**30, -8
            constants += numbers.tobytes()
    largest = max(max(s.size**2 * s.channels, s.out_size**2 * s.out_channels) for s in steps)
    text = f"#define LARGEST_MAP {largest}\n#define STEPS \\\n" + " \\\n".join(rows)
    (folder / "network.h").write_text(f"{text}\n")
    (folder / "constants.bin").write_bytes(constants)
    main = Path(__file__).with_suffix(".c").resolve()
    subprocess.run(
        [f"{board.tools}-gcc", "-std=c99", *board.flags, "-Os", "-w",
         *(f"-I{place}" for place in (cmsis / "Include", EXAMPLE, ".")), main, library,
         "-nostartfiles", "--specs=nosys.specs", "-T", EXAMPLE / board.script, "-Wl,--gc-sections",
         "-o", "firmware.elf"],
        cwd=folder, check=True,
    )  # fmt: skip
    printed = subprocess.run(
        board.emulator, cwd=folder, check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ).stdout  # fmt: skip
    failed, scratch, instructions = map(int, printed.split())
    assert not failed, printed
    sizes = subprocess.run(
        [f"{board.tools}-size", folder / "firmware.elf"], check=True, text=True,
        stdout=subprocess.PIPE,
    ).stdout  # fmt: skip
    flash = int(sizes.splitlines()[1].split()[0])
    total = sum(step.multiply_adds for step in steps)
    return (
        f"{total / 1e6:.1f} | {flash:,} | {most + scratch:,} | "
        f"{instructions / 1e6:.1f} ({instructions / total:.2f})"
    )


def built(cmsis: Path, board: Board, folder: Path) -> Path:
    """Compile CMSIS-NN for a board; return the library."""
    objects = []
    for source in sorted((cmsis / "Source").rglob("*.c")):
        if "Bindings" in source.parts or source.stem.endswith(("f16", "f32")):
            continue
        objects.append(folder / f"{source.stem}.o")
        subprocess.run(
            [f"{board.tools}-gcc", *board.flags, "-Ofast", "-w", "-ffunction-sections",
             f"-I{cmsis / 'Include'}", "-c", source, "-o", objects[-1]],
            check=True,
        )  # fmt: skip
    library = folder / "libcmsis-nn.a"
    subprocess.run([f"{board.tools}-ar", "rcs", library, *objects], check=True)
    return library


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cmsis", type=Path, metavar="CMSIS-NN")
    cmsis = parser.parse_args().cmsis.resolve()
    networks = {
        "MobileNetV1 0.25": list(mobilenet_v1(0.25)),
        "MobileNetV2 0.35": list(mobilenet_v2("mobilenetv2_035")),
        "MobileNetV2 0.5": list(mobilenet_v2("mobilenetv2_050")),
    }
    board = BOARDS["Cortex-M4"]
    print("| network | multiply-adds, millions | flash | RAM | instructions, millions |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as temporary:
        library = built(cmsis, board, Path(temporary))
        for network, steps in networks.items():
            line = measured(steps, cmsis, library, board, Path(temporary))
            print(f"| {network} | {line} |", flush=True)


if __name__ == "__main__":
    main()
