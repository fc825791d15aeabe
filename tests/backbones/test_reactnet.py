"""ReActNet-A: the published size and shapes, and the features of a network written out plainly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.config import IMAGENET_MEAN, IMAGENET_STD, BackboneConfig
from burn.backbones.reactnet import Block
from burn.backbones.registry import build_backbone
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.layers import BinaryConv2d, RPReLU
from networks import randomize, tiny_reactnet

WIDTHS = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
# block -> position in stage_strides
WIDENING = {"reactnet_a": {1: 0, 3: 1, 5: 2, 11: 3}, "reactnet_m": {1: 0, 2: 1, 3: 2, 6: 3}}
BLOCKS = {"reactnet_a": 13, "reactnet_m": 7}


# --- A twin: nn.Conv2d fed with signs, ordinary operations, the published two 1×1 convolutions. ---


def batch_norm(x: Tensor, weights: Mapping[str, Tensor], name: str, part: slice) -> Tensor:
    mean, var, scale, shift = (
        weights[f"{name}.{key}"][part].view(1, -1, 1, 1)
        for key in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / torch.sqrt(var + 1e-5) * scale + shift


def rprelu(x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    before, slope, after = (
        weights[f"{name}.{key}"].view(1, -1, 1, 1) for key in ("before", "slope", "after")
    )
    x = x + before
    return torch.where(x > 0, x, slope * x) + after


def convolution(
    x: Tensor, weights: Mapping[str, Tensor], name: str, part: slice, stride: int, precision: str
) -> Tensor:
    x = x + weights[f"{name}.sign.shift"].view(1, -1, 1, 1)
    weight = weights[f"{name}.weight"][part]
    if precision != "float":
        x = 2 * (x >= 0).double() - 1
    if precision == "binary":
        scale = weight.flatten(1).abs().mean(dim=1).view(-1, 1, 1, 1)
        weight = (2 * (weight >= 0).double() - 1) * scale
    outputs, inputs, size, _ = weight.shape
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(weight)
    return conv(x)


def twin(
    name: str,
    weights: Mapping[str, Tensor],
    images: Tensor,
    stem: int,
    strides: tuple[int, ...],
    precision: str,
) -> Tensor:
    """The last map, in float64, of uint8 images."""
    # The layer keeps mean and std in float32.
    mean, std = (
        torch.tensor(values, dtype=torch.float32).double().view(1, 3, 1, 1)
        for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    x = (images.double() / 255 - mean) / std
    x = F.conv2d(x, weights["stem.weight"], stride=stem, padding=1)
    x = batch_norm(x, weights, "stem_norm", slice(None))
    for i in range(BLOCKS[name]):
        stride = strides[WIDENING[name][i]] if i in WIDENING[name] else 1
        block = f"blocks.{i}"
        shortcut = F.avg_pool2d(x, 2) if stride == 2 else x
        x = convolution(x, weights, f"{block}.spatial", slice(None), stride, precision)
        x = batch_norm(x, weights, f"{block}.spatial_norm", slice(None)) + shortcut
        x = rprelu(x, weights, f"{block}.spatial_activation")
        channels = x.shape[1]
        halves = []
        for first in range(0, len(weights[f"{block}.pointwise.weight"]), channels):
            part = slice(first, first + channels)
            half = convolution(x, weights, f"{block}.pointwise", part, 1, precision)
            halves.append(batch_norm(half, weights, f"{block}.pointwise_norm", part) + x)
        x = rprelu(torch.cat(halves, dim=1), weights, f"{block}.pointwise_activation")
    return x


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(
    ("name", "stem", "strides"),
    [
        ("reactnet_a", 2, (2, 2, 2, 1)),
        ("reactnet_a", 1, (1, 2, 2, 2)),
        ("reactnet_m", 1, (2, 1, 2, 2)),
    ],
)
def test_features_are_those_of_a_network_written_out_plainly(
    name: str,
    precision: Precision,
    stem: int,
    strides: tuple[int, ...],
):
    network = tiny_reactnet(precision, name=name, stem_stride=stem, stage_strides=strides)
    randomize(network).double().eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        expected = twin(name, network.state_dict(), images, stem, strides, precision.value)
        found = network.forward_features(images)
        features = network(images)
    # float64 through 27 layers, each with sums of up to 2,304 terms in another order; a sign that
    # differed would show as 1e-2.
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    # Pooling is in float32: 2^-24 of values of size 1.
    pooled = expected.flatten(2).mean(dim=2)
    torch.testing.assert_close(features.double(), pooled, rtol=1e-6, atol=1e-6)


def test_doubled_width_is_two_convolutions_side_by_side():
    """A block's one 1×1 convolution, norm and shortcut, against two halves that see the same."""
    block = randomize(tiny_reactnet(Precision.BINARY)).double().eval().blocks[1]
    assert isinstance(block, Block)
    x = torch.randn(2, 16, 6, 6, dtype=torch.float64)
    shortcut = F.avg_pool2d(x, 2)
    middle = block.spatial_activation(block.spatial_norm(block.spatial(x)) + shortcut)
    halves = []
    for part in (slice(0, 16), slice(16, 32)):
        conv = BinaryConv2d(16, 16, 1).double()
        norm = nn.BatchNorm2d(16).double().eval()
        shift, state = block.pointwise.sign.shift, block.pointwise_norm.state_dict()
        conv.load_state_dict({"weight": block.pointwise.weight[part], "sign.shift": shift})
        norm.load_state_dict({key: t[part] if t.ndim else t for key, t in state.items()})
        halves.append(norm(conv(middle)) + middle)
    expected = block.pointwise_activation(torch.cat(halves, dim=1))
    torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)  # order of float64 sums


