"""BNext and the expert network with the names of their authors' files: slow twins of imports.

Written from the published names, shapes and formulas: `torch.sign` and convolutions one after the
other, an image at a time where it has its own weight.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from networks import randomize
from published import MEAN_AND_STD, Shift

BNEXT_SIZES = {13: (2, 2, 6, 2), 21: (4, 4, 8, 4), 29: (4, 4, 16, 4)}  # blocks of each width


def _normalized(images: Tensor, dtype: torch.dtype) -> Tensor:
    mean, std = (torch.tensor(v).to(dtype)[:, None, None] for v in MEAN_AND_STD)
    return (images.to(dtype) / 255 - mean) / std


class Holder(nn.Module):
    """A module that has only a name, attributes and parameters."""

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)


def _weight(*shape: int) -> nn.Parameter:
    """Weights of one size in every output channel, so that dividing by it is exact."""
    sizes = 2.0 ** torch.randint(-4, 1, (shape[-4], 1, 1, 1))
    return nn.Parameter(torch.where(torch.rand(shape) < 0.5, -sizes, sizes))


def _bnext_layer(channels: int, kernel: int, stride: int, multiplies: bool) -> Holder:
    layer = Holder()
    layer.stride, layer.multiplies = stride, multiplies
    layer.move = Shift(channels)
    layer.binary_activation, layer.binary_conv = Holder(), Holder()
    for part in (layer.binary_activation, layer.binary_conv):
        part.register_buffer("temperature", torch.full((1,), 3e-24))
    layer.binary_conv.weight = _weight(channels, channels, kernel, kernel)
    layer.norm1, layer.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
    assert layer.norm1.running_var is not None
    layer.norm1.running_var.fill_(channels * kernel**2)  # about that of a sum of signs
    layer.activation1, layer.activation2 = nn.PReLU(channels), nn.PReLU(channels)
    layer.se = Holder()
    hidden = channels // 8
    layer.se.se = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, hidden, 1), nn.ReLU(),
        nn.Conv2d(hidden, channels, 1),
    )  # fmt: skip
    layer.scale = nn.Parameter(torch.rand(1, channels, 1, 1))
    return layer


def _apply_bnext_layer(layer: Any, x: Tensor) -> Tensor:
    def smaller(map: Tensor) -> Tensor:
        return F.avg_pool2d(map, 2, 2) if layer.stride == 2 else map

    weight = layer.binary_conv.weight
    y = F.conv2d(
        torch.sign(layer.move(x)), torch.sign(weight), None, layer.stride, weight.shape[-1] // 2
    )
    y = layer.activation2(layer.norm1(y))
    y = torch.sigmoid(layer.se.se(layer.scale * smaller(x) + (1 - layer.scale) * y)) * y
    if not layer.multiplies:
        return layer.norm2(y) + smaller(x)
    shortcut = smaller(layer.activation1(x))
    return layer.norm2(y * shortcut) + shortcut


class BNextTwin(nn.Module):
    """A BNext of the code's own widths, with PReLUs and temperatures that are not used."""

    def __init__(self, blocks: int = 13, stem: int = 8, classes: int = 1000) -> None:
        super().__init__()
        counts = BNEXT_SIZES[blocks]
        factors = [1, 2, *(4 * 2**i for i, count in enumerate(counts) for _ in range(count))]
        first = Holder()
        first.conv1 = nn.Conv2d(3, stem, 3, 2 if classes == 1000 else 1, 1, bias=False)
        first.bn1, first.prelu = nn.BatchNorm2d(stem), nn.PReLU(stem)
        self.feature = nn.ModuleList([first])
        for i, (before, after) in enumerate(pairwise(stem * factor for factor in factors)):
            block = Holder()
            stride = 2 if before != after and i > 0 else 1
            block.Attention = _bnext_layer(before, 3, stride, multiplies=i % 2 == 1)
            for name in ("FFN",) if before == after else ("FFN_1", "FFN_2"):
                setattr(block, name, _bnext_layer(before, 1, 1, multiplies=False))
            self.feature.append(block)
        self.prelu = nn.PReLU(stem * factors[-1])
        self.fc = nn.Linear(stem * factors[-1], classes)
        randomize(self)
        with torch.no_grad():
            for name, value in self.named_parameters():
                if name.endswith("move.bias"):
                    value.copy_(0.2 * torch.randn(value.shape))
        self.eval()

    def features(self, images: Tensor) -> Tensor:
        """uint8 (batch, 3, height, width) -> pooled (batch, channels)."""
        first: Any = self.feature[0]
        x = first.bn1(first.conv1(_normalized(images, first.conv1.weight.dtype)))
        block: Any
        for block in self.feature[1:]:
            x = _apply_bnext_layer(block.Attention, x)
            names = [name for name in ("FFN", "FFN_1", "FFN_2") if hasattr(block, name)]
            x = torch.cat([_apply_bnext_layer(getattr(block, name), x) for name in names], dim=1)
        return self.prelu(x).mean(dim=(2, 3))


