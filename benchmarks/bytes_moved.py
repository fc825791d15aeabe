"""Count the memory that a training step of ReActNet-A's blocks moves, for each image.

    python benchmarks/bytes_moved.py                # ReActNet-A at 224 pixels, in bfloat16
    python benchmarks/bytes_moved.py --blocks       # each block by itself
    python benchmarks/bytes_moved.py --operations   # each operation by itself

Between convolutions a step is limited by memory, not by arithmetic, so that on a GPU the bytes
tell more than the operations. No GPU is needed: tensors have sizes but no numbers (device meta),
and no kernel runs. Three kinds of steps are counted: the layers applied one by one with autograd,
the block as one function of PyTorch's operations (`--kernels torch`), and with Triton's kernels
(`--kernels triton`).

Each operation counts the sizes of the tensors that it reads and writes, once each. This is what it
moves at least: BN in training reads its input twice, which counts once for PyTorch's operation,
while Triton's statistics are a kernel of their own and count. Caches, and what convolutions do
inside, are left out. Weights are shared by all images and are left out: the number is the
difference between batches of 4 and of 2 images, divided by 2.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, cast, get_args
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from burn.backbones.config import BackboneConfig
from burn.backbones.reactnet import Block, ReActNet
from burn.core.types import Precision
from burn.layers.fused import launch as fused
from burn.layers.fused.choice import block_kernels
from burn.layers.fused.launch import Launch
from burn.layers.half import Half

Kind = Literal["layers", "torch", "triton"]
SIDE = 224
# Operations that reserve memory or describe it anew.
_NO_KERNEL = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach"}
_ONLY_WRITE = {"copy_", "fill_", "zero_"}  # to their first argument


class BytesMoved(TorchDispatchMode):
    """Counts what operations read and write in this context.

    Attributes:
        total: Number of bytes.
        kernels: Number of operations that compute.
        by_operation: Number of bytes of each operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.kernels = 0
        self.by_operation: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        found = func(*args, **(kwargs or {}))
        if name not in _NO_KERNEL and not func.is_view:
            reads = _tensors((args, _without_out(kwargs or {})))
            self.add(name, [*reads[name in _ONLY_WRITE :], *_tensors(found)])
        return found

    def add(self, name: str, tensors: list[Tensor]) -> None:
        """Count a kernel that reads or writes each of these once."""
        moved = sum(map(_bytes, tensors))
        self.total += moved
        self.kernels += 1
        self.by_operation[name] += moved

    def launch(self, launch: Launch) -> None:
        """Count one of Triton's kernels instead of running it."""
        every = [*launch.reads, *launch.writes, *launch.vectors]
        self.add(f"triton {launch.kernel}", [tensor for tensor in every if tensor is not None])


def _without_out(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "out"}


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; what it repeats (stride 0) is in memory once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return elements * tensor.element_size()


def _in_channels_last(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last)


@contextmanager
def counted(kind: Kind) -> Iterator[BytesMoved]:
    """Count in this context, with blocks of a kind."""
    moved = BytesMoved()

    def launch(self: Launch) -> None:
        moved.launch(self)

    with ExitStack() as stack:
        # torch knows no autocast of the device meta, for which blocks ask.
        stack.enter_context(mock.patch.object(torch, "is_autocast_enabled", return_value=False))
        stack.enter_context(mock.patch.object(Launch, "run", launch))
        # Convolutions give channels-last maps on CPUs and GPUs, but not on the device meta.
        stack.enter_context(mock.patch.object(fused, "as_rows", _in_channels_last))
        stack.enter_context(block_kernels("triton" if kind == "triton" else "torch"))
        if kind == "layers":
            stack.enter_context(mock.patch.object(Half, "fits", return_value=False))
        yield stack.enter_context(moved)


def step(blocks: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, kind: Kind) -> BytesMoved:
    """Count a forward and backward pass of blocks on a map of a shape."""
    x = torch.empty(shape, dtype=dtype, device="meta").to(memory_format=torch.channels_last)
    x.requires_grad_()
    blocks.zero_grad()  # so that no pass adds to the gradients of another
    with counted(kind) as moved:
        out = blocks(x)
        out.backward(torch.empty_like(out))
    return moved


def per_image(
    blocks: nn.Module, shape: tuple[int, int, int], dtype: torch.dtype, kind: Kind
) -> tuple[Counter[str], int]:
    """Return the bytes of each operation for an image, and the number of kernels of a step.

    Args:
        blocks: The blocks, on the device meta.
        shape: Channels, height and width of their input.
        dtype: The maps' dtype.
        kind: How the blocks are trained.
    """
    few, more = (step(blocks, (count, *shape), dtype, kind) for count in (2, 4))
    each = {
        name: (bytes_moved - few.by_operation[name]) // 2
        for name, bytes_moved in more.by_operation.items()
    }
    return Counter(each), more.kernels


def reactnet() -> list[tuple[str, Block, tuple[int, int, int]]]:
    """Return ReActNet-A's blocks with their names, and the shapes of their inputs."""
    with torch.device("meta"):
        network = ReActNet(BackboneConfig(), Precision.BINARY).train()
    found = []
    side = SIDE // 2  # the stem's stride
    for number, block in enumerate(cast("list[Block]", list(network.blocks)), 1):
        channels = block.spatial.weight.shape[1]
        found.append((f"block {number}", block, (channels, side, side)))
        side = -(-side // block.stride)
    return found


def measure(dtype: torch.dtype) -> dict[str, Any]:
    """Count each kind of step, in MB (10⁶ bytes) for an image."""
    found: dict[str, Any] = {}
    for kind in get_args(Kind):
        total: Counter[str] = Counter()
        blocks: dict[str, float] = {}
        kernels = 0
        for name, block, shape in reactnet():
            operations, launched = per_image(block, shape, dtype, kind)
            total += operations
            kernels += launched
            blocks[name] = operations.total() / 1e6
        found[kind] = {
            "mb": total.total() / 1e6,
            "kernels": kernels,
            "blocks": blocks,
            "operations": {name: number / 1e6 for name, number in total.most_common()},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--blocks", action="store_true", help="print each block")
    parser.add_argument("--operations", action="store_true", help="print each operation")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(getattr(torch, options.dtype))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for kind, numbers in found.items():
        share = numbers["mb"] / found["torch"]["mb"]
        print(f"{kind:>7}: {numbers['mb']:6.0f} MB an image, {numbers['kernels']:4} kernels "
              f"a step; {share:.2f} of torch")  # fmt: skip
        for part in ("blocks", "operations"):
            if getattr(options, part):
                for name, mb in numbers[part].items():
                    print(f"         {mb:8.2f} {name}")


if __name__ == "__main__":
    main()
