"""Binary layers one after the other: what is folded, packed and exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.core.types import ActivationGradient, Precision, WeightGradient, WeightInit
from burn.layers.activation import RPReLU
from burn.layers.block import Half, train_block
from burn.layers.conv import BinaryConv2d


class BinaryLayer(nn.Module):
    """RPReLU(BN(binary convolution(x)) + shortcut(x)), of which a block of ReActNet has two.

    x: (batch, in_channels, h, w) -> (batch, out_channels, ⌈h/stride⌉, ⌈w/stride⌉). The shortcut is
    averaged over 2×2 where the convolution is strided, and repeated along the channels where it
    widens.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of the output, a multiple of `in_channels`.
        kernel: Side of the kernel in pixels, odd.
        stride: 1 or 2.
        precision: What is binary; see `burn.Precision`.
        activation_gradient: Gradient of the sign of activations.
        weight_gradient: Gradient of the sign of weights.
        weight_init: How the weights start, as `burn.BackboneConfig.weight_init`.

    Raises:
        ValueError: `out_channels` is no multiple of `in_channels`.
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
            in_channels, out_channels, kernel, stride, precision, activation_gradient,
            weight_gradient, weight_init,
        )  # fmt: skip
        self.norm = nn.BatchNorm2d(out_channels)
        self.activation = RPReLU(out_channels)

    def half(self) -> Half:
        """Its layers, for a `Chain`."""
        return Half(self.convolution, self.norm, self.activation)

    def forward(self, x: Tensor) -> Tensor:
        half = self.half()
        # One image has no statistics of its own where the map is a pixel: BN says so below.
        if len(x) > 1 and half.fits() and not torch.compiler.is_compiling():
            return train_block(x, [half])
        shortcut = F.avg_pool2d(x, 2, ceil_mode=True) if self.convolution.stride == 2 else x
        y = self.norm(self.convolution(x))
        repeat = y.shape[1] // shortcut.shape[1]
        return self.activation(y.add_(shortcut.repeat(1, repeat, 1, 1) if repeat > 1 else shortcut))


@dataclass(frozen=True)
class Chain:
    """A network from images to features as layers one after the other.

    After its normalisation of images come stem and BN, the binary layers, the mean over all pixels
    and, where there is one, Linear + ReLU.

    Attributes:
        stem: A float convolution of the images without bias, padded by half its kernel.
        stem_norm: BN behind it.
        layers: Name and layers of each binary layer.
        feature_layer: The Linear, or None.
    """

    stem: nn.Conv2d
    stem_norm: nn.BatchNorm2d
    layers: Sequence[tuple[str, Half]]
    feature_layer: nn.Linear | None = None

    @property
    def precision(self) -> Precision:
        """The precision of its binary layers: binary weights only where all have them."""
        precisions = {half.convolution.precision for _, half in self.layers}
        order = (Precision.FLOAT, Precision.BINARY_ACTIVATIONS, Precision.BINARY)
        return next((one for one in order if one in precisions), Precision.FLOAT)
