"""Parameter groups, and one step of each optimizer by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from burn.core.errors import UserError
from burn.core.types import Part
from burn.recipes.schema import OptimConfig
from burn.training.pretraining import build_optimizer, parameter_groups


def parts() -> list[Part]:
    """A convolution with BN, a classifier at a tenth of the rate, and a part that is frozen."""
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU(4))
    return [
        Part("backbone", body, trained=True),
        Part("classifier", nn.Linear(4, 2), trained=True, learning_rate=0.1),
        Part("teacher", nn.Linear(3, 3), trained=False),
    ]


def test_matrices_and_kernels_decay_and_nothing_else_does():
    chosen = parts()
    groups = parameter_groups(chosen, OptimConfig(lr=0.5, weight_decay=0.01))
    body, linear = chosen[0].module, chosen[1].module
    expected = [
        (0.5, 0.01, [body[0].weight]),  # type: ignore[index]
        (0.5, 0.0, [body[0].bias, body[1].weight, body[1].bias, body[2].weight]),  # type: ignore[index]
        (0.05, 0.01, [linear.weight]),
        (0.05, 0.0, [linear.bias]),
    ]
    assert len(groups) == len(expected)
    for group, (lr, decay, params) in zip(groups, expected, strict=True):
        assert group["lr"] == pytest.approx(lr, rel=1e-12)  # one float64 product
        assert group["weight_decay"] == decay
        assert [id(p) for p in group["params"]] == [id(p) for p in params]


@pytest.mark.parametrize("name", ["adam", "sgd", "lars"])
def test_groups_keep_their_own_rate_and_decay(name: str):
    config = OptimConfig(name=name, lr=0.5, weight_decay=0.01)  # type: ignore[arg-type]
    optimizer = build_optimizer(parts(), config)
    found = [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups]
    assert found == [(0.5, 0.01), (0.5, 0.0), (0.05, 0.01), (0.05, 0.0)]


@pytest.mark.parametrize("name", ["adam", "sgd", "lars"])
def test_a_step_moves_every_trained_parameter_and_no_frozen_one(name: str):
    chosen = parts()
    optimizer = build_optimizer(chosen, OptimConfig(name=name, lr=0.1, weight_decay=1e-3))  # type: ignore[arg-type]
    before = [[p.detach().clone() for p in part.module.parameters()] for part in chosen]
    for part in chosen:
        for p in part.module.parameters():
            p.grad = torch.ones_like(p)
    optimizer.step()
    for part, values in zip(chosen, before, strict=True):
        for p, value in zip(part.module.parameters(), values, strict=True):
            assert torch.equal(p, value) != part.trained


def two_steps(config: OptimConfig) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """A weight (2, 3), two gradients, and what the optimizer makes of it."""
    layer = nn.Linear(3, 2, bias=False).double()
    weight = layer.weight.detach().clone().numpy()
    gradients = [np.random.default_rng(i).normal(size=(2, 3)) for i in range(2)]
    optimizer = build_optimizer([Part("layer", layer, trained=True)], config)
    for gradient in gradients:
        layer.weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return weight, gradients, layer.weight.detach().numpy()


def test_sgd_by_hand():
    config = OptimConfig(name="sgd", lr=0.1, momentum=0.8, weight_decay=0.05)
    weight, gradients, found = two_steps(config)
    velocity = np.zeros_like(weight)
    for gradient in gradients:
        velocity = 0.8 * velocity + gradient + 0.05 * weight
        weight = weight - 0.1 * velocity
    assert np.allclose(found, weight, rtol=1e-13, atol=0)  # float64, a handful of operations


def test_adam_by_hand_with_its_two_betas():
    config = OptimConfig(name="adam", lr=0.1, momentum=0.8, beta2=0.95)
    weight, gradients, found = two_steps(config)
    first = second = np.zeros_like(weight)
    for step, gradient in enumerate(gradients, start=1):
        first = 0.8 * first + 0.2 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        corrected = first / (1 - 0.8**step), second / (1 - 0.95**step)
        weight = weight - 0.1 * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    assert np.allclose(found, weight, rtol=1e-12, atol=0)  # float64, a handful of operations


def test_lars_by_hand():
    """You et al., 2017: each layer's rate is 0.001 · ‖w‖ / (‖g‖ + decay · ‖w‖)."""
    config = OptimConfig(name="lars", lr=0.3, momentum=0.9, weight_decay=1e-2)
    weight, gradients, found = two_steps(config)
    velocity = np.zeros_like(weight)
    for gradient in gradients:
        size = np.linalg.norm(weight)
        trust = 0.001 * size / (np.linalg.norm(gradient) + 1e-2 * size)
        velocity = 0.9 * velocity + trust * (gradient + 1e-2 * weight)
        weight = weight - 0.3 * velocity
    assert np.allclose(found, weight, rtol=1e-8, atol=0)  # timm adds 1e-8 below the fraction


def test_defaults_pass():
    OptimConfig().check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.0),
        ("lr", -1.0),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("beta2", 1.0),
        ("weight_decay", -1e-4),
        ("warmup_epochs", -1.0),
    ],
)
def test_values_out_of_range_are_named(name: str, value: float):
    with pytest.raises(UserError, match=rf"optim\.{name.replace('_', '.')} {value}"):
        replace(OptimConfig(), **{name: value}).check()
