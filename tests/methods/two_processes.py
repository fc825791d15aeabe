"""Every method, trained by one of two processes or alone: what test_two_processes.py compares.

As a script, `two_processes.py RANK FOLDER`, it is one of the two and writes FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import threads
from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.plan import block_plan
from burn.backbones.reactnet import Block
from burn.checkpoints.foreign.weights import Teacher
from burn.core.types import Batch, Precision
from burn.methods.base import Method
from burn.methods.burn.method import Burn
from burn.methods.burn.settings import BurnConfig
from burn.methods.byol.method import Byol
from burn.methods.byol.settings import ByolConfig
from burn.methods.infomin.method import Infomin
from burn.methods.infomin.settings import InfominConfig
from burn.methods.mocov2.method import Mocov2
from burn.methods.mocov2.settings import Mocov2Config
from burn.methods.s2bnn.method import S2bnn
from burn.methods.s2bnn.settings import S2bnnConfig
from burn.methods.simclr.method import Simclr
from burn.methods.simclr.settings import SimclrConfig
from burn.methods.supervised.method import Supervised, SupervisedKl
from burn.methods.swav.method import Swav
from burn.methods.swav.settings import SwavConfig
from burn.recipes.schema import OptimConfig
from burn.training.pretraining import build_optimizer
from method_checks import views
from networks import randomize

STEPS = 4
BATCH = 8  # images of both processes together
OPTIMIZERS = {
    "sgd": OptimConfig("sgd", lr=0.02, momentum=0.9, weight_decay=1e-3),
    "adam": OptimConfig("adam", lr=1e-3, momentum=0.9, weight_decay=1e-3),
}

Record = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A method, the sides of its views, and the micro-batches of an optimizer step.

    build: takes a seed, and the factor of the groups in which it normalises queries and keys.
    groups: their number in one of the two processes, or 0 for a method without.
    """

    build: Callable[[int, int], Method]
    sizes: tuple[int, ...] = (16, 16)
    groups: int = 0
    accumulate: int = 1


class Small(Backbone):
    """ReActNet's beginning: its stem and two of its blocks, (batch, 2 · width) features."""

    def __init__(self, width: int, precision: Precision) -> None:
        config = BackboneConfig()
        super().__init__(config, num_features=2 * width)
        self.stem = nn.Conv2d(3, width, 3, 2, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            Block(*block_plan("block", width, width, 1), config, precision),
            Block(*block_plan("block", width, 2 * width, 2), config, precision),
        )

    def forward_features(self, images: Tensor) -> Tensor:
        return self.blocks(self.stem_norm(self.stem(self.normalize(images))))

    def pool(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))


def _student(seed: int) -> Backbone:
    torch.manual_seed(seed)
    return Small(8, Precision.BINARY).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _teacher(seed: int) -> Teacher:
    torch.manual_seed(seed + 10)
    head = nn.Sequential(nn.Linear(20, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 6))
    return Teacher(Small(10, Precision.FLOAT), head, nn.Linear(20, 7), {})


def _burn(sizes: tuple[int, ...] = (16,), **settings: Any) -> Case:
    config = BurnConfig(num_classes=9, hidden=12, **settings)
    return Case(lambda seed, _: Burn(_student(seed), _teacher(seed), config), sizes)


def _swav(queue: int, accumulate: int = 1) -> Case:
    config = SwavConfig(
        small_crops=2, small_size=8, prototypes=5, queue=queue, queue_from=1 / STEPS, hidden=12,
        dimension=6, freeze_prototypes=0.3,
    )  # fmt: skip
    build = lambda seed, _: Swav(_student(seed), config)  # noqa: E731
    return Case(build, (16, 16, 8, 8), accumulate=accumulate)


def _mocov2(groups: int, accumulate: int = 1) -> Case:
    def build(seed: int, factor: int) -> Method:
        config = Mocov2Config(
            queue=11, momentum=0.8, hidden=12, dimension=6, shuffle_groups=groups * factor
        )
        return Mocov2(_student(seed), config)

    return Case(build, groups=groups, accumulate=accumulate)


def _infomin(seed: int, factor: int) -> Method:
    config = InfominConfig(negatives=5, momentum=0.8, dimension=6, shuffle_groups=2 * factor)
    return Infomin(_student(seed), config)


def _s2bnn(contrastive: float, factor: int, seed: int) -> Method:
    config = S2bnnConfig(
        hidden=12, contrastive=contrastive, queue=11, momentum=0.8, shuffle_groups=factor
    )
    return S2bnn(_student(seed), _teacher(seed), config)


