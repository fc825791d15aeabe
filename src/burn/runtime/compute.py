"""Choice of the device and of the number format for arithmetic."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from burn.core.errors import UserError
from burn.runtime.hardware import cores, is_intel
from burn.runtime.launch import ranks

if TYPE_CHECKING:
    import torch

Device = Literal["auto", "cpu", "cuda"]
Compute = Literal["auto", "float32", "bfloat16"]


def torch_device(device: Device) -> torch.device:
    """Return the device of that name; auto is CUDA where there is a CUDA device, otherwise the CPU.

    Of several CUDA devices, a process that torchrun started uses the one of its local rank.
    UserError says that there is none, or fewer than processes on this machine.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device here")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    local, count = ranks().local_rank, torch.cuda.device_count()
    if local >= count:
        raise UserError(
            f"process {local} of this machine has no GPU, torch sees {count}: start no more "
            "processes than there are, and let each see all of them"
        )
    return torch.device("cuda", local)


def goes_on_in(began: str, now: str) -> str:
    """Tell that a resumed run keeps its number format, where this machine would choose another."""
    return f"the run goes on in {began}, in which it began; this machine would choose {now}"


def uses_bfloat16(compute: Compute, device: Device) -> bool:
    """Return whether `compute` means bfloat16: auto does where the hardware is faster in it.

    A CPU must have AMX with bfloat16, or AVX-512 with bfloat16 and not be Intel's, and PyTorch must
    use AVX-512 on it, which ATEN_CPU_CAPABILITY can forbid. The environment variable BURN_COMPUTE,
    float32 or bfloat16, says what auto means whatever the hardware.
    """
    if compute != "auto":
        return compute == "bfloat16"
    forced = os.environ.get("BURN_COMPUTE")
    if forced:
        if forced not in ("float32", "bfloat16"):
            raise UserError(f"BURN_COMPUTE={forced}: set float32 or bfloat16, or unset it")
        return forced == "bfloat16"
    import torch

    if torch_device(device).type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Emulated on a CPU without such instructions, bfloat16 is slower than float32.
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # newer than torch 2.11
    if capabilities.get("amx_bf16"):
        return True
    # Training was 18 % slower in bfloat16 on an Emerald Rapids whose AMX the virtual machine hides:
    # Intel's AVX-512 multiplies no more numbers a cycle in it than in float32.
    return bool(capabilities.get("avx512_bf16")) and not is_intel()


def default_workers(device: Device, processes: int = 1) -> int:
    """Return the number of data-loader workers of each process, in training and in evaluation.

    With GPUs, all cores load images, by at most 16 workers of a process; on a CPU half of the cores
    do, and the other half computes. `processes` share this machine, of one job or of a campaign.
    """
    cuda = torch_device(device).type == "cuda"
    return min(16, max(1, cores() // processes)) if cuda else max(1, cores() // 2 // processes)
