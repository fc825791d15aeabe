"""SimCLR's loss against NT-Xent written out pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from burn.errors import UserError
from burn.methods.simclr import Simclr, SimclrConfig
from burn.types import Batch, Precision
from networks import tiny_reactnet


def nt_xent(first: np.ndarray, second: np.ndarray, temperature: float) -> float:
    """Chen et al., Eq. 1, over every ordered positive pair of the 2N projections."""
    z = np.concatenate([first, second])
    n = len(first)

    def cosine(i: int, j: int) -> float:
        return float(z[i] @ z[j] / math.sqrt((z[i] @ z[i]) * (z[j] @ z[j])))

    total = 0.0
    for i in range(2 * n):
        positive = (i + n) % (2 * n)
        others = sum(math.exp(cosine(i, k) / temperature) for k in range(2 * n) if k != i)
        total -= math.log(math.exp(cosine(i, positive) / temperature) / others)
    return total / (2 * n)


def views() -> Batch:
    images = torch.randint(0, 256, (2, 5, 3, 32, 32), dtype=torch.uint8)
    return Batch((images[0], images[1]), torch.arange(5))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_loss_is_nt_xent_of_the_projections(temperature: float):
    method = Simclr(tiny_reactnet(Precision.FLOAT), SimclrConfig(temperature, 32, 16)).train()
    batch = views()
    output = method(batch, 0.0)
    first, second = (
        method.head(method.backbone(view)).detach().double().numpy() for view in batch.views
    )
    assert first.shape == (5, 16)
    # float32 cosines over T = 0.1: some 1e-6.
    assert output.loss.item() == pytest.approx(nt_xent(first, second, temperature), rel=1e-5)
    assert output.terms["loss"].item() == output.loss.item()
    assert torch.equal(output.features, method.backbone(batch.views[0]))
    assert output.target_probabilities is None


@pytest.mark.parametrize("precision", [Precision.FLOAT, Precision.BINARY])
def test_both_parts_learn(precision: Precision):
    method = Simclr(tiny_reactnet(precision), SimclrConfig(dimension=16)).train()
    method(views(), 0.0).loss.backward()
    assert method.num_views == 2
    assert [(part.name, part.trained) for part in method.parts()] == [
        ("backbone", True), ("projection head", True),
    ]  # fmt: skip
    for part in method.parts():
        for parameter in part.module.parameters():
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
    assert sum(len(list(p.module.parameters())) for p in method.parts()) == len(
        list(method.parameters())
    )
    assert method.reached(0.0) == {"backbone", "projection head"}


def test_the_heads_hidden_width_is_the_backbones_unless_set():
    backbone = tiny_reactnet()
    widths = [
        [p.shape[0] for p in Simclr(backbone, config).head.parameters() if p.ndim == 2]
        for config in (SimclrConfig(), SimclrConfig(hidden=40, dimension=8))
    ]
    assert widths == [[256, 128], [40, 8]]


def test_weights_are_all_of_it():
    method = Simclr(tiny_reactnet(), SimclrConfig())
    assert set(method.weights()) == set(method.state_dict())


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperature_out_of_range(temperature: float):
    with pytest.raises(UserError, match=f"simclr.temperature {temperature}"):
        SimclrConfig(temperature).check()
