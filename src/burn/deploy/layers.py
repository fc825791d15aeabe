"""Layers of a packed file with their constants; `burn.deploy.fold` makes them from a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Convolution:
    """Float convolution of images on the scale 0 to 1.

    Attributes:
        name: Name of the layer.
        stride: Stride in both directions.
        weight: (out, k, k, 3).
        bias: (out,).
        padding: (3,), the colour of the pixels outside the image.
    """

    name: str
    stride: int
    weight: Array
    bias: Array
    padding: Array


@dataclass(frozen=True)
class BinaryConvolution:
    """Signs of a map by thresholds, convolution, BN, shortcut around all of these, and PReLU.

    Attributes:
        name: Name of the layer.
        stride: Stride in both directions.
        shortcut: Whether the shortcut is added.
        weight: (out, k, k, in), ±1 at precision BINARY. At the others it is the latent weights, and
            at FLOAT they apply to map - threshold instead of its signs.
        threshold: (in,).
        multiplier: (out,), factor of the convolution.
        bias: (out,).
        slope: (out,), slope of PReLU.
    """

    name: str
    stride: int
    shortcut: bool
    weight: Array
    threshold: Array
    multiplier: Array
    bias: Array
    slope: Array


@dataclass(frozen=True)
class GlobalMean:
    """Mean of each channel over all pixels, to which a bias is added.

    Attributes:
        name: Name of the layer.
        bias: (channels,).
    """

    name: str
    bias: Array


@dataclass(frozen=True)
class Linear:
    """Linear layer.

    Attributes:
        name: Name of the layer.
        relu: Whether negative outputs become 0.
        weight: (out, in).
        bias: (out,).
    """

    name: str
    relu: bool
    weight: Array
    bias: Array


Layer = Convolution | BinaryConvolution | GlobalMean | Linear
