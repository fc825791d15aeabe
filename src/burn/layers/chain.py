"""Chains of binary layers, the form in which networks are folded, packed and exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.core.types import ActivationGradient, Precision, WeightGradient, WeightInit
from burn.layers.activation import RPReLU
from burn.layers.block import train_block
from burn.layers.conv import BinaryConv2d
from burn.layers.half import Half


class BinaryLayer(nn.Module):
    """Binary convolution with BN, shortcut and RPReLU, which is half of a ReActNet block.

    It computes RPReLU(BN(binary convolution(x)) + shortcut(x)) and maps (batch, in_channels, h, w)
    to (batch, out_channels, ⌈h/stride⌉, ⌈w/stride⌉). The shortcut averages over 2×2 pixels where
    the convolution has stride 2, and repeats its channels where the convolution has more outputs
    than inputs.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels, a multiple of `in_channels`.
        kernel: Side of the kernel in pixels, odd.
        stride: Stride of the convolution, 1 or 2.
        precision: Whether activations and weights are binary; see `burn.Precision`.
        activation_gradient: Straight-through gradient of the sign of activations.
        weight_gradient: Straight-through gradient of the sign of weights.
        weight_init: Initialization of the weights; see `burn.BackboneConfig.weight_init`.

    Raises:
        ValueError: `out_channels` is not a multiple of `in_channels`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 3,
        stride: int = 1,
        precision: Precision = Precision.BINARY,
        activation_gradient: ActivationGradient = "poly",
        weight_gradient: WeightGradient = "clip",
        weight_init: WeightInit = "fan_in",
    ) -> None:
        super().__init__()
        if out_channels % in_channels:
            raise ValueError(f"{out_channels} channels are no multiple of {in_channels}")
        self.convolution = BinaryConv2d(
            in_channels,
            out_channels,
            kernel,
            stride,
            precision,
            activation_gradient,
            weight_gradient,
            weight_init,
        )
        self.norm = nn.BatchNorm2d(out_channels)
        self.activation = RPReLU(out_channels)

    def half(self) -> Half:
        """Return the layers in the form that a `Chain` takes."""
        return Half(self.convolution, self.norm, self.activation)

    def forward(self, x: Tensor) -> Tensor:
        half = self.half()
        # A single image with a map of one pixel has no statistics: BN below raises its own error.
        if len(x) > 1 and half.fits() and not torch.compiler.is_compiling():
            return train_block(x, [half])
        shortcut = F.avg_pool2d(x, 2, ceil_mode=True) if self.convolution.stride == 2 else x
        y = self.norm(self.convolution(x))
        repeat = y.shape[1] // shortcut.shape[1]
        return self.activation(y.add_(shortcut.repeat(1, repeat, 1, 1) if repeat > 1 else shortcut))


@dataclass(frozen=True)
class Chain:
    """Network from images to features as a sequence of layers.

    The backbone's normalization of the images is followed by the stem with BN, the binary layers,
    the mean over all pixels and, in some networks, Linear and ReLU.

    Attributes:
        stem: Float convolution of the images without bias, padded by half its kernel.
        stem_norm: BN after the stem.
        layers: Name and layers of each binary layer.
        feature_layer: The Linear layer, or None.
    """

    stem: nn.Conv2d
    stem_norm: nn.BatchNorm2d
    layers: Sequence[tuple[str, Half]]
    feature_layer: nn.Linear | None = None

    @property
    def precision(self) -> Precision:
        """The least binary precision of its layers: BINARY only where all have binary weights."""
        precisions = {half.convolution.precision for _, half in self.layers}
        order = (Precision.FLOAT, Precision.BINARY_ACTIVATIONS, Precision.BINARY)
        return next((least for least in order if least in precisions), Precision.FLOAT)
