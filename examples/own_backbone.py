"""A binary network of your own in one file: trained, evaluated and packed like burn's.

    burn pretrain --import examples/own_backbone.py --recipe demo --backbone.name tiny_bnn \\
        --data digits --teacher runs/teacher --out runs/tiny
    burn evaluate knn runs/tiny --import examples/own_backbone.py --train digits --test digits
    burn pack runs/tiny tiny.bnn --import examples/own_backbone.py
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

import burn
from burn.layers import BinaryLayer, Chain

# Output channels, side of the kernel and stride of each binary layer.
PLAN = ((32, 3, 1), (64, 1, 1), (64, 3, 2), (128, 1, 1), (128, 3, 2), (256, 1, 1))


@burn.register_backbone(
    "tiny_bnn",
    settings=["width", "activation_gradient", "weight_gradient", "weight_init"],
)
class TinyBnn(burn.Backbone):
    """A float stem and six binary layers; the last map has an eighth of the image's side."""

    def __init__(self, config: burn.BackboneConfig, precision: burn.Precision) -> None:
        # A layer widens by a whole factor, so all widths come from one number.
        unit = max(1, round(32 * config.width))
        super().__init__(config, num_features=unit * PLAN[-1][0] // 32)
        self.stem = nn.Conv2d(3, unit, 3, stride=2, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(unit)
        self.layers = nn.ModuleList()
        channels = unit
        for plan_channels, kernel, stride in PLAN:
            out = unit * plan_channels // 32
            self.layers.append(
                BinaryLayer(
                    channels,
                    out,
                    kernel,
                    stride,
                    precision,
                    config.activation_gradient,
                    config.weight_gradient,
                    config.weight_init,
                )
            )
            channels = out

    def forward_features(self, images: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(self.normalize(images)))
        for layer in self.layers:
            x = layer(x)
        return x

    def pool(self, features: Tensor) -> Tensor:
        return features.mean(dim=(2, 3), dtype=torch.promote_types(features.dtype, torch.float32))

    def chain(self) -> Chain:
        """Return the layers that `burn pack` folds: stem, BN, and the binary layers in order."""
        layers = [
            (f"layers.{i}", cast(BinaryLayer, layer).half()) for i, layer in enumerate(self.layers)
        ]
        return Chain(self.stem, self.stem_norm, layers)
