"""The layers of a packed file with their constants; `burn.deploy.fold` makes them of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Convolution:
    """weight: (out, k, k, 3) on images on the scale 0 to 1; bias: (out,).

    padding: (3,), the colour that stands outside the image.
    """

    name: str
    stride: int
    weight: Array
    bias: Array
    padding: Array


@dataclass(frozen=True)
class BinaryConvolution:
    """Signs of the map by their thresholds, a convolution, its BN, a shortcut around both, PReLU.

    weight: (out, k, k, in), ±1 at precision BINARY; at the others the latent weights, and at FLOAT
    on map - threshold instead of its signs. threshold: (in,). multiplier, bias, slope: (out,).
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
    """bias: (channels,), added to each channel's mean."""

    name: str
    bias: Array


@dataclass(frozen=True)
class Linear:
    """weight: (out, in); bias: (out,); relu: whether negative outputs become 0."""

    name: str
    relu: bool
    weight: Array
    bias: Array


Layer = Convolution | BinaryConvolution | GlobalMean | Linear
