from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.reactnet import Block, ReActNet
from burn.backbones.registry import build_backbone
from burn.core.types import Precision
from burn.layers import BinaryConv2d
from burn.training.callbacks.layers import Layers
from networks import randomize

IMAGES = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)


def network(precision: Precision = Precision.BINARY) -> ReActNet:
    backbone = build_backbone(BackboneConfig(width=0.25), precision)
    assert isinstance(backbone, ReActNet)
    randomize(backbone)
    return backbone


def watching(backbone: Backbone) -> Layers:
    return Layers(1, backbone, cast(Any, None))


def inputs_of(backbone: ReActNet, images: torch.Tensor) -> dict[str, np.ndarray]:
    """What each binary convolution takes the sign of, written out layer by layer."""
    backbone.eval()
    found: dict[str, np.ndarray] = {}

    def convolve(layer: BinaryConv2d, name: str, x: torch.Tensor) -> torch.Tensor:
        found[name] = (x + layer.sign.shift.view(1, -1, 1, 1)).numpy()
        return layer(x)

    with torch.no_grad():
        x = backbone.stem_norm(backbone.stem(backbone.normalize(images)))
        for i, block in enumerate(backbone.blocks):
            assert isinstance(block, Block)
            shortcut = F.avg_pool2d(x, 2, ceil_mode=True) if block.stride == 2 else x
            y = convolve(block.spatial, f"blocks.{i}.spatial", x)
            x = block.spatial_activation(block.spatial_norm(y) + shortcut)
            y = convolve(block.pointwise, f"blocks.{i}.pointwise", x)
            shortcut = torch.cat([x] * block.repeat, dim=1)
            x = block.pointwise_activation(block.pointwise_norm(y) + shortcut)
    backbone.train()
    return found


def test_activations_against_loops():
    """Two looks of 8 images and of 2, with a channel that is dead, and one that is but once."""
    backbone = network()
    first = backbone.blocks[0]
    assert isinstance(first, Block)
    with torch.no_grad():
        first.spatial.sign.shift[3] = 1e4
        first.spatial.sign.shift[5] = -1e4
    layers = watching(backbone)
    backbone.train()
    layers.look(IMAGES, nullcontext())
    with torch.no_grad():
        first.spatial.sign.shift[5] = 1e4
    layers.look(IMAGES[40:56], nullcontext())
    rows = layers.close()

    with torch.no_grad():
        first.spatial.sign.shift[5] = -1e4
    looks = [inputs_of(backbone, IMAGES[:8])]
    with torch.no_grad():
        first.spatial.sign.shift[5] = 1e4
    looks.append(inputs_of(backbone, IMAGES[40:42]))
    assert rows.keys() == looks[0].keys()
    assert len(rows) == 26
    for name, row in rows.items():
        channels = looks[0][name].shape[1]
        positive = total = dead = 0
        for channel in range(channels):
            signs = [1 if v >= 0 else -1 for look in looks for v in look[name][:, channel].flat]
            positive += signs.count(1)
            total += len(signs)
            dead += len(set(signs)) == 1
        # The sums of pixels differ in nothing but the last bit of a division.
        assert row["activation_balance"] == pytest.approx(positive / total, rel=1e-12)
        assert row["dead_channels"] == pytest.approx(dead / channels, rel=1e-12)
    assert rows["blocks.0.spatial"]["dead_channels"] == 1 / 8  # channel 3 of 8


@pytest.mark.parametrize("precision", [Precision.BINARY, Precision.BINARY_ACTIVATIONS])
def test_weights_against_loops(precision: Precision):
    backbone = network(precision)
    layers = watching(backbone)
    convolutions = {n: m for n, m in backbone.named_modules() if isinstance(m, BinaryConv2d)}
    with torch.no_grad():
        convolutions["blocks.1.spatial"].weight[0, 0, 0, :] = torch.tensor([0.0, -0.0, -1e-30])
    before = {name: layer.weight.detach().clone() for name, layer in convolutions.items()}
    first = layers.close()
    assert [list(row) for row in first.values()] == [["weight_balance"]] * 26
    assert layers.share_of_flips(first) is None
    with torch.no_grad():
        for layer in convolutions.values():
            layer.weight.add_(0.3 * layer.weight.std() * torch.randn_like(layer.weight))
        convolutions["blocks.1.spatial"].weight[0, 0, 0, :] = torch.tensor([-0.0, 0.0, -1.0])
    second = layers.close()
    all_flips = number = 0
    for name, row in second.items():
        old, new = before[name].flatten().tolist(), convolutions[name].weight.flatten()
        flips = sum((a >= 0) != (b >= 0) for a, b in zip(old, new.tolist(), strict=True))
        assert row["weight_flips"] == flips / len(old)
        assert row["weight_balance"] == sum(b >= 0 for b in new.tolist()) / len(old)
        all_flips, number = all_flips + flips, number + len(old)
    assert layers.share_of_flips(second) == pytest.approx(all_flips / number, rel=1e-12)
    assert 0 < all_flips < number


def test_a_look_leaves_the_network_and_random_states_as_they_are():
    backbone = network().train()
    backbone.stem_norm.eval()
    state = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    random = torch.get_rng_state()
    layers = watching(backbone)
    layers.look(IMAGES, torch.autocast("cpu", torch.bfloat16))
    assert backbone.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in backbone.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(layer._forward_pre_hooks for layer in backbone.modules())
    assert not backbone.stem_norm.training


def test_the_rows_go_on_from_a_state():
    backbone = network()
    whole, parted = watching(backbone), watching(backbone)
    for layers in (whole, parted):
        layers.close()
        layers.look(IMAGES, nullcontext())
    resumed = watching(backbone)
    resumed.load_state_dict(parted.state_dict())
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.neg_()
    for layers in (whole, resumed):
        layers.look(IMAGES[8:], nullcontext())
    assert whole.close() == resumed.close()
    state = whole.state_dict()["signs"]
    weights = [m.weight.numel() for m in backbone.modules() if isinstance(m, BinaryConv2d)]
    assert sum(bits.numel() for bits in state.values()) <= sum(weights) / 8 + len(weights)


def test_a_float_network_has_no_binary_layers():
    assert not watching(network(Precision.FLOAT))
    assert not watching(build_backbone(BackboneConfig(name="resnet10t"), Precision.FLOAT))