# --- The published network. ---


def test_parameters_and_shapes_at_224_pixels():
    """Published: 29,343,592 parameters, with a classifier of 1000 × 1024 weights and biases."""
    network = build_backbone(BackboneConfig(), Precision.BINARY).eval()
    assert sum(p.numel() for p in network.parameters()) == 29_343_592 - (1000 * 1024 + 1000)
    images = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    with torch.no_grad():
        trunk = network.trunk(images)
        last = network.top(trunk)
        features = network.pool(last)
    assert trunk.shape[1:] == (512, 14, 14)
    assert last.shape[1:] == (1024, 7, 7)
    assert torch.equal(last, network.forward_features(images))
    assert features.shape == (1, 1024)
    assert network.num_features == 1024
    # The mean of 49 float32 values.
    torch.testing.assert_close(features[0], last[0].flatten(1).mean(dim=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "depths", "blocks", "features"),
    [
        ("reactnet_xs", None, 5, 128),  # half of reactnet_a's width
        ("reactnet_s", None, 5, 256),
        ("reactnet_m", None, 7, 256),
        ("reactnet_l", None, 9, 256),
        ("reactnet_xs", (1, 1, 2, 3, 1), 8, 128),
    ],
)
def test_width_and_depths_change_every_member(
    name: str, depths: tuple[int, ...] | None, blocks: int, features: int
):
    network = tiny_reactnet(name=name, depths=depths, stage_strides=(1, 2, 2, 2)).eval()
    assert (len(network.blocks), network.num_features) == (blocks, features)
    with torch.no_grad():
        images = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
        assert network.trunk(images).shape == (1, features // 2, 4, 4)
        assert network.forward_features(images).shape == (1, features, 2, 2)


def test_width_scales_every_layer():
    network = tiny_reactnet()
    shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
    outs = [shapes[f"blocks.{i}.pointwise.weight"][0] for i in range(13)]
    assert [shapes["stem.weight"][0], *outs] == [w // 4 for w in WIDTHS]
    assert network.num_features == 256


@pytest.mark.parametrize(
    ("stem", "strides", "side"),
    [
        (None, (2, 2, 2, 2), 2),
        (2, (2, 2, 2, 2), 2),
        (1, (2, 2, 2, 2), 4),
        (None, (2, 2, 2, 1), 4),
        (1, (1, 1, 2, 2), 16),
        (2, (1, 1, 1, 1), 32),
    ],
)
def test_strides_set_the_maps_size(stem: int | None, strides: tuple[int, ...], side: int):
    network = tiny_reactnet(stem_stride=stem, stage_strides=strides).eval()
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    with torch.no_grad():
        assert network.forward_features(images).shape == (1, 256, side, side)
        assert network.trunk(images).shape == (1, 128, side * strides[3], side * strides[3])


def test_odd_sizes_round_up():
    network = tiny_reactnet(stage_strides=(2, 2, 2, 2)).eval()
    with torch.no_grad():
        assert network.forward_features(torch.rand(1, 3, 37, 33)).shape == (1, 256, 2, 2)


@pytest.mark.parametrize("name", ["reactnet_a", "reactnet_m"])
@pytest.mark.parametrize("precision", [Precision.BINARY_ACTIVATIONS, Precision.BINARY])
def test_every_parameter_gets_a_gradient(name: str, precision: Precision):
    network = tiny_reactnet(precision, name=name, feature_layer=True)
    network(torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)).square().sum().backward()
    without = [
        name
        for name, p in network.named_parameters()
        if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()
    ]
    assert not without


def test_initialisation():
    network = tiny_reactnet()
    convolutions = [network.stem] + [m for m in network.modules() if isinstance(m, BinaryConv2d)]
    assert len(convolutions) == 27
    for conv in convolutions:
        weight = conv.weight.detach()
        bound = weight[0].numel() ** -0.5
        # The largest of 128 uniform draws (the smallest kernel's) lies below 0.9 of the bound with
        # a probability of 1e-6; the seed is fixed.
        assert 0.9 * bound < weight.abs().max() <= bound
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
        elif isinstance(module, RPReLU):
            assert (module.slope == 0.25).all()
            assert not module.before.any()
            assert not module.after.any()
        elif isinstance(module, BinaryConv2d):
            assert not module.sign.shift.any()


def test_the_seed_decides_the_weights():
    one, again, other = (tiny_reactnet(seed=s).state_dict() for s in (5, 5, 6))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["stem.weight"], other["stem.weight"])


