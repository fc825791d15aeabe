"""MoCo v2 against loops, from where it stopped, and on two processes."""

from __future__ import annotations

import copy
import math
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn

import threads
from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.core.errors import GradientFlowError, UserError
from burn.core.types import Batch, Precision
from burn.methods.mocov2.method import Mocov2
from burn.methods.mocov2.settings import Mocov2Config
from burn.training.callbacks.checks import Guard
from method_checks import join
from networks import shallow_reactnet
from warm import CONTEXT

CONFIG = Mocov2Config(queue=11, momentum=0.9, hidden=16, dimension=8, shuffle_groups=1)


def views(seed: int, length: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(
        0, 256, (2, length, 3, 32, 32), generator=generator, dtype=torch.uint8
    )  # fmt: skip
    return Batch((images[0], images[1]), torch.arange(length))


def method(precision: Precision = Precision.BINARY, *, seed: int = 1, **settings: Any) -> Mocov2:
    return Mocov2(shallow_reactnet(precision, seed=seed), replace(CONFIG, **settings)).train()


def unit_rows(vectors: Tensor) -> np.ndarray:
    v = vectors.detach().double().numpy()
    return np.stack([row / math.sqrt(sum(row * row)) for row in v])


def looped_loss(q: np.ndarray, k: np.ndarray, ring: list[np.ndarray], temperature: float) -> float:
    """He et al., Eq. 1, query by query."""
    total = 0.0
    for query, key in zip(q, k, strict=True):
        positive = math.exp(query @ key / temperature)
        others = sum(math.exp(query @ negative / temperature) for negative in ring)
        total -= math.log(positive / (positive + others))
    return total / len(q)


def learn(m: Mocov2, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    optimizer.zero_grad()
    loss = m(batch, 0.0).loss
    loss.backward()
    optimizer.step()
    m.after_step(0.0)
    return loss.detach()


# --- Loss, queue and momentum. ---


@pytest.mark.parametrize("precision", [Precision.FLOAT, Precision.BINARY])
def test_training_is_what_the_loops_give(precision: Precision):
    """Keys of one step are the next steps' negatives, and the momentum encoder's at that step."""
    m = method(precision, shuffle_groups=2)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.5)
    ring, place = list(unit_rows(m.contrast.queue.keys)), 0
    followed = [p.double() for p in m.contrast.target.parameters()]
    for step in range(5):
        batch = views(step)
        order = copy.deepcopy(m.contrast.shuffle).next_order(4)
        shuffled = batch.views[1][order]
        keys = torch.empty(4, 8)
        keys[order] = torch.cat([m.contrast.target(shuffled[i : i + 2]) for i in (0, 2)])
        query = batch.views[0]
        queries = torch.cat([m.head(m.backbone(query[i : i + 2])) for i in (0, 2)])
        k = unit_rows(keys)
        expected = looped_loss(unit_rows(queries), k, ring, CONFIG.temperature)
        # float32 cosines over T = 0.2: some 1e-6.
        assert learn(m, optimizer, batch).item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        for key in k:
            ring[place] = key
            place = (place + 1) % len(ring)
        np.testing.assert_allclose(m.contrast.queue.keys.numpy(), np.stack(ring), atol=1e-6)
        online = (*m.backbone.parameters(), *m.head.parameters())
        for i, parameter in enumerate(online):
            followed[i] = 0.9 * followed[i] + 0.1 * parameter.detach().double()
        for mean, parameter in zip(followed, m.contrast.target.parameters(), strict=True):
            # float32 roundings of each step, in numbers of size 1.
            torch.testing.assert_close(parameter.double(), mean, rtol=1e-6, atol=1e-6)


def test_what_a_step_gives():
    m, batch = method(), views(0)
    output = m(batch, 0.3)
    assert m.num_views == 2
    assert set(output.terms) == {"loss"}
    assert output.terms["loss"] == output.loss
    assert not output.terms["loss"].requires_grad
    assert torch.equal(output.features, m.backbone(batch.views[0]))
    assert not output.features.requires_grad
    assert output.target_probabilities is None


def test_autocast_narrows_the_networks_and_not_the_loss():
    m = method(Precision.FLOAT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert m.head(torch.randn(2, 256)).dtype == torch.bfloat16
        output = m(views(0), 0.0)
    assert output.loss.dtype == torch.float32
    assert m.contrast.queue.keys.dtype == torch.float32
    output.loss.backward()
    # A norm that bfloat16 had rounded would be off by up to 0.004.
    torch.testing.assert_close(m.contrast.queue.keys.norm(dim=1), torch.ones(11))


# --- Where gradients go. ---


@pytest.mark.parametrize("precision", list(Precision))
def test_both_parts_learn_and_the_momentum_encoder_by_following(precision: Precision):
    m = method(precision)
    assert [(part.name, part.trained) for part in m.parts()] == [
        ("backbone", True), ("projection head", True), ("momentum encoder", False),
    ]  # fmt: skip
    held = [p for part in m.parts() for p in part.module.parameters()]
    assert {id(p) for p in held} == {id(p) for p in m.parameters()}
    m(views(0), 0.0).loss.backward()
    guard = Guard(m.parts())
    guard.check(m.reached(0.0), step=1)
    assert not guard.pending
    parameter = next(m.contrast.target.parameters())
    parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(GradientFlowError, match="momentum encoder"):
        Guard(m.parts()).check(m.reached(0.0), step=1)


def test_the_queries_alone_carry_the_gradient():
    """It is what it would be if keys and queue were numbers."""
    m, batch = method(Precision.FLOAT), views(0)
    order = copy.deepcopy(m.contrast.shuffle).next_order(4)
    k = torch.empty(4, 8)
    k[order] = nn.functional.normalize(m.contrast.target(batch.views[1][order]))
    q = nn.functional.normalize(m.head(m.backbone(batch.views[0])))
    logits = torch.cat([(q * k).sum(dim=1, keepdim=True), q @ m.contrast.queue.keys.T.clone()], 1)
    nn.functional.cross_entropy(logits / 0.2, torch.zeros(4, dtype=torch.int64)).backward()
    expected = [p.grad for p in (*m.backbone.parameters(), *m.head.parameters())]
    m.zero_grad()
    m(batch, 0.0).loss.backward()
    found = [p.grad for p in (*m.backbone.parameters(), *m.head.parameters())]
    for one, other in zip(found, expected, strict=True):
        # float32 sums in another order, over 30 layers.
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


# --- Going on. ---


def test_going_on_from_saved_weights_is_going_on():
    batches = [views(step, length=5) for step in range(5)]
    m = method(shuffle_groups=2)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    for batch in batches[:3]:
        learn(m, optimizer, batch)
    saved = {name: tensor.clone() for name, tensor in m.weights().items()}
    assert set(saved) == set(m.state_dict())
    names = {"queue.keys", "queue.pointer", "shuffle.seed", "shuffle.count"}
    assert {f"contrast.{name}" for name in names} < set(saved)
    assert any(name.startswith("contrast.target.backbone.") for name in saved)
    assert any(name.startswith("head.") for name in saved)
    other = method(seed=7, shuffle_groups=2)
    other.load_weights(saved)
    again = torch.optim.SGD(other.parameters(), lr=0.1)
    for batch in batches[3:]:
        assert torch.equal(learn(m, optimizer, batch), learn(other, again, batch))
    left, right = m.state_dict(), other.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_the_second_stage_begins_where_the_first_ended():
    first = method(Precision.BINARY_ACTIVATIONS)
    learn(first, torch.optim.SGD(first.parameters(), lr=0.1), views(0))
    second = method(Precision.BINARY, seed=3)
    second.load_weights(first.weights())
    held = second.state_dict()
    assert all(torch.equal(held[name], tensor) for name, tensor in first.weights().items())
    assert second.contrast.queue.pointer == 4
    learn(second, torch.optim.SGD(second.parameters(), lr=0.1), views(1))
    assert second.contrast.queue.pointer == 8


# --- Settings. ---


def test_widths():
    def widths(config: Mocov2Config) -> list[int]:
        return [
            p.shape[0] for p in Mocov2(shallow_reactnet(), config).head.parameters() if p.ndim > 1
        ]

    assert widths(Mocov2Config(queue=8)) == [256, 128]
    assert widths(Mocov2Config(queue=8, hidden=40, dimension=6)) == [40, 6]
    assert Mocov2Config().queue == 65536
    assert Mocov2(shallow_reactnet(), Mocov2Config(queue=8)).contrast.queue.keys.shape == (8, 128)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0), ("temperature", math.nan), ("queue", 0), ("queue", 2**25),
        ("momentum", -0.1), ("momentum", 1.1), ("hidden", 0), ("dimension", 0),
        ("shuffle_groups", 0),
    ],
)  # fmt: skip
def test_bad_settings_are_named(name: str, value: float):
    option = f"--mocov2.{name.replace('_', '-')}"
    with pytest.raises(UserError, match=f"{option} {value} is not in .* … "):
        replace(Mocov2Config(), **{name: value}).check()


