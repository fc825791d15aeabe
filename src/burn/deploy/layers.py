"""Layers of a packed file before they are encoded; `burn.deploy.fold` makes them from a network.

Their fields are the settings and tensors of docs/project/pack-format.md, in its order. Unlike those
that `burn_engine.format` reads, their constants are float64, and a binary weight is a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Convolution:
    """Float convolution of images on the scale 0 to 1.

    Attributes:
        stride: Stride in both directions.
        weight: (out, k, k, 3).
        bias: (out,).
        padding: (3,), the colour of the pixels outside the image.
    """

    kind: ClassVar = "convolution"
    name: str
    stride: int
    weight: Array
    bias: Array
    padding: Array


@dataclass(frozen=True)
class BinaryConvolution:
    """Signs of a map by thresholds, convolution, BN, shortcut around all of these, and PReLU.

    Attributes:
        stride: Stride in both directions.
        shortcut: Whether the shortcut is added.
        weight: (out, k, k, in), ±1 at precision BINARY. At the others it is the latent weights, and
            at FLOAT they apply to map - threshold instead of its signs.
        threshold: (in,).
        multiplier: (out,), factor of the convolution.
        bias: (out,).
        slope: (out,), slope of PReLU.
    """

    kind: ClassVar = "binary_convolution"
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
    """Mean of each channel over all pixels, times a factor, plus a bias.

    Attributes:
        bias: (channels,).
        scale: (channels,), the factor, or None for 1.
    """

    kind: ClassVar = "global_mean"
    name: str
    bias: Array
    scale: Array | None = None


@dataclass(frozen=True)
class Linear:
    """Linear layer.

    Attributes:
        relu: Whether negative outputs become 0.
        weight: (out, in).
        bias: (out,).
    """

    kind: ClassVar = "linear"
    name: str
    relu: bool
    weight: Array
    bias: Array


@dataclass(frozen=True)
class Matrix:
    """A matrix and what is added to its products.

    Attributes:
        weight: (out, in); (out, k, k, in) for a convolution.
        bias: (out,).
    """

    weight: Array
    bias: Array


@dataclass(frozen=True)
class Rounded:
    """A matrix of 16-bit integers, with a factor for each row.

    Attributes:
        weight: (out, in), int16.
        scale: (out,), factor of the products.
        bias: (out,).
    """

    weight: Array
    scale: Array
    bias: Array

    def matrix(self) -> Matrix:
        """Return the same as a float matrix."""
        return Matrix(self.weight * self.scale[:, None], self.bias)


@dataclass(frozen=True)
class Side(Matrix):
    """1×1 convolution of a shortcut.

    Attributes:
        slope: (out,), slope of PReLU.
    """

    slope: Array


@dataclass(frozen=True)
class GatedConvolution:
    """Binary convolution that depends on means over the map."""

    kind: ClassVar = "gated_convolution"
    name: str
    stride: int
    repeat: int
    groups: int
    experts: int
    gate: Literal["none", "input", "mixed"]
    product: bool
    shortcut: bool
    weight: Array  # ±1, (experts · out, k, k, repeat · in / groups)
    threshold: Array
    multiplier: Array
    bias: Array
    inner_slope: Array
    scale: Array
    shift: Array
    slope: Array
    choice: Matrix | None = None
    mix: Array | None = None
    gate_down: Rounded | None = None
    gate_up: Rounded | None = None
    shortcut_slope: Array | None = None
    sides: tuple[Side, ...] = ()


@dataclass(frozen=True)
class BranchedConvolution:
    """Float convolutions of images in two branches."""

    kind: ClassVar = "branched_convolution"
    name: str
    stride: int
    second_stride: int
    padding: Array
    first: Matrix
    narrow: Matrix
    widen: Matrix
    last: Matrix


Layer = (
    Convolution | BinaryConvolution | GlobalMean | Linear | GatedConvolution | BranchedConvolution
)
