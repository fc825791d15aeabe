"""Compile every kernel of a block for GPUs, without one, and print the registers that it takes.

As a script it takes a folder for Triton's cache, and architectures. It prints a line of JSON for
each kernel: name, architecture, registers of a thread, bytes of the stack and of local memory,
where registers that do not fit are kept, and the instructions that load from and store to global
memory, by their width.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget

from burn.backbones.config import BackboneConfig
from burn.backbones.plan import block_plan
from burn.backbones.reactnet import Block
from burn.core.types import Precision
from burn.layers.fused.choice import block_kernels
from burn.layers.fused.kernels import KERNELS, triton_dtype
from burn.layers.fused.launch import NUM_WARPS, Launch

# (in, out, stride) and dtype of the map: all branches of all kernels, and ReActNet-A's widths.
BLOCKS = [(64, 128, 2, torch.bfloat16), (512, 512, 1, torch.bfloat16), (64, 128, 2, torch.float32)]
SHORT = {torch.bfloat16: "bf16", torch.float32: "fp32"}


def launches() -> list[Launch]:
    """The launches of training steps of `BLOCKS`, on tensors without numbers."""
    found: list[Launch] = []

    def note(launch: Launch) -> None:
        found.append(launch)

    with (
        mock.patch.object(Launch, "run", note),
        mock.patch.object(torch, "is_autocast_enabled", return_value=False),
        block_kernels("triton"),
    ):
        for channels, out, stride, dtype in BLOCKS:
            plan = block_plan("block", channels, out, stride)
            block = Block(*plan, BackboneConfig(), Precision.BINARY).to("meta")
            x = torch.empty(64, channels, 28, 28, dtype=dtype, device="meta")
            block(x.requires_grad_()).sum().backward()
    return found


def source(launch: Launch) -> Any:
    """The kernel with the types that Triton gives to these arguments."""
    kernel = KERNELS[launch.kernel]
    constants = launch.constants | {"ACC": triton_dtype(launch.constants["ACC"])}
    signature, hints = dict.fromkeys(constants, "constexpr"), {}
    for index, (name, value) in enumerate(zip(kernel.arg_names, launch.arguments(), strict=False)):
        if value is None:
            constants[name] = None
            signature[name] = "constexpr"
            continue
        signature[name] = "i32" if isinstance(value, int) else "*" + SHORT[value.dtype]
        if not isinstance(value, int) or value % 16 == 0:
            hints[index,] = [["tt.divisibility", 16]]
    ordered = {name: signature[name] for name in kernel.arg_names}
    return triton.compiler.ASTSource(kernel, ordered, constants, hints)


def resources(cubin: bytes, folder: Path) -> tuple[int, int, int]:
    """Registers, and bytes of the stack and of local memory, as NVIDIA's own tool reads them."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    command = [str(tool), "-res-usage", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said.stdout)
    assert found is not None, said
    registers, stack, local = map(int, found.groups())
    return registers, stack, local


def accesses(ptx: str) -> dict[str, int]:
    """How often a thread's program loads and stores so many bits at once."""
    found: Counter[str] = Counter()
    for kind, modifiers in re.findall(r"(ld|st)\.global\.(\S+)", ptx):
        number = re.search(r"v(\d)", modifiers)
        bits = re.search(r"[bfus](\d+)$", modifiers)
        assert bits is not None, modifiers
        found[f"{kind} {int(bits[1]) * int(number[1] if number else 1)}"] += 1
    return dict(found)


def main(folder: Path, targets: Sequence[int]) -> None:
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    seen: set[str] = set()
    for launch in launches():
        made = source(launch)
        if made.hash() in seen:
            continue
        seen.add(made.hash())
        for target in targets:
            compiled = triton.compile(
                made, target=GPUTarget("cuda", target, 32), options={"num_warps": NUM_WARPS}
            )
            cubin = compiled.asm["cubin"]
            assert cubin[:4] == b"\x7fELF"
            registers, stack, local = resources(cubin, folder)
            line = {"kernel": launch.kernel, "architecture": target, "registers": registers}
            line |= {"stack": stack, "local": local, "memory": accesses(compiled.asm["ptx"])}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(target) for target in sys.argv[2:]])