def test_good_settings_pass():
    Mocov2Config().check()
    Mocov2Config(0.001, 1, 1.0, 1, 1, 8).check()


# --- Several processes. ---


class Plain(Backbone):
    """A convolution, with BN or without."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__(BackboneConfig(), num_features=12)
        self.convolution = nn.Conv2d(3, 12, 8, 8)
        self.norm = nn.BatchNorm2d(12) if norm else nn.Identity()

    def forward_features(self, images: Tensor) -> Tensor:
        return self.norm(self.convolution(self.normalize(images))).relu()

    def pool(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3))


SHARES = {"even": (4, 4), "uneven": (3, 5), "norm": (4, 4), "norm in groups": (4, 4)}


def three_steps(case: str, rank: int | None) -> dict[str, Tensor]:
    """Of one process with the whole batch, or of one of two with its share of it.

    Two processes normalise by halves of the batch, and so does one with twice the groups.
    """
    groups = (2 if case == "norm in groups" else 1) * (2 if rank is None else 1)
    torch.manual_seed(6)
    config = replace(CONFIG, shuffle_groups=groups)
    m = Mocov2(Plain(norm="norm" in case), config).train()
    optimizer = torch.optim.SGD(m.parameters(), lr=0.5)
    record: dict[str, Tensor] = {}
    for step in range(3):
        batch, share = views(step, length=8), slice(0, 8)
        if rank is not None:
            share = slice(0, SHARES[case][0]) if rank == 0 else slice(SHARES[case][0], 8)
        part = Batch(tuple(view[share] for view in batch.views), batch.indices[share])
        optimizer.zero_grad()
        # The mean over the processes, weighted by their shares where those differ.
        loss = m(part, 0.0).loss * len(part.indices) / 8
        loss.backward()
        record[f"loss {step}"] = loss.detach()
        for name, parameter in m.named_parameters():
            if parameter.grad is not None:
                record[f"gradient {step} {name}"] = parameter.grad
        if rank is not None:
            for name in (name for name in record if f" {step}" in name):
                distributed.all_reduce(record[name])
        record = {name: tensor.clone() for name, tensor in record.items()}
        optimizer.step()
        m.after_step(0.0)
    record |= {f"queue {name}": tensor for name, tensor in m.contrast.queue.named_buffers()}
    record |= {f"shuffle {name}": tensor for name, tensor in m.contrast.shuffle.named_buffers()}
    return record | {f"momentum {name}": p for name, p in m.contrast.target.named_parameters()}


def second_process(port: int, file: Path) -> None:
    threads.limit()
    join(1, port)
    torch.save({case: three_steps(case, rank=1) for case in SHARES}, file)
    distributed.barrier()
    distributed.destroy_process_group()


def run_both_processes(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each of two processes recorded of every case. The first of them is this one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = CONTEXT.Process(target=second_process, args=(port, file), daemon=True)
    process.start()
    try:
        join(0, port)
        first = {case: three_steps(case, rank=0) for case in SHARES}
        distributed.barrier()
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    process.join(timeout=60)
    assert process.exitcode == 0
    return first, torch.load(file)


def test_two_processes_are_one(tmp_path: Path):
    """One test, for the second process takes seconds to start."""
    first_process, other_process = run_both_processes(tmp_path / "second.pt")
    for case in SHARES:
        first, second = first_process[case], other_process[case]
        assert first["queue pointer"] == 24 % 11
        assert first["shuffle count"] == 3
        # All but what has run of BN's statistics is the same in both, bit for bit.
        differing = [
            name for name, tensor in first.items() if not torch.equal(tensor, second[name])
        ]
        assert not differing, case
        alone = three_steps(case, rank=None)
        assert list(alone) == list(first)
        for name, tensor in alone.items():
            # Means of four and four images instead of eight: float32 roundings, over three steps.
            torch.testing.assert_close(
                first[name], tensor, rtol=1e-4, atol=1e-5, msg=f"{case}: {name}"
            )
        gradients = [tensor for name, tensor in alone.items() if name.startswith("gradient 2")]
        assert max(float(g.abs().max()) for g in gradients) > 1e-3


def test_the_groups_of_the_norm_matter():
    """The tests above would see statistics of the whole batch."""
    losses = [three_steps(case, rank=None)["loss 0"] for case in ("norm", "norm in groups")]
    assert abs(losses[0] - losses[1]) > 1e-3
