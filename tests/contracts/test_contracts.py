"""Burn's own methods, backbones and protocols keep the contracts that it offers for others'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burn import testing
from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BNEXT, EXPERT, REACTNET
from burn.campaigns.compare import recipe_of
from burn.evaluation.configs import KnnConfig, LinearConfig, TransferConfig
from burn.methods.entries import own_methods
from burn.recipes.registry import find_recipe


@pytest.mark.parametrize("method", own_methods())
def test_methods(method: str):
    _, recipe = recipe_of(method, "small")
    small: dict[str, dict[str, Any]] = {
        "byol": {"hidden": 64, "dimension": 32},
        "swav": {"hidden": 64, "dimension": 32, "prototypes": 32, "queue": 0, "small_size": 16},
        "mocov2": {"queue": 128},
        "infomin": {"negatives": 128},
    }
    recipe = replace(recipe, views=find_recipe("demo").views)
    recipe = recipe.with_settings(**small.get(method, {}))
    testing.check_method(method, recipe)


# Networks of one code, of which the others differ in their numbers of blocks and channels.
OTHERS = {"reactnet_m", "bnext_s", "bnext_m", "bnext_l"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in OTHERS else ())
        for name in (REACTNET, "reactnet_m", *BNEXT, EXPERT)
    ],
)
def test_backbones(name: str):
    width = 1 / 6 if name in ("bnext_s", "bnext_m") else 0.125  # a stem of 8 channels at least
    testing.check_backbone(name, config=BackboneConfig(width=width, stage_strides=(2, 2, 2, 1)))


PROTOCOLS = {  # those that take no minutes
    "knn": KnnConfig(),
    "linear": LinearConfig(epochs=2, augment="none", lr=0.1),
    "transfer": TransferConfig(epochs=2, augment="none"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols(protocol: str):
    testing.check_protocol(protocol, PROTOCOLS[protocol])