@pytest.mark.parametrize("name", ["reactnet_a", "reactnet_m"])
def test_stage_one_hands_over_to_stage_two(name: str):
    first = randomize(tiny_reactnet(Precision.BINARY_ACTIVATIONS, name=name, seed=1))
    second = tiny_reactnet(Precision.BINARY, name=name, seed=2)
    second.load_state_dict(first.state_dict(), strict=True)
    ours = second.state_dict()
    assert list(ours) == list(first.state_dict())
    assert all(torch.equal(ours[name], tensor) for name, tensor in first.state_dict().items())
    images = torch.rand(2, 3, 32, 32)
    assert not torch.allclose(first.eval()(images), second.eval()(images)), "both are one precision"


# --- Images in. ---


def test_uint8_and_float_images_are_the_same_images():
    network = tiny_reactnet().eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(network(images), network(images.float() / 255))


def test_normalisation_by_the_configs_mean_and_std():
    network = tiny_reactnet(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    white = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    found = network.normalize(white)[0, :, 1, 0]
    expected = torch.tensor([0.9 / 0.5, 0.8 / 0.25, 0.7 / 2.0])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)  # float32's rounding
    assert not {"mean", "std"} & set(network.state_dict()), "they belong to the config"


@pytest.mark.parametrize(
    ("name", "width"), [("reactnet_a", 0.25), ("bnext_t", 0.25), ("expert_bnn", 0.125)]
)
def test_normalized_features_are_those_of_batch_norm(name: str, width: float):
    torch.manual_seed(0)
    config = BackboneConfig(name=name, width=width)
    plain = randomize(build_backbone(config, Precision.BINARY))
    network = build_backbone(replace(config, feature_norm=True), Precision.BINARY)
    missing, unexpected = network.load_state_dict(plain.state_dict(), strict=False)
    assert {one.split(".")[0] for one in missing} == {"feature_norm"}
    assert not unexpected
    images = torch.rand(6, 3, 32, 32)
    features, found = plain(images), network(images)
    # float32 sums over six images, divided by standard deviations of a hundredth and more.
    normalized = (features - features.mean(0)) / (features.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(found, normalized, rtol=1e-4, atol=1e-4)
    norm = network.feature_norm
    assert norm is not None
    assert norm.running_mean is not None
    torch.testing.assert_close(norm.running_mean, 0.1 * features.mean(0), rtol=1e-4, atol=1e-5)
    plain.load_state_dict(
        {name: value for name, value in network.state_dict().items() if "feature_norm" not in name}
    )
    with torch.no_grad():
        pooled, found = plain.eval()(images), network.eval()(images)
    assert norm.running_var is not None
    expected = (pooled - norm.running_mean) / (norm.running_var + 1e-5).sqrt()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_feature_layer_comes_after_pooling():
    plain, longer = tiny_reactnet().eval(), tiny_reactnet(feature_layer=True).eval()
    longer.load_state_dict(plain.state_dict(), strict=False)
    images = torch.rand(3, 3, 32, 32)
    linear = longer.feature_layer[0]
    expected = F.relu(plain(images) @ linear.weight.T + linear.bias)
    # float32 sums of 256 products in another order.
    torch.testing.assert_close(longer(images), expected, rtol=1e-5, atol=1e-5)
    extra = set(longer.state_dict()) - set(plain.state_dict())
    assert extra == {"feature_layer.0.weight", "feature_layer.0.bias"}


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 0.0},
        {"width": -1.0},
        {"width": 17.0},
        {"width": 0.3},  # 10, 19, ...: the second is no multiple of the first
        {"stem_stride": 3},
        {"stage_strides": (2, 2, 2, 4)},
        {"std": (0.2, 0.2, 0.0)},
    ],
)
def test_settings_that_cannot_be_built_are_for_the_user_to_fix(settings: dict[str, object]):
    name = next(iter(settings))
    with pytest.raises(UserError, match=name):
        build_backbone(BackboneConfig(**settings), Precision.BINARY)  # type: ignore[arg-type]
