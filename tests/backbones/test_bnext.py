"""BNext: the published sizes, and the features and gradients of a network written out plainly."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burn.backbones.bnext import BNext
from burn.backbones.config import IMAGENET_MEAN, IMAGENET_STD, BackboneConfig
from burn.backbones.entries import BNEXT
from burn.backbones.registry import build_backbone, describe_backbone
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.layers.temperature import SoftBinaryConv2d
from networks import randomize

# Channels of the stem and of every block, by the published code's lists.
WIDTHS = {
    "bnext_t": [32, 64, *[128] * 2, *[256] * 2, *[512] * 6, *[1024] * 2],
    "bnext_s": [48, 96, *[192] * 2, *[384] * 2, *[768] * 6, *[1536] * 2],
    "bnext_m": [48, 96, *[192] * 4, *[384] * 4, *[768] * 8, *[1536] * 4],
    "bnext_l": [64, 128, *[256] * 4, *[512] * 4, *[1024] * 16, *[2048] * 4],
}


def small(precision: Precision, name: str = "bnext_t", **settings: Any) -> BNext:
    """A quarter-width network in float64, whose last map has 2×2 pixels of 32."""
    torch.manual_seed(0)
    chosen = {"width": 0.25, "stage_strides": (2, 2, 2, 1), **settings}
    network = build_backbone(BackboneConfig(name=name, **chosen), precision)
    assert isinstance(network, BNext)
    return randomize(network).double()


# --- A twin: ordinary operations, differentiated by autograd. ---


def straight_through(value: Tensor, smooth: Tensor) -> Tensor:
    """`value`, with the gradient of `smooth`."""
    return value.detach() + (smooth - smooth.detach())


def sign_of(x: Tensor) -> Tensor:
    return 2 * (x >= 0).double() - 1


class Twin:
    """The published formulas on a state dict.

    Args:
        weights: Parameters, as leaves of autograd's graph, and BN's running statistics.
        precision: Precision of the network.
        temperature: Temperature of the weights' signs; 0 for plain signs.
        training: Whether BN uses the batch's statistics.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], precision: str, temperature: float, training: bool
    ) -> None:
        self.weights, self.precision = weights, precision
        self.temperature, self.training = temperature, training

    def channels(self, name: str) -> Tensor:
        return self.weights[name].view(1, -1, 1, 1)

    def norm(self, x: Tensor, name: str) -> Tensor:
        if self.training:
            mean = x.mean(dim=(0, 2, 3), keepdim=True)
            var = (x - mean).square().mean(dim=(0, 2, 3), keepdim=True)
        else:
            mean, var = self.channels(f"{name}.running_mean"), self.channels(f"{name}.running_var")
        x = (x - mean) / torch.sqrt(var + 1e-5)
        return x * self.channels(f"{name}.weight") + self.channels(f"{name}.bias")

    def prelu(self, x: Tensor, name: str) -> Tensor:
        return torch.where(x > 0, x, self.channels(f"{name}.weight") * x)

    def binary_weight(self, weight: Tensor) -> Tensor:
        """S · mean|W| / mean|S|, S being the signs or, at a temperature, clamp(W / T)."""
        values = weight.detach()
        signs = sign_of(values)
        if self.temperature:
            signs = (values / self.temperature).clamp(-1, 1)
        sizes = values.abs().mean(dim=(1, 2, 3)) / signs.abs().mean(dim=(1, 2, 3))
        return straight_through(signs * sizes.view(-1, 1, 1, 1), weight.clamp(-1, 1))

    def convolution(self, x: Tensor, name: str, stride: int) -> Tensor:
        x = x + self.channels(f"{name}.sign.shift")
        weight = self.weights[f"{name}.weight"]
        if self.precision != "float":
            inside = x.clamp(-1, 1)
            x = straight_through(sign_of(x), 2 * inside - inside * inside.abs())
        if self.precision == "binary":
            weight = self.binary_weight(weight)
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def gate(self, x: Tensor, name: str) -> Tensor:
        means = x.mean(dim=(2, 3))
        w = self.weights
        hidden = means @ w[f"{name}.squeeze.weight"].T + w[f"{name}.squeeze.bias"]
        scores = hidden.relu() @ w[f"{name}.excite.weight"].T + w[f"{name}.excite.bias"]
        return (1 / (1 + torch.exp(-scores)))[:, :, None, None]

    def layer(self, x: Tensor, name: str, stride: int) -> Tensor:
        def smaller(map: Tensor) -> Tensor:
            return F.avg_pool2d(map, 2) if stride == 2 else map

        y = self.prelu(
            self.norm(self.convolution(x, f"{name}.convolution", stride), f"{name}.norm"),
            f"{name}.activation",
        )
        share = self.channels(f"{name}.mix.share")
        share = straight_through(share.clamp(0, 1), share)
        mixed = share * smaller(x) + (1 - share) * y
        y = self.gate(mixed, f"{name}.gate") * y
        shortcut = smaller(x)
        if f"{name}.shortcut_activation.weight" in self.weights:
            shortcut = smaller(self.prelu(x, f"{name}.shortcut_activation"))
            y = y * shortcut
        return self.norm(y, f"{name}.second_norm") + shortcut

    def features(self, images: Tensor, config: BackboneConfig) -> Tensor:
        # The layer keeps mean and std in float32.
        mean, std = (
            torch.tensor(values, dtype=torch.float32).double().view(1, 3, 1, 1)
            for values in (IMAGENET_MEAN, IMAGENET_STD)
        )
        x = (images.double() / 255 - mean) / std
        stem = self.weights["stem.weight"]
        x = self.norm(F.conv2d(x, stem, stride=config.stem_stride or 2, padding=1), "stem_norm")
        strides = list(config.stage_strides)
        widths = WIDTHS[config.name]
        for i, (before, after) in enumerate(pairwise(widths)):
            widens = before != after and i > 0
            x = self.layer(x, f"blocks.{i}.spatial", strides.pop(0) if widens else 1)
            halves = range(2 if before != after else 1)
            x = torch.cat([self.layer(x, f"blocks.{i}.pointwise.{h}", 1) for h in halves], dim=1)
        return self.prelu(x, "activation").mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("precision", "training", "progress"),
    [
        (Precision.FLOAT, True, None),
        (Precision.BINARY_ACTIVATIONS, True, None),
        (Precision.BINARY, True, None),
        (Precision.BINARY, True, 0.2),
        (Precision.BINARY, False, 0.2),  # in eval mode the temperature does not count
        (Precision.BINARY_ACTIVATIONS, False, None),
    ],
)
def test_features_and_gradients_are_those_of_a_network_written_out_plainly(
    precision: Precision, training: bool, progress: float | None
):
    network = small(precision).train(training)
    if progress is not None:
        network.at_progress(progress)
    weights = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    names = [name for name, _ in network.named_parameters()]
    for name in names:
        weights[name].requires_grad_()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    temperature = 1e-6**progress if progress is not None and training else 0.0
    twin = Twin(weights, precision.value, temperature, training)
    expected = twin.features(images, network.config)
    found = network(images)
    # float64 through 26 layers, each with sums of up to 2,304 terms in another order; a sign that
    # differed would show as 1e-2.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    arriving = torch.randn_like(expected)
    found.backward(arriving)
    expected.backward(arriving)
    for name, parameter in network.named_parameters():
        ours, theirs = parameter.grad, weights[name].grad
        assert ours is not None
        assert theirs is not None
        # As above; gradients grow towards the stem.
        size = float(theirs.abs().max()) + 1e-6
        torch.testing.assert_close(ours / size, theirs / size, rtol=0, atol=1e-7, msg=name)


