"""Expert binary network (Bulat, Martinez, Tzimiropoulos, ICLR 2021): ResNet-like, in groups.

The paper is "High-Capacity Expert Binary Networks", arXiv 2010.03558. The network is the one whose
weights its authors published: blocks 1, 2, 6, 2, groups 4, 8, 8, 16, twice the width of ResNet-18,
an ungrouped 1×1 convolution in every block, four experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig, binary_settings
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.layers.expert import ExpertConv2d
from burn.layers.gate import ChannelGate, channel_means

STEM_CHANNELS = 64  # at width 1
BLOCKS = (1, 2, 6, 2)
_GROUPS = (4, 8, 8, 16)
_FACTORS = (2, 4, 8, 16)  # channels of the stages, in those of the stem
# Of the BN in blocks, as in the published network; those of stem and shortcuts have PyTorch's 1e-5.
_EPS = 1e-4


@dataclass(frozen=True)
class ExpertBlockPlan:
    """Sizes of a block."""

    in_channels: int
    out_channels: int
    stride: int  # of the first convolution
    groups: int  # of the channels of the 3×3 convolutions


def expert_plan(config: BackboneConfig) -> tuple[int, tuple[tuple[ExpertBlockPlan, ...], ...]]:
    """Return the stem's output channels, and the sizes of the blocks of each stage."""
    widths = [max(8, round(config.width * STEM_CHANNELS * factor)) for factor in (1, *_FACTORS)]
    for groups, (before, after) in zip(_GROUPS, pairwise(widths), strict=True):
        if before % groups or after % groups:
            raise UserError(
                f"width {config.width} gives the channels {widths}, of which {before} and {after} "
                f"cannot both be divided into {groups} groups: give a multiple of 1/16"
            )
    strides = (1, *config.stage_strides[1:])
    stages = []
    for (before, after), count, stride, groups in zip(
        pairwise(widths), BLOCKS, strides, _GROUPS, strict=True
    ):
        first = ExpertBlockPlan(before, after, stride, groups)
        rest = ExpertBlockPlan(after, after, 1, groups)
        stages.append((first, *(rest,) * (count - 1)))
    return widths[0], tuple(stages)


class Stem(nn.Module):
    """Float stem: a 3×3 convolution, then two reductions side by side, then a 1×1 convolution.

    BN and ReLU follow every convolution. One reduction is a 1×1 and a 3×3 convolution, the other a
    maximum over 3×3 pixels; their outputs are concatenated. `channels`, those of the output, are a
    multiple of 4.
    """

    def __init__(self, channels: int, stride: int, second_stride: int) -> None:
        super().__init__()
        half, quarter = channels // 2, channels // 4
        self.first = _convolution(3, half, 3, stride)
        self.narrow = _convolution(half, quarter, 1)
        self.widen = _convolution(quarter, half, 3, second_stride)
        self.maximum = nn.MaxPool2d(3, second_stride, padding=1)
        self.last = _convolution(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(torch.cat([self.widen(self.narrow(x)), self.maximum(x)], dim=1))


def _convolution(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )


def _shortcut(plan: ExpertBlockPlan) -> nn.Sequential:
    """Return the float shortcut of a block that changes the map's shape (appendix A.2.1).

    A mean over pixels is followed by two 1×1 convolutions with a quarter of the input's channels
    between them, each with BN and PReLU.
    """
    narrow = max(1, plan.in_channels // 4)
    return nn.Sequential(
        nn.AvgPool2d(plan.stride, plan.stride, ceil_mode=True, count_include_pad=False),
        nn.Conv2d(plan.in_channels, narrow, 1, bias=False),
        nn.BatchNorm2d(narrow),
        nn.PReLU(narrow),
        nn.Conv2d(narrow, plan.out_channels, 1, bias=False),
        nn.BatchNorm2d(plan.out_channels),
        nn.PReLU(plan.out_channels),
    )


class ExpertLayer(nn.Module):
    """Binary layer of the expert network: PReLU(gate(m) · experts(z, m)) with z = BN(x).

    m are the means of z over all pixels: they choose the expert, and scale the output per channel.
    It maps (batch, in_channels, h, w) to (batch, out_channels, ⌈h/stride⌉, ⌈w/stride⌉), with a
    kernel of 3×3 or 1×1. The shortcut is added by the block.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        groups: int,
        config: BackboneConfig,
        precision: Precision,
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels, eps=_EPS)
        settings = config.experts, *binary_settings(config, precision)
        self.convolution = ExpertConv2d(
            in_channels, out_channels, kernel, stride, groups, *settings
        )
        self.gate = ChannelGate(in_channels, out_channels, bias=False)
        self.activation = nn.PReLU(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        means = channel_means(z)
        return self.activation(self.convolution(z, means=means, gate=self.gate(means)))


class Block(nn.Module):
    """Block of the expert network: two grouped 3×3 convolutions and a 1×1, each with a shortcut.

    The shortcuts are identities, except for the first one where the block changes the map's shape.
    """

    def __init__(self, plan: ExpertBlockPlan, config: BackboneConfig, precision: Precision) -> None:
        super().__init__()
        out, groups = plan.out_channels, plan.groups
        self.layers = nn.ModuleList(
            [
                ExpertLayer(plan.in_channels, out, 3, plan.stride, groups, config, precision),
                ExpertLayer(out, out, 3, 1, groups, config, precision),
                ExpertLayer(out, out, 1, 1, 1, config, precision),
            ]
        )
        same = plan.stride == 1 and plan.in_channels == out
        self.shortcut = None if same else _shortcut(plan)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        for layer in self.layers:
            x = shortcut = layer(x) + shortcut
        return x


class ExpertNet(Backbone):
    """The expert binary network without its classifier.

    The stem and the shortcuts between stages stay in float. The total stride is 32 by default:
    `config.stem_stride` is that of the stem's first convolution, and `config.stage_strides` are
    those of the stem's second half and of the second to fourth stages. Below precision BINARY the
    experts are one; see `ExpertConv2d`.
    """

    def __init__(self, config: BackboneConfig, precision: Precision) -> None:
        stem, stages = expert_plan(config)
        super().__init__(config, num_features=stages[-1][-1].out_channels)
        self.precision = precision
        self.stem = Stem(stem, config.stem_stride or 2, config.stage_strides[0])
        self.stages = nn.ModuleList(
            nn.Sequential(*(Block(block, config, precision) for block in stage)) for stage in stages
        )

    def trunk(self, images: Tensor) -> Tensor:
        x = self.stem(self.normalize(images))
        for stage in self.stages[:-1]:
            x = stage(x)
        return x

    def top(self, features: Tensor) -> Tensor:
        return self.stages[-1](features)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.top(self.trunk(images))

    def pool(self, features: Tensor) -> Tensor:
        return channel_means(features)
