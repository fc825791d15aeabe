"""InfoMin's loss against loops, and beside MoCo v2's."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from burn.core.errors import UserError
from burn.core.types import Batch, Precision
from burn.methods.infomin.method import Infomin
from burn.methods.infomin.settings import InfominConfig
from burn.methods.mocov2.method import Mocov2
from burn.methods.mocov2.settings import Mocov2Config
from burn.training.callbacks.checks import Guard
from networks import shallow_reactnet

CONFIG = InfominConfig(negatives=7, momentum=0.9, hidden=16, dimension=8, shuffle_groups=1)


def views(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (2, 4, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return Batch((images[0], images[1]), torch.arange(4))


def method(precision: Precision = Precision.BINARY, config: InfominConfig = CONFIG) -> Infomin:
    return Infomin(shallow_reactnet(precision), config).train()


def unit_rows(vectors: Tensor) -> np.ndarray:
    v = vectors.detach().double().numpy()
    return np.stack([row / math.sqrt(sum(row * row)) for row in v])


@pytest.mark.parametrize("precision", [Precision.FLOAT, Precision.BINARY])
def test_loss_is_the_momentum_contrast_of_the_paper(precision: Precision):
    m, batch = method(precision), views()
    order = copy.deepcopy(m.contrast.shuffle).next_order(4)
    keys = torch.empty(4, 8)
    keys[order] = m.contrast.target(batch.views[1][order])
    q, k = unit_rows(m.head(m.backbone(batch.views[0]))), unit_rows(keys)
    negatives = m.contrast.queue.keys.double().numpy().copy()
    total = 0.0
    for i in range(4):
        positive = math.exp(q[i] @ k[i] / 0.15)
        others = sum(math.exp(q[i] @ negative / 0.15) for negative in negatives)
        total -= math.log(positive / (positive + others))
    output = m(batch, 0.0)
    # float32 cosines over T = 0.15: some 1e-6.
    assert output.loss.item() == pytest.approx(total / 4, rel=1e-5, abs=1e-6)
    assert set(output.terms) == {"loss"}
    assert output.terms["loss"] == output.loss
    assert torch.equal(output.features, m.backbone(batch.views[0]))
    np.testing.assert_allclose(m.contrast.queue.keys[:4].numpy(), k, atol=1e-6)


def test_it_trains_as_moco_v2_of_the_same_settings():
    torch.manual_seed(0)
    infomin = method(config=replace(CONFIG, shuffle_groups=2))
    torch.manual_seed(0)
    settings = Mocov2Config(0.15, 7, momentum=0.9, hidden=16, dimension=8, shuffle_groups=2)
    mocov2 = Mocov2(shallow_reactnet(), settings).train()
    for step in range(3):
        losses = []
        for m in (infomin, mocov2):
            m.zero_grad()
            loss = m(views(step), 0.0).loss
            loss.backward()
            torch.optim.SGD(m.parameters(), lr=0.1).step()
            m.after_step(0.0)
            losses.append(loss.detach())
        assert torch.equal(*losses)
    left, right = infomin.state_dict(), mocov2.state_dict()
    assert list(left) == list(right)
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("precision", list(Precision))
def test_both_parts_learn(precision: Precision):
    m = method(precision)
    assert m.num_views == 2
    assert [(part.name, part.trained) for part in m.parts()] == [
        ("backbone", True), ("projection head", True), ("momentum encoder", False),
    ]  # fmt: skip
    m(views(), 0.0).loss.backward()
    guard = Guard(m.parts())
    guard.check(m.reached(0.0), step=1)
    assert not guard.pending


def test_weights_are_all_of_it():
    m = method()
    assert set(m.weights()) == set(m.state_dict())
    assert {"contrast.queue.keys", "contrast.queue.pointer"} < set(m.weights())


def test_defaults():
    InfominConfig().check()
    assert InfominConfig() == InfominConfig(0.15, 65536, 0.999, None, 128, 8)
    m = method(config=InfominConfig(negatives=9))
    assert m.contrast.queue.keys.shape == (9, 128)
    assert [p.shape[0] for p in m.head.parameters() if p.ndim == 2] == [256, 128]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0), ("negatives", 0), ("momentum", 2.0), ("hidden", 0),
        ("dimension", 0), ("shuffle_groups", -1),
    ],
)  # fmt: skip
def test_bad_settings_are_named(name: str, value: float):
    with pytest.raises(UserError, match=rf"--infomin.{name.replace('_', '-')} {value} is not in"):
        replace(InfominConfig(), **{name: value}).check()
