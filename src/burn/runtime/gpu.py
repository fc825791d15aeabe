"""How a GPU computes, and its failures in one line; on a CPU nothing here has an effect."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from burn.core.errors import UserError

_MEMORY = re.compile("out of memory|CUBLAS_STATUS_ALLOC_FAILED")
_NOT_DETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")


@contextlib.contextmanager
def gpu_arithmetic(
    device: torch.device, *, fixed_shapes: bool, deterministic: bool = False
) -> Iterator[None]:
    """Set how a CUDA device computes in this context; afterwards the settings are as before.

    float32 is IEEE's: by default cuDNN rounds the inputs of convolutions to TF32, which has 10 bits
    of mantissa. With `fixed_shapes`, for batches that mostly have one shape, cuDNN times its
    algorithms at the first batch and takes the fastest. With `deterministic` it times nothing, the
    same run gives the same bits, and an operation that has no deterministic form raises
    RuntimeError.
    """
    if device.type != "cuda":
        yield
        return
    matmul, workspace = torch.backends.cuda.matmul, os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    tf32, strict = matmul.allow_tf32, torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    cudnn = torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled,
        benchmark=fixed_shapes and not deterministic,
        deterministic=deterministic,
        allow_tf32=False,
    )
    with cudnn:
        try:
            matmul.allow_tf32 = False
            if deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
                memory.fill_uninitialized_memory = False  # it only costs time
                torch.use_deterministic_algorithms(True)
            yield
        finally:
            matmul.allow_tf32 = tf32
            torch.use_deterministic_algorithms(strict)
            memory.fill_uninitialized_memory = filled
            if workspace is None:
                os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def describe_arithmetic(device: torch.device) -> dict[str, Any]:
    """Describe, in values for JSON, how a CUDA device computes now; {} for a CPU."""
    if device.type != "cuda":
        return {}
    cudnn = torch.backends.cudnn
    return {
        "tf32": cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32,
        "cudnn_benchmark": cudnn.benchmark,
        "deterministic": cudnn.deterministic,
    }


@contextlib.contextmanager
def gpu_failures_named(smaller: str) -> Iterator[None]:
    """Turn a GPU's lack of memory, or of an operation's deterministic form, into UserError.

    `smaller` says what did not fit, and how to make it smaller.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, torch.OutOfMemoryError) or ("CU" in text and _MEMORY.search(text)):
            raise UserError(f"the GPU runs out of memory: {smaller}") from error
        if match := _NOT_DETERMINISTIC.match(text):
            raise UserError(
                f"--deterministic: {match[1]} has no deterministic form on this device; leave the "
                "option out"
            ) from error
        raise


def read_later(numbers: Tensor) -> Callable[[], list[float]]:
    """Copy numbers, (count,), from a GPU without waiting; the returned function waits for the copy.

    It waits for what the GPU was given before this call, not for what comes after it.
    """
    copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    copy.copy_(numbers, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def read() -> list[float]:
        arrived.synchronize()
        return copy.tolist()

    return read
