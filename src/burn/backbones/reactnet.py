"""ReActNets: MobileNet-v1's layout with binary convolutions; ReActNet-A is the paper's student."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig, binary_settings
from burn.backbones.plan import BinaryConvolutionPlan, reactnet_plan
from burn.core.types import Precision
from burn.layers import BinaryConv2d, RPReLU
from burn.layers.block import train_block
from burn.layers.chain import Chain
from burn.layers.gate import channel_means
from burn.layers.half import Half


class Block(nn.Module):
    """ReActNet block: a 3×3 and a 1×1 binary convolution, each with BN, shortcut and RPReLU.

    It maps (batch, in_channels, h, w) to (batch, out_channels, h/stride, w/stride). The 3×3
    convolution keeps the number of channels; where it has stride 2, its shortcut is a 2×2 average
    pool. Where the 1×1 convolution doubles the number of channels, its shortcut is the input twice.
    ReActNet's authors write this as two convolutions whose outputs are concatenated, which is the
    same function with the same parameters.
    """

    def __init__(
        self,
        spatial: BinaryConvolutionPlan,
        pointwise: BinaryConvolutionPlan,
        config: BackboneConfig,
        precision: Precision,
    ) -> None:
        super().__init__()

        def convolution(plan: BinaryConvolutionPlan) -> BinaryConv2d:
            sizes = plan.in_channels, plan.out_channels, plan.kernel, plan.stride
            return BinaryConv2d(*sizes, *binary_settings(config, precision))

        self.stride, self.repeat = spatial.stride, pointwise.out_channels // pointwise.in_channels
        self.spatial = convolution(spatial)
        self.spatial_norm = nn.BatchNorm2d(spatial.out_channels)
        self.spatial_activation = RPReLU(spatial.out_channels)
        self.pointwise = convolution(pointwise)
        self.pointwise_norm = nn.BatchNorm2d(pointwise.out_channels)
        self.pointwise_activation = RPReLU(pointwise.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        halves = [
            Half(self.spatial, self.spatial_norm, self.spatial_activation),
            Half(self.pointwise, self.pointwise_norm, self.pointwise_activation),
        ]
        # A single image with a map of one pixel has no statistics: BN below raises its own error.
        if len(x) > 1 and all(half.fits() for half in halves) and not torch.compiler.is_compiling():
            return train_block(x, halves)
        shortcut = F.avg_pool2d(x, 2, ceil_mode=True) if self.stride == 2 else x
        x = self.spatial_activation(self.spatial_norm(self.spatial(x)).add_(shortcut))
        shortcut = x.repeat(1, self.repeat, 1, 1) if self.repeat > 1 else x
        return self.pointwise_activation(self.pointwise_norm(self.pointwise(x)).add_(shortcut))


class ReActNet(Backbone):
    """A ReActNet without its classifier (Liu et al., ECCV 2020; paper, section 4).

    The widths of `reactnet_a` are 32, 64, 128, 128, 256, 256, 512 (6 times), 1024, 1024, times
    `config.width`. The smaller members of the family have fewer blocks of these widths, and
    `reactnet_xs` half the channels; `burn.backbones.plan` says how they were chosen, and
    `config.depths` sets other numbers of blocks. The stem, a 3×3 convolution with BN, stays in
    float. The total stride is 32 by default, which makes 1024×7×7 of 224 pixels;
    `config.stem_stride` and `config.stage_strides` (at the widths 128, 256, 512, 1024) lower it for
    small images. Convolutions, including the stem, start uniform in ±1/sqrt(fan-in), BN at (1, 0),
    shifts at 0 and PReLU slopes at 0.25.
    """

    def __init__(self, config: BackboneConfig, precision: Precision) -> None:
        plan = reactnet_plan(config)
        super().__init__(config, num_features=plan.num_features)
        self.precision = precision
        self.trunk_blocks = plan.trunk_blocks  # before the last stage, which makes stride 32 of 16
        self.stem = nn.Conv2d(3, plan.stem_channels, 3, plan.stem_stride, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(plan.stem_channels)
        self.blocks = nn.ModuleList(Block(*block, config, precision) for block in plan.blocks)
        if config.feature_layer:
            side = plan.num_features
            self.feature_layer = nn.Sequential(nn.Linear(side, side), nn.ReLU())

    def trunk(self, images: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(self.normalize(images)))
        for block in self.blocks[: self.trunk_blocks]:
            x = block(x)
        return x

    def top(self, features: Tensor) -> Tensor:
        for block in self.blocks[self.trunk_blocks :]:
            features = block(features)
        return features

    def forward_features(self, images: Tensor) -> Tensor:
        return self.top(self.trunk(images))

    def chain(self) -> Chain:
        layers = [
            (
                f"blocks.{i}.{part}",
                Half(*(getattr(block, part + suffix) for suffix in ("", "_norm", "_activation"))),
            )
            for i, block in enumerate(self.blocks)
            for part in ("spatial", "pointwise")
        ]
        feature_layer = (
            cast(nn.Linear, self.feature_layer[0]) if self.config.feature_layer else None
        )
        return Chain(self.stem, self.stem_norm, layers, feature_layer)

    def pool(self, features: Tensor) -> Tensor:
        pooled = channel_means(features)
        return self.feature_layer(pooled) if self.config.feature_layer else pooled