CASES: dict[str, Case] = {
    "burn": _burn(),
    "burn joint": _burn(classifier="joint", classifier_lr=0.5, kl_direction="student_first"),
    "burn released": _burn(
        (16, 16), classifier="joint", views="cross", similarity_of="logits",
        similarity="normalized_mse", teacher_batch_norm="batch",
    ),
    "burn heaviside": _burn(classifier="joint", lam="heaviside", similarity="l2"),
    "burn without classifiers": _burn(classifier="none", similarity="cosine"),
    "supervised": Case(lambda seed, _: Supervised(_student(seed), 3), (16,)),
    "supervised_kl": Case(lambda seed, _: SupervisedKl(_student(seed), _teacher(seed)), (16,)),
    "byol": Case(lambda seed, _: Byol(_student(seed), ByolConfig(0.8, hidden=12, dimension=6))),
    "simclr": Case(lambda seed, _: Simclr(_student(seed), SimclrConfig(hidden=12, dimension=6))),
    "swav": _swav(queue=0),
    "swav with a queue": _swav(queue=12),
    "mocov2": _mocov2(groups=1),
    "mocov2 in groups": _mocov2(groups=2),
    "infomin": Case(_infomin, groups=2),
    "s2bnn": Case(lambda seed, factor: _s2bnn(0.0, factor, seed), (16,)),
    "s2bnn contrastive": Case(lambda seed, factor: _s2bnn(0.7, factor, seed), groups=1),
    "burn accumulated": Case(_burn(classifier="joint").build, (16,), accumulate=2),
    "swav accumulated": _swav(queue=12, accumulate=2),
    "mocov2 accumulated": _mocov2(groups=1, accumulate=2),
}  # fmt: skip


@contextmanager
def float64() -> Iterator[None]:
    """What methods compute in float32, `.float()`, too: signs would make jumps of its roundings."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(Tensor, "float", Tensor.double):
            yield
    finally:
        torch.set_default_dtype(before)


class NormOfTwo(nn.modules.batchnorm._BatchNorm):
    """BN of one process that normalises as two do, each its own images.

    The first half of a view's images is the first process's; rows are those of one view or, in
    SwAV, of some in turn. Where a method has groups of its own it is given twice as many, the
    first half of which are the first process's. The running statistics are the first process's,
    which DistributedDataParallel keeps.
    """

    groups: int
    calls: int

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        if self.groups:
            number = self.calls % (2 * self.groups)
            self.calls += 1
            return super().forward(x) if number < self.groups else self._without_running(x)
        share = BATCH // 2
        first, second = (half.flatten(0, 1) for half in x.unflatten(0, (-1, 2, share)).unbind(1))
        shares = super().forward(first), self._without_running(second)
        return torch.stack([y.unflatten(0, (-1, share)) for y in shares], 1).flatten(0, 2)

    def _without_running(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, self.weight, self.bias, True, eps=self.eps)

    def _check_input_dim(self, input: Tensor) -> None:
        pass


def normalise_as_two(method: Method, groups: int) -> None:
    for module in method.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.__class__ = NormOfTwo
            norm = cast(NormOfTwo, module)
            norm.groups, norm.calls = groups, 0


def train(case: Case, optim: OptimConfig, rank: int | None, *, as_two: bool = False) -> Record:
    """Losses, gradients and state of some steps by this one of two processes, or by one alone."""
    # The second process begins elsewhere: DistributedDataParallel must give it the first's state.
    method = randomize(case.build(1 if rank == 1 else 0, 2 if as_two else 1)).train()
    if as_two:
        normalise_as_two(method, case.groups)
    model = method if rank is None else DistributedDataParallel(method)
    optimizer = build_optimizer(method.parts(), optim)
    record: Record = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(case.accumulate):
            apart = nullcontext()
            if isinstance(model, DistributedDataParallel) and micro + 1 < case.accumulate:
                apart = model.no_sync()
            with apart:
                loss = model(_images(case, 10 * step + micro, rank), step / STEPS).loss
                (loss / case.accumulate).backward()
            record[f"loss {step} {micro}"] = loss.detach()
        for name, parameter in method.named_parameters():
            if parameter.requires_grad:
                # Also where the loss does not depend on it: without find_unused_parameters
                # DistributedDataParallel waits for every gradient.
                assert parameter.grad is not None, name
                record[f"gradient {step} {name}"] = parameter.grad.clone()
        optimizer.step()
        method.after_step(step / STEPS)
    return record | {f"state {name}": tensor for name, tensor in method.state_dict().items()}


def _images(case: Case, seed: int, rank: int | None) -> Batch:
    batch = views(*case.sizes, count=BATCH, seed=seed, labels=torch.arange(BATCH) % 3)
    own = slice(None)
    if rank is not None:
        own = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    assert batch.labels is not None
    return Batch(
        tuple(view[own] for view in batch.views), batch.indices[own], labels=batch.labels[own]
    )


def main(rank: int, folder: Path) -> None:
    with (folder / f"{rank}.txt").open("w") as errors:
        os.dup2(errors.fileno(), 2)
    threads.limit()
    warnings.simplefilter("error")
    # Of 1×1 kernels, channels last, whose strides along the sides of 1 mean nothing.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    distributed.init_process_group(
        "gloo", f"file://{folder / 'meeting'}", timedelta(seconds=60), rank=rank, world_size=2
    )
    with float64():
        found = {
            (case, optim): train(CASES[case], OPTIMIZERS[optim], rank)
            for case in CASES
            for optim in OPTIMIZERS
        }
    torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()
