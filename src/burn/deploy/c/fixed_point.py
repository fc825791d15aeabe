"""Integer constants for a network exported as C, and the proof that nothing overflows.

A number v of a map is stored as the integer nearest to v · 2^f. f is chosen for each map from
bounds that hold for every image, so that nothing ever overflows or is clipped. The formulas of a
binary convolution (docs/project/pack-format.md) then are

    t = M[o] · d + B[o] + shortcut · 2^s      int32, with F fractional bits
    z = round(t / 2^p)                        where t ≥ 0
    z = round(⌊t · S[o] / 2^32⌋ / 2^n)        else, S with e fractional bits

where M, B and S are the multiplier, bias and slope, rounded, s = F - f of the input (two less where
the shortcut is a sum of 2 × 2 pixels, which is four times their mean), p = F - f of the output and
n = p + e - 32. Signs compare with the threshold rounded up, which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burn.core.errors import UserError
from burn.deploy.c.arena import Geometry
from burn_engine.format import (
    BinaryConvolution,
    Convolution,
    Floats,
    GlobalMean,
    Linear,
    Program,
)

Integers = NDArray[np.int64]

_MOST = 2**31 - 1
_MARGIN = 1 - 2**-6  # for what rounding adds to bounds in real numbers; the exact proof is below
_VECTOR = 2**23  # largest number of a vector


@dataclass(frozen=True)
class IntegerConvolution:
    """Convolution of the image in integers, of weights (out, k, k, 3) for bytes and bias (out,).

    `outside`, (out, k, k), is what a pixel outside the image adds, and the shift p in the formulas.
    """

    weight: Integers
    outside: Integers
    bias: Integers
    shift: int
    bits: int


@dataclass(frozen=True)
class IntegerLayer:
    """Binary convolution in integers, see the formulas above.

    The threshold is (in,); M, B and S are (out,). The shifts are s, p and n.
    """

    threshold: Integers
    multiplier: Integers
    bias: Integers
    slope: Integers
    shortcut_shift: int
    positive_shift: int
    negative_shift: int
    bits: int


@dataclass(frozen=True)
class IntegerMean:
    """Mean of each channel in integers: round(sum · factor / 2^shift) + bias.

    The factor is a power of two divided by the number of pixels and, where the mean is scaled,
    times the scales: (channels,), or one number. It is rounded, and below 2^31. The bias is
    (channels,), and the output has `bits` fractional bits.
    """

    factor: int | Integers
    shift: int
    bias: Integers
    bits: int


@dataclass(frozen=True)
class IntegerLinear:
    """Linear layer in integers: round(weight · x / 2^shift) + bias; with `relu`, at least 0.

    The weight is (out, in), 16 bits, and the bias (out,). The output has `bits` fractional bits.
    """

    weight: Integers
    bias: Integers
    shift: int
    relu: bool
    bits: int


@dataclass(frozen=True)
class IntegerNetwork:
    """A packed file in integers."""

    stem: IntegerConvolution
    layers: tuple[IntegerLayer, ...]
    mean: IntegerMean
    linears: tuple[IntegerLinear, ...]

    @property
    def score_bits(self) -> int:
        """Number of fractional bits of the outputs."""
        return self.linears[-1].bits if self.linears else self.mean.bits


def to_integers(
    program: Program, geometry: Sequence[Geometry], value_bits: int, origin: str
) -> IntegerNetwork:
    """Convert a packed file's constants, for maps of numbers of 16 or 32 bits.

    The geometry is that of the convolution of the image and of the binary layers. Raises UserError
    if the constants span too wide a range.
    """
    try:
        with np.errstate(over="raise", invalid="raise"):
            return _Conversion(program, geometry, value_bits).network()
    except (FloatingPointError, OverflowError) as error:
        raise UserError(
            f"{origin}: its constants span too wide a range for integers of {value_bits} bits: "
            "give --epilogue float"
        ) from error


def _require(holds: bool | np.bool) -> None:
    if not holds:
        raise OverflowError


@dataclass
class _Range:
    """Bounds of a layer in real numbers, and the numbers of fractional bits that they allow.

    Its outputs are between `low` and `high`, (out,). `sum_bits` and `slope_bits` are F and e in the
    formulas.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    sum_bits: int
    slope_bits: int = 32


