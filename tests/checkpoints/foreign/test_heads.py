"""Heads rebuilt from their weights compute what the originals do, or are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from burn.checkpoints.foreign.heads import classifier_from, head_from
from burn.core.errors import UserError
from networks import randomize

HEADS: dict[str, nn.Sequential] = {
    "linear": nn.Sequential(nn.Linear(6, 4)),
    "MoCo v2": nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)),
    "SwAV": nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)),
    "MoCo v3": nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4, affine=False),
    ),
    "Barlow Twins": nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(),
        nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4, bias=False),
    ),
}  # fmt: skip
FEATURES = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", HEADS)
def test_a_head_computes_what_the_original_does(name: str):
    original = randomize(HEADS[name]).eval()
    head = head_from(original.state_dict(), 6)
    assert not any(module.training for module in head.modules())
    with torch.no_grad():
        assert torch.equal(head(FEATURES), original(FEATURES))


def test_a_single_linear_by_its_own_names():
    original = nn.Linear(6, 4)
    with torch.no_grad():
        assert torch.equal(head_from(original.state_dict(), 6)(FEATURES), original(FEATURES))


def linear(index: int, out: int, into: int) -> dict[str, Tensor]:
    return {f"{index}.weight": torch.rand(out, into), f"{index}.bias": torch.rand(out)}


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (linear(0, 4, 7), "layer 0 takes 7 features, not 6"),
        (linear(0, 5, 6) | linear(2, 4, 6), "layer 2 takes 6 features, not 5"),
        (linear(1, 4, 6), "first layer has no weights"),
        (linear(0, 5, 6) | linear(3, 4, 5), "layers 1 to 2 are unknown"),
        ({"0.weight": torch.rand(6), "0.bias": torch.rand(6)}, "neither Linear nor batch"),
        ({"0.weight": torch.rand(4, 6, 1, 1)}, "neither Linear nor batch"),
        ({"0.bias": torch.rand(4)}, "neither Linear nor batch"),
        ({"0.weight": torch.rand(4, 6), "0.bias": torch.rand(5)}, r"bias \(5,\)"),
        ({"0.running_mean": torch.rand(6)}, "layer 0 is incomplete"),
        ({"0.running_mean": torch.rand(5), "0.running_var": torch.rand(5)}, "running_mean"),
        ({"mlp.0.weight": torch.rand(4, 6)}, "mlp.0.weight does not belong to a sequence"),
        ({"last_layer.weight_g\n": torch.rand(4, 6)}, r"weight_g does not belong"),
    ],
)
def test_what_cannot_be_rebuilt(weights: dict[str, Tensor], words: str):
    with pytest.raises(UserError, match=words):
        head_from(weights, 6)


def test_a_classifier_is_one_linear_of_the_features_and_nothing_else():
    weights = {"fc.weight": torch.rand(3, 6), "fc.bias": torch.rand(3)}
    layer = classifier_from(weights, ["head", "fc"], 6)
    assert layer is not None
    assert torch.equal(layer.weight, weights["fc.weight"])
    assert torch.equal(layer.bias, weights["fc.bias"])
    assert classifier_from(weights, ["head"], 6) is None
    assert classifier_from(weights, ["fc"], 7) is None
    assert classifier_from({"fc.weight": weights["fc.weight"]}, ["fc"], 6) is None
    assert classifier_from(weights | {"fc.2.weight": torch.rand(3)}, ["fc"], 6) is None
