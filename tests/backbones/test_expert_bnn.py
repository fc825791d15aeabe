"""The expert network: its sizes by hand, and features and gradients of one written out plainly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burn.backbones.config import IMAGENET_MEAN, IMAGENET_STD, BackboneConfig
from burn.backbones.entries import EXPERT
from burn.backbones.expert import ExpertNet
from burn.backbones.registry import build_backbone, describe_backbone
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.layers.expert import ExpertConv2d
from networks import randomize

# Of the published network: output channels, blocks, groups and stride of each stage.
STAGES = ((128, 1, 4, 1), (256, 2, 8, 2), (512, 6, 8, 2), (1024, 2, 16, 2))


def small(precision: Precision, **settings: Any) -> ExpertNet:
    """A quarter-width network in float64, whose last map has 2×2 pixels of 32."""
    torch.manual_seed(0)
    chosen = {"width": 0.25, "stage_strides": (2, 2, 2, 1), "experts": 3, **settings}
    network = build_backbone(BackboneConfig(name=EXPERT, **chosen), precision)
    assert isinstance(network, ExpertNet)
    randomize(network).double()
    with torch.no_grad():
        for convolution in (m for m in network.modules() if isinstance(m, ExpertConv2d)):
            convolution.weight.add_(0.2 * torch.randn_like(convolution.weight))  # no more copies
            convolution.choice.weight.mul_(5)
    return network


# --- A twin: ordinary operations, image by image, differentiated by autograd. ---


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
        training: Whether BN uses the batch's statistics.
    """

    def __init__(self, weights: Mapping[str, Tensor], precision: str, training: bool) -> None:
        self.weights, self.precision, self.training = weights, precision, training

    def channels(self, name: str) -> Tensor:
        return self.weights[name].view(1, -1, 1, 1)

    def norm(self, x: Tensor, name: str, eps: float = 1e-5) -> Tensor:
        if self.training:
            mean = x.mean(dim=(0, 2, 3), keepdim=True)
            var = (x - mean).square().mean(dim=(0, 2, 3), keepdim=True)
        else:
            mean, var = self.channels(f"{name}.running_mean"), self.channels(f"{name}.running_var")
        x = (x - mean) / torch.sqrt(var + eps)
        return x * self.channels(f"{name}.weight") + self.channels(f"{name}.bias")

    def prelu(self, x: Tensor, name: str) -> Tensor:
        return torch.where(x > 0, x, self.channels(f"{name}.weight") * x)

    def weight_of(self, means: Tensor, name: str) -> Tensor:
        """The weight of one image."""
        experts = self.weights[f"{name}.weight"]
        if self.precision != "binary":
            return experts.mean(dim=0)
        choice = (self.weights[f"{name}.choice.{part}"] for part in ("weight", "bias"))
        scores = next(choice) @ means + next(choice)
        winner = torch.zeros_like(scores)
        winner[int(scores.argmax())] = 1
        gates = straight_through(winner, scores.softmax(dim=0))
        mixed = torch.stack([g * one for g, one in zip(gates, experts, strict=True)]).sum(dim=0)
        scale = self.scale_of(name).view(-1, 1, 1, 1)
        return straight_through(sign_of(mixed) * scale, mixed.clamp(-1, 1))

    def scale_of(self, name: str) -> Tensor:
        """The mean |W| of each output channel, over all experts."""
        return self.weights[f"{name}.weight"].detach().abs().mean(dim=(0, 2, 3, 4))

    def layer(self, x: Tensor, name: str, stride: int, groups: int) -> Tensor:
        z = self.norm(x, f"{name}.norm", 1e-4)
        outputs = []
        for image in z:
            means = image.mean(dim=(1, 2))
            weight = self.weight_of(means, f"{name}.convolution")
            if self.precision != "float":
                inside = image.clamp(-1, 1)
                smooth = 2 * inside - inside * inside.abs()
                image = straight_through(sign_of(image), smooth)  # noqa: PLW2901
            window: Any = {"stride": stride, "padding": weight.shape[-1] // 2, "groups": groups}
            y = F.conv2d(image[None], weight, **window)
            if self.precision == "binary":
                # A sum of signs may be 0, where PReLU has a kink: without the scale it is exact.
                signs = F.conv2d(image[None].detach(), sign_of(weight.detach()), **window)
                scale = self.scale_of(f"{name}.convolution")
                y = straight_through(signs * scale[:, None, None], y)
            squeeze, excite = (
                self.weights[f"{name}.gate.{part}.weight"] for part in ("squeeze", "excite")
            )
            gate = 1 / (1 + torch.exp(-excite @ (squeeze @ means).relu()))
            outputs.append(y[0] * (gate * self.weights[f"{name}.convolution.scale"])[:, None, None])
        return self.prelu(torch.stack(outputs), f"{name}.activation")

    def block(self, x: Tensor, name: str, stride: int, groups: int) -> Tensor:
        shortcut = x
        if f"{name}.shortcut.1.weight" in self.weights:
            shortcut = F.avg_pool2d(x, stride)
            for i in (1, 4):
                shortcut = F.conv2d(shortcut, self.weights[f"{name}.shortcut.{i}.weight"])
                shortcut = self.norm(shortcut, f"{name}.shortcut.{i + 1}")
                shortcut = self.prelu(shortcut, f"{name}.shortcut.{i + 2}")
        x = self.layer(x, f"{name}.layers.0", stride, groups) + shortcut
        x = x + self.layer(x, f"{name}.layers.1", 1, groups)
        return x + self.layer(x, f"{name}.layers.2", 1, 1)

    def stem(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self.weights[f"stem.{name}.0.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        return self.norm(x, f"stem.{name}.1").relu()

    def features(self, images: Tensor, config: BackboneConfig) -> Tensor:
        # The layer keeps mean and std in float32.
        mean, std = (
            torch.tensor(values, dtype=torch.float32).double().view(1, 3, 1, 1)
            for values in (IMAGENET_MEAN, IMAGENET_STD)
        )
        second, *strides = config.stage_strides
        x = self.stem((images.double() / 255 - mean) / std, "first", config.stem_stride or 2)
        convolved = self.stem(self.stem(x, "narrow"), "widen", second)
        x = torch.cat([convolved, F.max_pool2d(x, 3, second, padding=1)], dim=1)
        x = self.stem(x, "last")
        for s, (_, blocks, groups, _) in enumerate(STAGES):
            for b in range(blocks):
                stride = strides[s - 1] if s and not b else 1
                x = self.block(x, f"stages.{s}.{b}", stride, groups)
        return x.mean(dim=(2, 3))


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("training", [True, False])
def test_features_and_gradients_are_those_of_a_network_written_out_plainly(
    precision: Precision, training: bool
):
    network = small(precision).train(training)
    weights = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    for name, _ in network.named_parameters():
        weights[name].requires_grad_()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    expected = Twin(weights, precision.value, training).features(images, network.config)
    found = network(images)
    # float64 through 33 layers, each with sums of up to 576 terms in another order; a sign that
    # differed would show as 1e-3.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    arriving = torch.randn_like(expected)
    found.backward(arriving)
    expected.backward(arriving)
    for name, parameter in network.named_parameters():
        ours, theirs = parameter.grad, weights[name].grad
        assert ours is not None
        if precision != Precision.BINARY and ".choice." in name:
            assert not ours.any(), "no expert is chosen yet"
            continue
        assert theirs is not None
        if precision != Precision.BINARY and name.endswith("convolution.weight"):
            theirs = theirs * len(theirs)  # each expert learns as a single one would
        # As above; gradients grow towards the stem.
        size = float(theirs.abs().max()) + 1e-6
        torch.testing.assert_close(ours / size, theirs / size, rtol=0, atol=1e-7, msg=name)


# --- The published network. ---


def published_sizes(experts: int = 4) -> tuple[int, int, int, int]:
    """Binary and float parameters, binary and float multiply-adds at 224 pixels, by hand."""
    # The stem: input and output channels, pixels of the kernel, side of the output.
    stem = ((3, 32, 9, 112), (32, 16, 1, 112), (16, 32, 9, 56), (64, 64, 1, 56))
    floats = sum(i * o * k + 2 * o for i, o, k, _ in stem)
    flops = sum(i * o * k * side**2 for i, o, k, side in stem)
    binary = macs = 0
    before, side = 64, 56
    for after, blocks, groups, stride in STAGES:
        side //= stride
        narrow = before // 4
        floats += before * narrow + narrow * after + 3 * (narrow + after)
        flops += (before * narrow + narrow * after) * side**2
        for b in range(blocks):
            for channels, weights in (
                (after if b else before, (after if b else before) // groups * after * 9),
                (after, after // groups * after * 9),
                (after, after * after),
            ):
                binary += experts * weights
                macs += weights * side**2
                gate = channels * after // 8 + after // 8 * after
                # The choice, the gate; BN, factors, PReLU.
                floats += (channels + 1) * experts + gate + 2 * channels + 2 * after
                flops += channels * experts + gate
        before = after
    return binary, floats, macs, flops


def test_parameters_by_hand():
    network = describe_backbone(BackboneConfig(name=EXPERT), Precision.BINARY)
    weights = [m.weight.numel() for m in network.modules() if isinstance(m, ExpertConv2d)]
    parameters = sum(p.numel() for p in network.parameters())
    binary, floats, _, _ = published_sizes()
    assert (sum(weights), parameters) == (binary, binary + floats) == (38_346_752, 41_533_396)
    assert network.num_features == 1024


@pytest.mark.parametrize("experts", [1, 4])
def test_the_cost_of_a_network_is_that_by_hand(experts: int):
    """An image passes one expert of each layer, so their number changes the choices alone."""
    from burn.costs.compute import count

    network = build_backbone(BackboneConfig(name=EXPERT, experts=experts), Precision.BINARY)
    cost = count(network, 224, 0)
    found = (cost.binary_parameters, cost.float_parameters, cost.binary_macs, cost.flops)
    assert found == published_sizes(experts)
    assert cost.binary_macs == 1_706_786_816


# --- Settings, strides, stages. ---


@pytest.mark.parametrize(
    ("stem", "strides", "side"),
    [(None, (2, 2, 2, 2), 2), (1, (2, 2, 2, 2), 4), (2, (1, 2, 2, 1), 8), (1, (1, 1, 1, 1), 64)],
)
def test_strides_set_the_maps_size(stem: int | None, strides: tuple[int, ...], side: int):
    network = small(Precision.BINARY, stem_stride=stem, stage_strides=strides).eval()
    images = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    with torch.no_grad():
        trunk = network.trunk(images)
        assert trunk.shape == (1, 128, side * strides[3], side * strides[3])
        assert network.top(trunk).shape == (1, 256, side, side)


def test_odd_sizes_round_up():
    network = small(Precision.BINARY, stage_strides=(2, 2, 2, 2)).eval()
    with torch.no_grad():
        found = network.forward_features(torch.rand(1, 3, 37, 33, dtype=torch.float64))
    assert found.shape == (1, 256, 2, 2)


def test_stage_one_hands_copies_of_one_expert_to_stage_two():
    torch.manual_seed(0)
    config = BackboneConfig(name=EXPERT, width=0.25, stage_strides=(2, 2, 2, 1))
    first = build_backbone(config, Precision.BINARY_ACTIVATIONS)
    optimizer = torch.optim.Adam(first.parameters(), lr=1e-3)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    for _ in range(2):
        optimizer.zero_grad()
        first(images).square().sum().backward()
        optimizer.step()
    second = build_backbone(config, Precision.BINARY)
    second.load_state_dict(first.state_dict(), strict=True)
    for convolution in (m for m in second.modules() if isinstance(m, ExpertConv2d)):
        assert all(torch.equal(one, convolution.weight[0]) for one in convolution.weight)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 0.3}, "width 0.3 gives the channels"),
        ({"experts": 0}, "experts 0 is not in 1"),
        ({"experts": 65}, "experts 65 is not in 1"),
        ({"temperature": 0.5}, "backbone expert_bnn has no setting temperature"),
        ({"feature_layer": True}, "backbone expert_bnn has no setting feature_layer"),
    ],
)
def test_settings_that_cannot_be_built_are_for_the_user_to_fix(
    settings: dict[str, Any], words: str
):
    with pytest.raises(UserError, match=words) as caught:
        build_backbone(BackboneConfig(name=EXPERT, **settings), Precision.BINARY)
    assert "\n" not in str(caught.value)
