"""A network's names and shapes before there is a network, and networks that are too large."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from burn.backbones import registry as backbones
from burn.backbones.config import BackboneConfig
from burn.backbones.plan import parameter_shapes, reactnet_plan, state_shapes
from burn.backbones.registry import build_backbone, describe_backbone
from burn.core.errors import UserError
from burn.core.types import Precision

CONFIGS = [
    (BackboneConfig(width=0.25), Precision.BINARY),
    (BackboneConfig(width=0.25, feature_layer=True), Precision.FLOAT),
    (BackboneConfig(name="test_resnet"), Precision.FLOAT),
    (BackboneConfig(name="resnet18", width=0.125, stem_stride=1), Precision.FLOAT),
    (BackboneConfig(name="test_vit"), Precision.FLOAT),
]


@pytest.mark.parametrize(("config", "precision"), CONFIGS, ids=lambda c: getattr(c, "name", ""))
def test_a_description_has_the_networks_shapes_and_draws_nothing(
    config: BackboneConfig, precision: Precision
):
    before = torch.random.get_rng_state()
    described = describe_backbone(config, precision)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {t.device.type for t in described.state_dict().values()} == {"meta"}
    network = build_backbone(config, precision)
    assert described.num_features == network.num_features
    shapes = {name: (t.shape, t.dtype) for name, t in described.state_dict().items()}
    assert shapes == {name: (t.shape, t.dtype) for name, t in network.state_dict().items()}


@pytest.mark.parametrize("settings", [{}, {"feature_layer": True}, {"feature_norm": True}])
def test_the_plans_shapes_are_the_networks(settings: dict[str, Any]):
    config = BackboneConfig(width=0.25, **settings)
    described = describe_backbone(config, Precision.BINARY)
    plan = reactnet_plan(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in described.state_dict().items()}
    assert state_shapes(plan) == shapes
    parameters = {name: tuple(tensor.shape) for name, tensor in described.named_parameters()}
    assert parameter_shapes(plan) == parameters


def test_a_network_must_fit_into_memory_twice(monkeypatch: pytest.MonkeyPatch):
    config = BackboneConfig(width=0.25)
    state = describe_backbone(config, Precision.BINARY).state_dict()
    size = sum(t.numel() * t.element_size() for t in state.values())
    monkeypatch.setattr(backbones, "memory_bytes", lambda: 2 * size)
    build_backbone(config, Precision.BINARY)
    monkeypatch.setattr(backbones, "memory_bytes", lambda: 2 * size - 1)
    with pytest.raises(UserError, match=r"reactnet_a of width 0\.25 takes 0\.0 GB; this machine"):
        build_backbone(config, Precision.BINARY)


def test_weights_of_four_dimensions_are_channels_last_and_others_as_they_were():
    network = build_backbone(BackboneConfig(name="lambda_resnet26t"), Precision.FLOAT)
    dimensions = {p.ndim for p in network.parameters()}
    assert {1, 4, 5} <= dimensions
    for parameter in network.parameters():
        if parameter.ndim == 4:
            assert parameter.is_contiguous(memory_format=torch.channels_last)


def test_a_width_that_does_not_suit_is_the_users():
    with pytest.raises(UserError, match=r"resnet50_gn cannot be built with \[16, .*divisible"):
        build_backbone(BackboneConfig(name="resnet50_gn", width=0.25), Precision.FLOAT)
