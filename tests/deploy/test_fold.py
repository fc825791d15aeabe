"""Folded layers against the network, each on the network's own maps, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from interpreter import pooled, run, run_layer
from samples import NETWORKS
from torch import Tensor

from burn.backbones.reactnet import ReActNet
from burn.core.types import Precision
from burn.deploy.fold import fold
from burn.layers.sign import hard_sign
from burn_engine.format import BinaryConvolution, Convolution, GlobalMean, Linear
from networks import randomize, tiny_reactnet

# Float64 rounds at 1e-16; sums of some thousand terms of size 10 to 100 stay 1e-11 apart.
ROUNDING = 1e-10


def network(**settings: Any) -> ReActNet:
    return randomize(tiny_reactnet(Precision.BINARY, **settings)).double().eval()


def nhwc(x: Tensor) -> np.ndarray:
    return x.detach().permute(0, 2, 3, 1).contiguous().numpy()


def watched(backbone: ReActNet, images: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Arguments of every binary convolution (name) and of every RPReLU (name.out); the features."""
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        return lambda _, inputs: seen.__setitem__(name, inputs[0].clone())

    hooks = []
    for i, block in enumerate(backbone.blocks):
        for part in ("spatial", "pointwise"):
            name = f"blocks.{i}.{part}"
            hooks.append(getattr(block, part).register_forward_pre_hook(note(name)))
            activation = getattr(block, f"{part}_activation")
            hooks.append(activation.register_forward_pre_hook(note(f"{name}.out")))
    with torch.no_grad():
        features = backbone(images)
    for hook in hooks:
        hook.remove()
    return seen, features


@pytest.mark.parametrize(("settings", "size"), NETWORKS.values(), ids=NETWORKS)
def test_every_layer_is_the_networks(settings: dict[str, Any], size: int):
    backbone = network(**settings)
    images = torch.rand(2, 3, size, size + 3, dtype=torch.float64)
    seen, features = watched(backbone, images)
    layers = fold(backbone)
    stem = layers[0]
    assert isinstance(stem, Convolution)
    first = nhwc(seen["blocks.0.spatial"])
    np.testing.assert_allclose(run_layer(stem, nhwc(images))[0], first, rtol=0, atol=ROUNDING)
    after = np.zeros(backbone.stem.out_channels)
    folded = [layer for layer in layers if isinstance(layer, BinaryConvolution)]
    assert [layer.name for layer in folded] == [n for n in seen if not n.endswith(".out")]
    for layer in folded:
        block, part = layer.name.rsplit(".", 1)
        module = backbone.get_submodule(block)
        convolution, activation = getattr(module, part), getattr(module, f"{part}_activation")
        x = seen[layer.name]
        stored = nhwc(x) - after
        shifted = nhwc(x + convolution.sign.shift[:, None, None])
        signs = np.where(stored >= layer.threshold, 1.0, -1.0)
        clear = np.abs(shifted) > ROUNDING  # nearer to 0 the sign is rounding's
        assert clear.mean() > 0.999
        assert np.array_equal(signs[clear], np.where(shifted >= 0, 1.0, -1.0)[clear])
        y, z = run_layer(layer, stored)
        argument = seen[f"{layer.name}.out"] + activation.before[:, None, None]
        np.testing.assert_allclose(y, nhwc(argument), rtol=0, atol=ROUNDING)
        after = activation.after.detach().numpy()
        with torch.no_grad():
            expected = nhwc(activation(seen[f"{layer.name}.out"]))
        np.testing.assert_allclose(z + after, expected, rtol=0, atol=ROUNDING)
    outputs = run(layers, nhwc(images))
    assert list(outputs) == [layer.name for layer in layers]
    np.testing.assert_allclose(outputs[layers[-1].name], features, rtol=0, atol=ROUNDING)


def test_kinds_and_names():
    layers = fold(network(feature_layer=True))
    kinds = [type(layer) for layer in layers]
    assert kinds == [Convolution, *[BinaryConvolution] * 26, GlobalMean, Linear]
    names = [layer.name for layer in layers]
    assert names[:3] == ["stem", "blocks.0.spatial", "blocks.0.pointwise"]
    assert names[-3:] == ["blocks.12.pointwise", "pool", "feature_layer"]


def test_a_weight_of_zero_is_plus_one_whatever_its_sign():
    backbone = network()
    block: Any = backbone.blocks[0]
    with torch.no_grad():
        block.spatial.weight[0, 0, 0, :3] = torch.tensor([0.0, -0.0, -1e-300], dtype=torch.float64)
    layer = fold(backbone)[1]
    assert isinstance(layer, BinaryConvolution)
    assert layer.weight[0, 0, :3, 0].tolist() == [1, 1, -1]
    assert set(np.unique(layer.weight)) == {-1, 1}


def test_an_argument_of_zero_is_plus_one():
    """Numbers that binary fractions hold: x + shift is 0 and nothing is rounded."""
    backbone = network()
    block: Any = backbone.blocks[0]
    with torch.no_grad():
        block.spatial_activation.after.fill_(0.5)
        block.pointwise.sign.shift.fill_(-1.25)
    layer = fold(backbone)[2]
    assert isinstance(layer, BinaryConvolution)
    x = torch.tensor([1.25, 1.25 - 2**-40], dtype=torch.float64)
    assert hard_sign(x - 1.25).tolist() == [1, -1]
    assert (x.numpy() - 0.5 >= layer.threshold[0]).tolist() == [True, False]


def test_an_odd_map_pools_the_pixels_that_exist():
    x = torch.rand(1, 2, 5, 3, dtype=torch.float64)
    expected = torch.nn.functional.avg_pool2d(x, 2, ceil_mode=True)
    np.testing.assert_allclose(pooled(nhwc(x)), nhwc(expected), rtol=0, atol=1e-15)


def test_the_network_is_left_as_it_was():
    backbone = network()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    for layer in fold(backbone):
        for value in vars(layer).values():
            if isinstance(value, np.ndarray) and value.flags.writeable:
                value[...] = 7
    after = backbone.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