class _Conversion:
    def __init__(self, program: Program, geometry: Sequence[Geometry], value_bits: int) -> None:
        layers = program.layers
        self._geometry = geometry
        self._most_value = 2 ** (value_bits - 1) - 2  # one less: such a threshold is never reached
        stem, mean = layers[0], layers[len(geometry)]
        assert isinstance(stem, Convolution)
        assert isinstance(mean, GlobalMean)
        self._stem, self._mean = stem, mean
        self._binary = [layer for layer in layers if isinstance(layer, BinaryConvolution)]
        self._linears = [layer for layer in layers if isinstance(layer, Linear)]
        self._pixels = geometry[-1].out_size ** 2

    def network(self) -> IntegerNetwork:
        ranges = self._ranges()
        bits = self._value_bits(ranges)
        stem, low, high = self._convert_stem(ranges[0], bits[0])
        layers: list[IntegerLayer] = []
        for index in range(1, len(ranges)):
            converted, low, high = self._convert(index, ranges[index], bits, low, high)
            layers.append(converted)
        mean, most = self._convert_mean(bits[-1], low, high)
        linears: list[IntegerLinear] = []
        before = mean.bits
        for layer in self._linears:
            linear, most = _convert_linear(layer, before, most)
            linears.append(linear)
            before = linear.bits
        return IntegerNetwork(stem, tuple(layers), mean, tuple(linears))

    def _ranges(self) -> list[_Range]:
        stem = self._stem
        weight = stem.weight.astype(np.float64)
        bias = stem.bias.astype(np.float64)
        ends = np.stack([np.zeros_like(weight), weight, weight * stem.padding])
        low = bias + ends.min(axis=0).sum(axis=(1, 2, 3))
        high = bias + ends.max(axis=0).sum(axis=(1, 2, 3))
        size = float((abs(bias) + abs(ends).max(axis=0).sum(axis=(1, 2, 3))).max())
        ranges = [_Range(low, high, _bits(_MOST * _MARGIN, size))]
        for layer, geometry in zip(self._binary, self._geometry[1:], strict=True):
            reach = abs(layer.multiplier.astype(np.float64)) * geometry.inputs
            bias, slope = layer.bias.astype(np.float64), layer.slope.astype(np.float64)
            shortcut = np.zeros(geometry.out_channels)
            below, above = bias - reach, bias + reach
            if geometry.shortcut:
                times = geometry.out_channels // geometry.in_channels
                shortcut = np.tile(np.maximum(abs(low), abs(high)), times)
                below, above = below + np.tile(low, times), above + np.tile(high, times)
            size = float((reach + abs(bias) + shortcut).max())
            ends = np.stack([np.where(y >= 0, y, slope * y) for y in (below, above)])
            crosses = (below < 0) & (above > 0)  # 0 is then an output, and may be an extreme one
            low = np.where(crosses, np.minimum(ends.min(axis=0), 0), ends.min(axis=0))
            high = np.where(crosses, np.maximum(ends.max(axis=0), 0), ends.max(axis=0))
            slope_bits = _bits(_MOST, float(abs(slope).max()))
            ranges.append(_Range(low, high, _bits(_MOST * _MARGIN, size), slope_bits))
        return ranges

    def _value_bits(self, ranges: Sequence[_Range]) -> list[int]:
        """Return f of each map."""
        map_bits: list[int] = []
        for index, bounds in enumerate(ranges):
            size = max(float(abs(bounds.low).max()), float(abs(bounds.high).max()))
            bits = min(
                _bits(self._most_value * _MARGIN, size), bounds.sum_bits + bounds.slope_bits - 32
            )
            if index + 1 < len(ranges):
                bits = min(bits, ranges[index + 1].sum_bits - 2)
            else:  # the sums over all pixels are 32-bit integers
                bits = min(bits, _bits(_MOST * _MARGIN, size * self._pixels))
            map_bits.append(bits)
        return map_bits

    def _convert_stem(
        self, bounds: _Range, bits: int
    ) -> tuple[IntegerConvolution, Integers, Integers]:
        layer = self._stem
        exact = layer.weight.astype(np.float64)
        weight = _rounded(exact / 255, bounds.sum_bits)
        outside = _rounded((exact * layer.padding).sum(axis=3), bounds.sum_bits)
        bias = _rounded(layer.bias, bounds.sum_bits)
        shift = bounds.sum_bits - bits
        _require(0 <= shift <= 30)
        # A sum of any part of the terms is within the bounds, whatever the order of additions.
        inside = 255 * abs(weight).sum(axis=3)
        size = abs(bias) + np.maximum(inside, abs(outside)).sum(axis=(1, 2))
        _require(size.max() + (1 << shift >> 1) <= _MOST)
        least = np.minimum(255 * np.minimum(weight, 0).sum(axis=3), outside).sum(axis=(1, 2))
        most = np.maximum(255 * np.maximum(weight, 0).sum(axis=3), outside).sum(axis=(1, 2))
        low, high = divided(bias + least, shift), divided(bias + most, shift)
        self._require_values(low, high)
        return IntegerConvolution(weight, outside, bias, shift, bits), low, high

    def _convert(
        self, index: int, bounds: _Range, map_bits: Sequence[int], low: Integers, high: Integers
    ) -> tuple[IntegerLayer, Integers, Integers]:
        """Return a layer in integers and the bounds of its outputs, from those of its inputs."""
        layer, geometry = self._binary[index - 1], self._geometry[index]
        bits_before, bits = map_bits[index - 1], map_bits[index]
        multiplier = _rounded(layer.multiplier, bounds.sum_bits)
        bias = _rounded(layer.bias, bounds.sum_bits)
        slope = _rounded(layer.slope, bounds.slope_bits)
        scaled = np.ceil(np.ldexp(layer.threshold.astype(np.float64), bits_before))
        threshold = np.clip(scaled, -self._most_value, self._most_value + 1).astype(np.int64)
        positive = bounds.sum_bits - bits
        negative = positive + bounds.slope_bits - 32
        _require(0 <= positive <= 30 and 0 <= negative <= 30)

        reach = abs(multiplier) * geometry.inputs
        below, above, size = bias - reach, bias + reach, abs(bias) + reach
        shift = 0
        if geometry.shortcut:
            pixels = 4 if geometry.stride == 2 else 1
            shift = bounds.sum_bits - bits_before - (2 if geometry.stride == 2 else 0)
            _require(0 <= shift <= 30)
            times = geometry.out_channels // geometry.in_channels
            least, most = (np.tile(pixels * x << shift, times) for x in (low, high))
            below, above = below + least, above + most
            size = size + np.maximum(abs(least), abs(most))
        # Every sum of some of the terms is within the bounds, and so is the half that rounds.
        _require(size.max() + (1 << positive >> 1) <= _MOST)
        converted = IntegerLayer(
            threshold, multiplier, bias, slope, shift, positive, negative, bits
        )
        # On both sides of 0 the output is monotonic in t.
        corners = [below, above, np.minimum(above, -1), np.maximum(below, 0)]
        ends = np.stack([activated(converted, np.clip(t, below, above)) for t in corners])
        self._require_values(ends.min(axis=0), ends.max(axis=0))
        return converted, ends.min(axis=0), ends.max(axis=0)

    def _require_values(self, low: Integers, high: Integers) -> None:
        _require(low.min() >= -self._most_value and high.max() <= self._most_value)

    def _convert_mean(self, bits: int, low: Integers, high: Integers) -> tuple[IntegerMean, int]:
        """Return the mean in integers and the largest of its outputs."""
        largest = int(max(abs(low).max(), abs(high).max()))
        _require(largest * self._pixels <= _MOST)
        bias = self._mean.bias.astype(np.float64)
        factor: int | Integers = round(2**30 / self._pixels)
        factor_bits, scales = 30, np.ones(1)
        if self._mean.scale is not None:
            scales = self._mean.scale.astype(np.float64)
            factor_bits = _bits(2**30, float(abs(scales).max()) / self._pixels)
            factor = _rounded(scales / self._pixels, factor_bits)
        bounds = np.maximum(abs(low), abs(high))
        size = float((np.ldexp(bounds.astype(np.float64), -bits) * abs(scales) + abs(bias)).max())
        out_bits = min(_bits(_VECTOR * _MARGIN, size), bits + factor_bits)
        shift = factor_bits + bits - out_bits
        _require(0 <= shift <= 62)
        mean = IntegerMean(factor, shift, _rounded(bias, out_bits), out_bits)
        products = bounds * self._pixels * abs(factor)  # below 2^62, as both factors are below 2^31
        most = int(((products >> shift) + 1 + abs(mean.bias)).max())
        _require(most <= _VECTOR)
        return mean, most


