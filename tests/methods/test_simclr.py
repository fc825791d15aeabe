"""SimCLR's loss against NT-Xent written out pair by pair, in one process and in two."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead

from burn.core.errors import UserError
from burn.core.types import Precision
from burn.methods.simclr.method import Simclr, nt_xent
from burn.methods.simclr.settings import SimclrConfig
from method_checks import (
    Plain,
    double,
    goes_on_from_its_state,
    gradient_of,
    half,
    in_two_processes,
    learning_parts,
    numeric_gradient,
    outputs_of,
    views,
    without_norm,
)
from networks import shallow_reactnet

# --- The loss. ---


def pair_by_pair(first: np.ndarray, second: np.ndarray, temperature: float) -> float:
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


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_loss_and_gradient_are_nt_xents(temperature: float, layers: int):
    config = SimclrConfig(temperature, 8, 4, layers)  # type: ignore[arg-type]
    method = Simclr(shallow_reactnet(Precision.FLOAT), config).train()
    batch = views(32, 32)
    projections = outputs_of(method.head)
    output = method(batch, 0.0)
    output.loss.backward()
    first, second = (double(projection) for projection in projections)
    assert first.shape == (5, 4)
    # float32 cosines over T = 0.1: some 1e-6.
    assert output.loss.item() == pytest.approx(pair_by_pair(first, second, temperature), rel=1e-5)
    assert output.terms["loss"].item() == output.loss.item()
    assert torch.equal(output.features, method.backbone(batch.views[0]))
    assert output.target_probabilities is None
    expected = [
        numeric_gradient(lambda z: pair_by_pair(z, second, temperature), first),
        numeric_gradient(lambda z: pair_by_pair(first, z, temperature), second),
    ]
    for projection, gradient in zip(projections, expected, strict=True):
        # float32 probabilities, 1e-6 of values of size 1 to 10.
        assert np.allclose(gradient_of(projection), gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [2, 7])
def test_loss_and_gradient_are_lightlys_to_the_bit(count: int):
    generator = torch.Generator().manual_seed(5)
    ours = [torch.randn(count, 4, generator=generator).requires_grad_() for _ in range(2)]
    theirs = [one.detach().requires_grad_() for one in ours]
    loss, expected = nt_xent(ours[0], ours[1], 0.3), NTXentLoss(0.3)(*theirs)
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    for one, twin in zip(ours, theirs, strict=True):
        # Their gradient through the normalization has another layout, and so its sums.
        torch.testing.assert_close(one.grad, twin.grad, rtol=1e-5, atol=1e-7)


def test_version_1_is_as_it_was():
    """Its head draws the same weights, and gathering in a single process changes no bit."""
    config = SimclrConfig(layers=2)
    backbone = Plain()
    torch.manual_seed(3)
    method = Simclr(backbone, config).train()
    torch.manual_seed(3)
    head = SimCLRProjectionHead(6, 6, 128)
    assert list(head.state_dict()) == list(method.head.state_dict())
    batch = views(8, 8)
    projections = [head(backbone(view)) for view in batch.views]
    assert torch.equal(method(batch, 0.0).loss, NTXentLoss(0.5)(*projections))


@pytest.mark.parametrize("precision", list(Precision))
def test_both_parts_learn(precision: Precision):
    method = Simclr(shallow_reactnet(precision), SimclrConfig(dimension=16)).train()
    method(views(32, 32), 0.0).loss.backward()
    assert method.num_views == 2
    assert [(part.name, part.trained) for part in method.parts()] == [
        ("backbone", True), ("projection head", True),
    ]  # fmt: skip
    assert method.reached(0.0) == learning_parts(method) == {"backbone", "projection head"}
    assert sum(len(list(p.module.parameters())) for p in method.parts()) == len(
        list(method.parameters())
    )


@pytest.mark.parametrize(("layers", "hidden"), [(2, 1), (3, 2)])
def test_the_heads_hidden_width_is_the_backbones_unless_set(layers: Any, hidden: int):
    backbone = shallow_reactnet()
    widths = [
        [p.shape[0] for p in Simclr(backbone, config).head.parameters() if p.ndim == 2]
        for config in (
            SimclrConfig(layers=layers),
            SimclrConfig(hidden=40, dimension=8, layers=layers),
        )
    ]
    assert widths == [[256] * hidden + [128], [40] * hidden + [8]]


def test_weights_are_all_of_it():
    method = Simclr(shallow_reactnet(), SimclrConfig())
    assert set(method.weights()) == set(method.state_dict())
    assert all(name.startswith(("backbone.", "head.")) for name in method.weights())


def test_it_goes_on_from_its_state():
    def build(seed: int) -> Simclr:
        return Simclr(shallow_reactnet(seed=seed), SimclrConfig(dimension=16))

    goes_on_from_its_state(build, 32, 32)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.0}, "simclr.temperature 0.0"),
        ({"temperature": -1.0}, "simclr.temperature -1.0"),
        ({"hidden": 0}, "simclr.hidden 0"),
        ({"dimension": 0}, "simclr.dimension 0"),
        ({"layers": 4}, "simclr.layers 4"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        SimclrConfig(**settings).check()


def test_defaults_pass():
    SimclrConfig().check()
    assert SimclrConfig().layers == 3


# --- Two processes. ---


def plain(layers: Any) -> Simclr:
    torch.manual_seed(0)
    method = Simclr(Plain(), SimclrConfig(0.5, 8, 4, layers))
    without_norm(method.head)
    return method


def _halves(rank: int) -> list[Any]:
    found = []
    for layers in (2, 3):
        method = plain(layers)
        loss = method(half(views(8, 8, count=6), rank), 0.0).loss
        loss.backward()
        found.append((loss.detach(), [p.grad for p in method.parameters()]))
    return found


def test_two_processes_are_one_at_double_the_batch(tmp_path: Path):
    """Their mean loss is its loss, and their mean gradient, as DDP takes it, its gradient."""
    both = in_two_processes(_halves, tmp_path)
    for layers, (first, second) in zip((2, 3), zip(*both, strict=True), strict=True):
        method = plain(layers)
        loss = method(views(8, 8, count=6), 0.0).loss
        loss.backward()
        assert first[0] != second[0]
        # float32 sums in another order, as below: gradients of size 0.01 to 1.
        assert loss.item() == pytest.approx((first[0] + second[0]).item() / 2, rel=1e-6)
        for parameter, a, b in zip(method.parameters(), first[1], second[1], strict=True):
            torch.testing.assert_close(parameter.grad, (a + b) / 2, rtol=1e-5, atol=1e-7)