def _expert_convolution(
    inputs: int, outputs: int, kernel: int, groups: int, gate: bool, experts: int
) -> Holder:
    layer = Holder()
    layer.weight = _weight(experts, outputs, inputs // groups, kernel, kernel)
    layer.alpha2 = nn.Parameter(1 + 0.3 * torch.rand(1, outputs, 1, 1))
    layer.fc = nn.Linear(inputs, experts)
    with torch.no_grad():
        layer.fc.weight.mul_(5)  # so that images choose different experts
    layer.groups = groups
    if gate:
        layer.se_fc = nn.Sequential(
            nn.Linear(inputs, outputs // 8, bias=False), nn.ReLU(),
            nn.Linear(outputs // 8, outputs, bias=False), nn.Sigmoid(),
        )  # fmt: skip
    return layer


def _apply_expert_convolution(layer: Any, x: Tensor, stride: int) -> Tensor:
    means = x.mean(dim=(2, 3))
    chosen = layer.fc(means).softmax(dim=1).argmax(dim=1)
    padding = layer.weight.shape[-1] // 2
    y = torch.cat(
        [
            F.conv2d(torch.sign(image)[None], torch.sign(layer.weight[c]), None, stride, padding,
                     groups=layer.groups)
            for image, c in zip(x, chosen, strict=True)
        ]
    )  # fmt: skip
    return y * layer.alpha2 * layer.se_fc(means)[:, :, None, None]


def _three(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class ExpertTwin(nn.Module):
    """The published expert network; the float convolutions of its shortcuts have experts too."""

    def __init__(self, stem: int = 16, experts: int = 3, classes: int = 10) -> None:
        super().__init__()
        half, quarter = stem // 2, stem // 4
        self.conv1 = _three(3, half, 3, 2)
        self.conv2_1, self.conv2_2 = _three(half, quarter, 1), _three(quarter, half, 3, 2)
        self.conv3 = _three(stem, stem, 1)
        before = stem
        for s, (blocks, groups) in enumerate(zip((1, 2, 6, 2), (4, 8, 8, 16), strict=True)):
            after = 2 ** (s + 1) * stem
            stage = nn.Sequential()
            for b in range(blocks):
                block = Holder()
                block.stride = 2 if s and not b else 1
                inputs = after if b else before
                sizes = ((inputs, 3, groups), (after, 3, groups), (after, 1, 1))
                for i, (channels, kernel, number) in enumerate(sizes, start=1):
                    convolution = _expert_convolution(
                        channels, after, kernel, number, True, experts
                    )
                    setattr(block, f"conv{i}", convolution)
                    setattr(block, f"bn{i}", nn.BatchNorm2d(channels, eps=1e-4))
                    setattr(block, f"activation{i}", nn.PReLU(after))
                if not b:
                    narrow = before // 4
                    block.downsample = nn.Sequential(
                        nn.AvgPool2d(block.stride, block.stride),
                        _expert_convolution(before, narrow, 1, 1, False, experts),
                        nn.BatchNorm2d(narrow),
                        nn.PReLU(narrow),
                        _expert_convolution(narrow, after, 1, 1, False, experts),
                        nn.BatchNorm2d(after),
                        nn.PReLU(after),
                    )
                stage.append(block)
            setattr(self, f"layer{s + 1}", stage)
            before = after
        self.fc = nn.Linear(before, classes)
        randomize(self)
        self.eval()

    def features(self, images: Tensor) -> Tensor:
        """uint8 (batch, 3, height, width) -> pooled (batch, channels)."""
        x = self.conv1(_normalized(images, self.fc.weight.dtype))
        x = torch.cat([self.conv2_2(self.conv2_1(x)), F.max_pool2d(x, 3, 2, 1)], dim=1)
        x = self.conv3(x)
        block: Any
        for s in range(1, 5):
            for block in getattr(self, f"layer{s}"):
                shortcut = x
                if hasattr(block, "downsample"):
                    for part in block.downsample:
                        if isinstance(part, Holder):  # float, and always the first expert
                            shortcut = F.conv2d(shortcut, part.weight[0]) * part.alpha2
                        else:
                            shortcut = part(shortcut)
                stride = block.stride
                for i in range(1, 4):
                    z = getattr(block, f"bn{i}")(x)
                    z = _apply_expert_convolution(getattr(block, f"conv{i}"), z, stride)
                    x = shortcut = getattr(block, f"activation{i}")(z) + shortcut
                    stride = 1
        return x.mean(dim=(2, 3))


def families_content(format: str, network: nn.Module) -> dict[str, Any]:
    """What the file of a format holds: the state dict, and what training left beside it."""
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    if format == "expert":
        return state
    return {
        "epoch": 511,
        "state_dict": {f"module.{name}": tensor for name, tensor in state.items()},
        "best_top1_acc": 72.4,
        "train_loss": [1.0],
        "temp": [1.0, 0.9],
        "alpha": torch.tensor(0.5),
        "optimizer": {"state": {0: {"exp_avg": torch.rand(3)}}, "param_groups": [{"lr": 1.0}]},
    }