def _convert_linear(layer: Linear, bits: int, most_input: int) -> tuple[IntegerLinear, int]:
    """Return a linear layer in integers and the largest of its outputs."""
    exact = layer.weight.astype(np.float64)
    weight_bits = _bits(2**15 - 1, float(abs(exact).max()))
    weight = _rounded(exact, weight_bits)
    bias = layer.bias.astype(np.float64)
    sums = abs(weight).sum(axis=1) * float(most_input)
    _require(sums.max() < 2**61)
    size = float((np.ldexp(sums, -bits - weight_bits) + abs(bias)).max())
    out_bits = min(_bits(_VECTOR * _MARGIN, size), bits + weight_bits)
    shift = bits + weight_bits - out_bits
    _require(0 <= shift <= 62)
    linear = IntegerLinear(weight, _rounded(bias, out_bits), shift, layer.relu, out_bits)
    most = int(abs(weight).sum(axis=1).max()) * most_input
    largest = (most + (1 << shift >> 1) >> shift) + int(abs(linear.bias).max())
    _require(most + (1 << shift >> 1) < 2**62 and largest <= _VECTOR)
    return linear, largest


def _bits(most: float, size: float) -> int:
    """Return the largest b of at most 30 for which size · 2^b ≤ most."""
    if size == 0:
        return 30
    _require(math.isfinite(size))
    bits = min(30, math.floor(math.log2(most / size)))
    return bits - 1 if math.ldexp(size, bits) > most else bits


def _rounded(values: NDArray[np.floating], bits: int) -> Integers:
    scaled = np.rint(np.ldexp(values.astype(np.float64), bits))
    _require(float(abs(scaled).max()) <= _MOST)
    return scaled.astype(np.int64)


def divided(x: Integers, shift: int) -> Integers:
    """Return x / 2^shift, rounded to integers."""
    return (x + (1 << shift >> 1)) >> shift


def activated(layer: IntegerLayer, t: Integers) -> Integers:
    """Return z of the formulas, of t (..., out)."""
    negative = divided(t * layer.slope >> 32, layer.negative_shift)
    return np.where(t >= 0, divided(t, layer.positive_shift), negative)


def real(values: Integers, bits: int) -> Floats:
    """Return stored numbers with `bits` fractional bits as real numbers."""
    return np.ldexp(values.astype(np.float64), -bits).astype(np.float32)
