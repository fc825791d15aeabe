"""BNext (Guo, Bethge et al. 2022): binary layers whose outputs a gate scales by their means.

The paper is "Join the High Accuracy Club on ImageNet with a Binary Neural Network Ticket",
arXiv 2211.12933.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig, binary_settings
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.layers.gate import ChannelGate, channel_means
from burn.layers.mix import Mix
from burn.layers.norm_activation import norm_prelu
from burn.layers.temperature import SoftBinaryConv2d, falling_temperature

# By name: channels of the stem, and blocks with 4, 8, 16 and 32 times as many. One block with twice
# as many comes before them. (The code of BNext's authors calls the last "super".)
_SIZES = {
    "bnext_t": (32, (2, 2, 6, 2)),
    "bnext_s": (48, (2, 2, 6, 2)),
    "bnext_m": (48, (4, 4, 8, 4)),
    "bnext_l": (64, (4, 4, 16, 4)),
}


@dataclass(frozen=True)
class BNextBlockPlan:
    """Sizes of a block, whose 3×3 convolution keeps the number of channels and has the stride."""

    in_channels: int
    out_channels: int  # as many or twice as many
    stride: int
    multiplies: bool  # whether the shortcut of the 3×3 convolution multiplies its output too


def stem_channels(name: str) -> int:
    """Return the number of the stem's output channels at width 1."""
    return _SIZES[name][0]


def num_blocks(name: str) -> int:
    return 1 + sum(_SIZES[name][1])


def bnext_plan(config: BackboneConfig) -> tuple[BNextBlockPlan, ...]:
    """Return the sizes of the blocks of the network that a configuration describes."""
    stem, counts = _SIZES[config.name]
    factors = [1, 2, *(4 * 2**i for i, count in enumerate(counts) for _ in range(count))]
    widths = [max(8, round(config.width * stem * factor)) for factor in factors]
    for before, after in pairwise(widths):
        if after not in (before, 2 * before):
            raise UserError(
                f"width {config.width} gives the channels {sorted(set(widths))}, of which {after} "
                f"is neither {before} nor twice that: give another width"
            )
    strides = [1]
    for count, stride in zip(counts, config.stage_strides, strict=True):
        strides += [stride] + [1] * (count - 1)
    return tuple(
        BNextBlockPlan(before, after, stride, multiplies=i % 2 == 1)
        for i, ((before, after), stride) in enumerate(zip(pairwise(widths), strides, strict=True))
    )


class MixedLayer(nn.Module):
    """Binary layer of BNext: its output is scaled per channel by a gate on a mixture of two maps.

    With x the input and p(x) = x, or the mean over 2×2 pixels where the stride is 2:

        y = activation(norm(convolution(x)))
        z = gate(mean over all pixels of mix(p(x), y)) · y

    and the output is second_norm(z) + p(x) or, where the layer multiplies,

        second_norm(z · s) + s  with  s = p(shortcut_activation(x)).

    Activations are PReLU. It maps (batch, channels, h, w) to (batch, channels, ⌈h/stride⌉,
    ⌈w/stride⌉), with a kernel of 3×3 or 1×1.
    """

    def __init__(
        self,
        channels: int,
        kernel: int,
        stride: int,
        multiplies: bool,
        config: BackboneConfig,
        precision: Precision,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.convolution = SoftBinaryConv2d(
            channels, channels, kernel, stride, *binary_settings(config, precision)
        )
        self.norm = nn.BatchNorm2d(channels)
        self.activation = nn.PReLU(channels)
        self.mix = Mix(channels)
        self.gate = ChannelGate(channels, channels)
        self.second_norm = nn.BatchNorm2d(channels)
        self.shortcut_activation = nn.PReLU(channels) if multiplies else None

    def pool(self, x: Tensor) -> Tensor:
        """Return the map as the shortcut and the mixture have it, at the size of the output."""
        return F.avg_pool2d(x, 2, ceil_mode=True) if self.stride == 2 else x

    def forward(self, x: Tensor) -> Tensor:
        y = norm_prelu(self.convolution(x), self.norm, self.activation)
        pooled = self.pool(x)
        # The mean of the mixture is the mixture of the means, which saves two passes over the maps.
        means = self.mix(channel_means(pooled), channel_means(y))
        y = y * self.gate(means).to(y.dtype)
        if self.shortcut_activation is None:
            return self.second_norm(y) + pooled
        shortcut = self.pool(self.shortcut_activation(x))
        return self.second_norm(y * shortcut) + shortcut


class Block(nn.Module):
    """BNext's block: a layer with a 3×3 convolution, then one or two with 1×1 convolutions.

    Two layers read the same map, and their outputs are concatenated, which doubles the number of
    channels.
    """

    def __init__(self, plan: BNextBlockPlan, config: BackboneConfig, precision: Precision) -> None:
        super().__init__()
        channels = plan.in_channels
        self.spatial = MixedLayer(channels, 3, plan.stride, plan.multiplies, config, precision)
        self.pointwise = nn.ModuleList(
            MixedLayer(channels, 1, 1, False, config, precision)
            for _ in range(plan.out_channels // channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.spatial(x)
        return torch.cat([layer(x) for layer in self.pointwise], dim=1)


class BNext(Backbone):
    """BNext-T, -S, -M or -L without its classifier.

    The stem, a 3×3 convolution with BN, stays in float. bnext_t has the widths and strides of
    ReActNet-A. In every second block the shortcut of the 3×3 convolution multiplies. A PReLU
    follows the last block. The total stride is 32 by default; `config.stem_stride` and
    `config.stage_strides` lower it for small images.

    In training with binary weights these are soft at first, and become binary while a temperature
    falls from 1 to `config.temperature` (see `soft_weight`). In eval mode they are always signs. As
    long as nobody calls `at_progress`, they are signs in training too.
    """

    def __init__(self, config: BackboneConfig, precision: Precision) -> None:
        plan = bnext_plan(config)
        super().__init__(config, num_features=plan[-1].out_channels)
        self.precision = precision
        stride = config.stem_stride or 2
        self.stem = nn.Conv2d(3, plan[0].in_channels, 3, stride, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(plan[0].in_channels)
        self.blocks = nn.ModuleList(Block(block, config, precision) for block in plan)
        self.activation = nn.PReLU(self.num_features)
        # The last stage begins where the network widens for the last time.
        self._trunk_blocks = len(plan) - _SIZES[config.name][1][-1]

    def at_progress(self, progress: float) -> None:
        temperature = falling_temperature(progress, self.config.temperature)
        for module in self.modules():
            if isinstance(module, SoftBinaryConv2d):
                module.temperature.fill_(temperature)

    def trunk(self, images: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(self.normalize(images)))
        for block in self.blocks[: self._trunk_blocks]:
            x = block(x)
        return x

    def top(self, features: Tensor) -> Tensor:
        for block in self.blocks[self._trunk_blocks :]:
            features = block(features)
        return self.activation(features)

    def forward_features(self, images: Tensor) -> Tensor:
        return self.top(self.trunk(images))

    def pool(self, features: Tensor) -> Tensor:
        return channel_means(features)