# --- The published networks. ---


def published_sizes(name: str) -> tuple[int, int, int, int]:
    """Binary and float parameters, binary and float multiply-adds at 224 pixels, by hand."""
    widths, side = WIDTHS[name], 112
    binary = macs = 0
    floats, flops = 27 * widths[0] + 2 * widths[0], 27 * widths[0] * side**2
    for i, (before, after) in enumerate(pairwise(widths)):
        side //= 2 if before != after and i > 0 else 1
        kernels = [9] + [1] * (after // before)
        binary += sum(kernels) * before**2
        macs += sum(kernels) * before**2 * side**2
        hidden = before // 8
        # The gate; the sign's threshold, two BN, PReLU, mixture; the shortcut's PReLU.
        floats += len(kernels) * (2 * before * hidden + hidden + before + 7 * before)
        floats += before * (i % 2)
        flops += len(kernels) * 2 * before * hidden
    return binary, floats + widths[-1], macs, flops


@pytest.mark.parametrize("name", BNEXT)
def test_parameters_by_hand(name: str):
    network = describe_backbone(BackboneConfig(name=name), Precision.BINARY)
    parameters = sum(p.numel() for p in network.parameters())
    weights = [m.weight.numel() for m in network.modules() if isinstance(m, SoftBinaryConv2d)]
    binary, floats, _, _ = published_sizes(name)
    assert (sum(weights), parameters) == (binary, binary + floats)
    assert network.num_features == WIDTHS[name][-1]


@pytest.mark.parametrize(
    ("name", "mebibytes"),
    # BEANet's draft quotes the first two in its Table II, hpi-xnor/BNext's issue 4 the last.
    [("bnext_t", 13.3), ("bnext_s", 26.7), ("bnext_l", 106.1)],
)
def test_the_published_sizes_in_mebibytes(name: str, mebibytes: float):
    """A bit for each binary weight and 32 for each other parameter, with the classifier's."""
    binary, floats, _, _ = published_sizes(name)
    classifier = 1000 * WIDTHS[name][-1] + 1000
    size = (binary / 8 + 4 * (floats + classifier)) / 2**20
    assert size == pytest.approx(mebibytes, abs=0.1)  # one decimal, rounded or cut off


def test_the_size_of_the_published_file_of_bnext_l():
    """1246.96 MiB, by hpi-xnor/BNext's issue 4.

    It has PReLUs that are not used, one for every layer that does not multiply and one in the stem.
    """
    name = "bnext_l"
    binary, floats, _, _ = published_sizes(name)
    widths = WIDTHS[name]
    pairs = list(enumerate(pairwise(widths)))
    layers = [before for _, (before, after) in pairs for _ in range(1 + after // before)]
    unused = widths[0] + sum(layers) - sum(before for i, (before, _) in pairs if i % 2)
    parameters = binary + floats + 1000 * widths[-1] + 1000 + unused
    buffers = 2 * widths[0] + 4 * sum(layers)  # BN's running statistics
    # The file has names and shapes too, which take less than 1 MiB.
    mebibytes = 4 * (parameters + buffers) / 2**20
    assert mebibytes < 1246.96 < mebibytes + 1


@pytest.mark.parametrize(
    ("name", "binary", "floats", "operations"),
    # Billions of binary and of float multiply-adds, and OPs in 1e8, as BEANet's draft quotes them
    # in its Table II.
    [("bnext_t", 4.82, 0.013, 0.89), ("bnext_s", 10.84, 0.021, 1.90)],
)
def test_the_published_operations(name: str, binary: float, floats: float, operations: float):
    _, _, macs, flops = published_sizes(name)
    flops += 1000 * WIDTHS[name][-1]
    assert macs / 1e9 == pytest.approx(binary, abs=0.005)  # as many decimals as are given
    assert flops / 1e9 == pytest.approx(floats, abs=0.0005)
    assert (macs / 64 + flops) / 1e8 == pytest.approx(operations, abs=0.005)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("bnext_t", 0.077), ("bnext_s", 0.172), ("bnext_m", 0.317), ("bnext_l", 0.819)],
)
def test_the_operations_of_the_authors_readme(name: str, billions: float):
    """The README of hpi-xnor/BNext has the networks with float layers in 8 bits.

    A 64th of the binary operations and an eighth of the others give its numbers.
    """
    _, _, macs, flops = published_sizes(name)
    found = (macs / 64 + (flops + 1000 * WIDTHS[name][-1]) / 8) / 1e9
    assert found == pytest.approx(billions, abs=0.001)


def test_the_cost_of_a_network_is_that_by_hand():
    from burn.costs.compute import count

    network = build_backbone(BackboneConfig(name="bnext_t"), Precision.BINARY)
    cost = count(network, 224, 0)
    found = (cost.binary_parameters, cost.float_parameters, cost.binary_macs, cost.flops)
    assert found == published_sizes("bnext_t")


# --- Settings, strides, stages. ---


@pytest.mark.parametrize(
    ("stem", "strides", "side"),
    [(None, (2, 2, 2, 2), 2), (1, (2, 2, 2, 2), 4), (2, (1, 2, 2, 1), 8)],
)
def test_strides_set_the_maps_size(stem: int | None, strides: tuple[int, ...], side: int):
    network = small(Precision.BINARY, stem_stride=stem, stage_strides=strides).eval()
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    with torch.no_grad():
        assert network.forward_features(images).shape == (1, 256, side, side)
        assert network.trunk(images).shape == (1, 128, side * strides[3], side * strides[3])


def test_odd_sizes_round_up():
    network = small(Precision.BINARY, stage_strides=(2, 2, 2, 2)).eval()
    with torch.no_grad():
        found = network.forward_features(torch.rand(1, 3, 37, 33, dtype=torch.float64))
    assert found.shape == (1, 256, 2, 2)


def test_stage_one_hands_over_to_stage_two():
    first = small(Precision.BINARY_ACTIVATIONS)
    second = small(Precision.BINARY)
    second.load_state_dict(first.state_dict(), strict=True)
    assert list(first.state_dict()) == list(second.state_dict())
    # At a temperature above all weights, the second stage begins with the first's function.
    for convolution in (m for m in second.modules() if isinstance(m, SoftBinaryConv2d)):
        convolution.temperature.fill_(100.0)
    images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
    # Products and quotients of means, 26 layers deep in float64.
    torch.testing.assert_close(second(images), first(images), rtol=1e-9, atol=1e-9)


def test_progress_is_not_state_and_counts_in_training_alone():
    network = small(Precision.BINARY)
    state = list(network.state_dict())
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    hard, quiet = network(images), network.eval()(images)
    network.at_progress(0.5)
    assert torch.equal(network(images), quiet)
    assert not torch.allclose(network.train()(images), hard)
    assert list(network.state_dict()) == state
    (temperature,) = {
        float(m.temperature) for m in network.modules() if isinstance(m, SoftBinaryConv2d)
    }
    assert temperature == pytest.approx(1e-3, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 0.3}, "width 0.3 gives the channels"),
        ({"width": 17.0}, "width 17.0 is not in"),
        ({"temperature": 0.0}, "temperature 0.0 is not in"),
        ({"temperature": 2.0}, "temperature 2.0 is not in"),
        ({"feature_layer": True}, "backbone bnext_t has no setting feature_layer"),
        ({"experts": 2}, "backbone bnext_t has no setting experts"),
        ({"resnet_strides": (1, 1, 1, 1)}, "backbone bnext_t has no setting resnet_strides"),
    ],
)
def test_settings_that_cannot_be_built_are_for_the_user_to_fix(
    settings: dict[str, Any], words: str
):
    with pytest.raises(UserError, match=words) as caught:
        build_backbone(BackboneConfig(name="bnext_t", **settings), Precision.BINARY)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["reactnet_a", "test_resnet"])
def test_other_networks_have_no_temperature(name: str):
    with pytest.raises(UserError, match=f"backbone {name} has no setting temperature"):
        build_backbone(BackboneConfig(name=name, temperature=0.1), Precision.FLOAT)
