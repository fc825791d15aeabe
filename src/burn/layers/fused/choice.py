"""Which kernels ReActNet's blocks train with: PyTorch's operations, or burn's own in Triton."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

import torch
from torch import Tensor

from burn.core.errors import UserError
from burn.runtime.compute import Kernels

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_chosen: ContextVar[Kernels] = ContextVar("kernels of blocks", default="torch")


@contextmanager
def block_kernels(kernels: Kernels) -> Iterator[None]:
    """Let blocks that are trained in this context use these kernels, where they run on a GPU.

    A backward pass uses the kernels that its forward pass used, in whatever context it runs.
    """
    before = _chosen.set(kernels)
    try:
        yield
    finally:
        _chosen.reset(before)


def uses_triton(x: Tensor) -> bool:
    """Return whether a block runs Triton's kernels on a map: chosen, and on a GPU.

    In Triton's interpreter (TRITON_INTERPRET=1) the kernels run on the CPU, which tests use.
    """
    if _chosen.get() != "triton" or x.dtype not in _DTYPES:
        return False
    return x.device.type != "cpu" or os.environ.get("TRITON_INTERPRET") == "1"


def require_triton() -> None:
    """Check that Triton is installed; PyTorch brings it along in its builds for CUDA on Linux.

    Raises:
        UserError: It is not.
    """
    if find_spec("triton") is None:
        raise UserError(
            "--kernels triton: the package triton is not installed; install a build of PyTorch for "
            "CUDA, or leave the option out"
        )
