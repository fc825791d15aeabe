"""Chains of plugins' backbones as packed files: parts that burn's own networks do not have."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.core.errors import UserError
from burn.core.types import Checkpoint, Precision
from burn.data.view_config import ViewConfig
from burn.deploy.pack import pack_network
from burn.layers.chain import BinaryLayer, Chain

META = {"views": asdict(ViewConfig(size=32)), "recipe": {"name": "own"}}


class Own(Backbone):
    """A stem and one binary layer, with one part of another kind."""

    def __init__(self, part: str) -> None:
        super().__init__(BackboneConfig("own"), 32)
        padding = "same" if part == "stem that pads to the same size" else 1
        self.stem = nn.Conv2d(3, 16, 3, padding=padding, bias=False)
        self.stem_norm = nn.BatchNorm2d(
            16,
            affine=part != "stem's norm without a gain",
            track_running_stats=part != "stem's norm without statistics",
        )
        kernel = 5 if part == "kernel of 5 pixels" else 3
        self.layer = BinaryLayer(16, 32, kernel, precision=Precision.BINARY)
        if part == "norm without a gain":
            self.layer.norm = nn.BatchNorm2d(32, affine=False)
        if part == "norm without statistics":
            self.layer.norm = nn.BatchNorm2d(32, track_running_stats=False)
        bias = part != "feature layer without a bias"
        self.linear = nn.Linear(32, 32, bias=bias) if "feature layer" in part else None

    def forward_features(self, images: Tensor) -> Tensor:
        return self.layer(self.stem_norm(self.stem(self.normalize(images))))

    def pool(self, features: Tensor) -> Tensor:
        pooled = features.mean((2, 3))
        return pooled if self.linear is None else self.linear(pooled).relu()

    def chain(self) -> Chain:
        return Chain(self.stem, self.stem_norm, [("layer", self.layer.half())], self.linear)


@pytest.mark.parametrize(
    "part",
    [
        "norm without a gain", "stem's norm without a gain", "feature layer without a bias",
        "stem that pads to the same size",
    ],
)  # fmt: skip
def test_a_packed_chain_is_the_network(part: str, tmp_path: Path):
    torch.manual_seed(0)
    done = pack_network(Own(part).eval(), Checkpoint({}, META), tmp_path / "own.bnn", None, {})
    assert done.cosine > 0.9999


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("kernel of 5 pixels", "layer layer has a kernel of 5 pixels; the format has 1"),
        ("norm without statistics", "batch normalization of layer layer has no running"),
        ("stem's norm without statistics", "batch normalization of its stem has no running"),
    ],
)
def test_what_the_format_lacks_is_named(part: str, words: str, tmp_path: Path):
    with pytest.raises(UserError, match=words):
        pack_network(Own(part).eval(), Checkpoint({}, META), tmp_path / "own.bnn", None, {})
