"""Several GPUs: what their processes exchange, and that they do not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from pretend import CUDA, group_of_two, on_gpu, pretended
from steps import CASES
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from burn.backbones.config import BackboneConfig
from burn.backbones.plan import block_plan
from burn.backbones.reactnet import Block
from burn.core.types import Precision
from burn.methods.base import Method
from burn.methods.shared.contrast import gather
from burn.methods.shared.standardize import Standardize
from burn.runtime.distributed import Processes
from burn.training.pretraining import Pretraining, redundant_buffers


@pytest.fixture
def two() -> Iterator[None]:
    with group_of_two():
        yield


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_with_sync_norm_saves_its_input_and_two_maps_and_waits_for_nothing(
    dtype: torch.dtype,
):
    """Besides its input; layer by layer it saved 79 % more, and waited once for each BN."""
    block: Any = Block(*block_plan("block", 8, 16, 2), BackboneConfig(), Precision.BINARY)
    block = nn.SyncBatchNorm.convert_sync_batchnorm(block)
    kept: list[Tensor] = []
    with pretended() as gpu:
        on_gpu(block)
        x = torch.randn(4, 8, 16, 16).to(CUDA, dtype).requires_grad_()
        gpu.waits.clear()
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
        with hooks:
            out = block(x)
        out.float().square().sum().backward()
        assert not gpu.waits
    assert "_Block" in type(out.grad_fn).__name__
    assert sorted(t.shape[1] for t in kept if t.numel() > 2000) == [8, 8, 16]


@pytest.mark.usefixtures("two")
def test_gathering_rows_waits_for_nothing():
    with pretended() as gpu:
        rows = gather(torch.ones(3, 2, device=CUDA))
        assert [tuple(share.shape) for share in rows] == [(3, 2)] * 2
        assert not gpu.waits


def test_buffers_that_are_the_same_anyway_are_not_broadcast(tmp_path: Path):
    """Of MoCo v2 these were the queue and the statistics of two networks, at every step."""
    method = CASES["mocov2"].build(0, 1)
    module = Pretraining(method, Processes(torch.device("cpu")))
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    try:
        model = DistributedDataParallel(module)
        exchanged = {id(buffer) for buffer in model.modules_buffers}
    finally:
        distributed.destroy_process_group()
    sent = {name for name, buffer in module.named_buffers() if id(buffer) in exchanged}
    assert not [name for name in sent if "running" in name or "queue" in name]
    assert {"method.contrast.shuffle.seed", "method.contrast.shuffle.count"} <= sent
    standardize = nn.ModuleDict({"standardize": Standardize(3)})
    assert len(redundant_buffers(cast(Method, standardize))) == 3
