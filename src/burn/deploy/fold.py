"""Folding of a trained chain of binary layers into few constants per layer, as a packed file has.

Notation, for each channel: a binary convolution of the network gets the map X, takes the signs of
X + shift, and passes the integers d (the sums of products of signs) to a BN and a shortcut; RPReLU
then gives PReLU(· + before) + after.

A folded layer gives z = PReLU(y) and leaves the constant `after` of its RPReLU to the layers that
read the map, so that no shift is ever added to a map. With the map's constant a, X = z + a (a = 0
after the stem):

- Sign. X + shift ≥ 0 ⟺ z ≥ -shift - a, the threshold; sign(0) = +1 in both.
- BN of the convolution with weights ±mean|W|: g · (mean|W| · d - mean) + β, g = γ / √(var + ε). So
  the multiplier is g · mean|W|, and β - g · mean is a part of the bias.
- Shortcut. Averaging over pixels that exist and repeating channels carry a constant through:
  shortcut(X) = shortcut(z) + a, whose a (repeated with the channels) goes to the bias as well.
- bias = β - g · mean + a + before, and y = multiplier · d + bias + shortcut(z) is PReLU's argument.
- Mean over all pixels: mean(X) = mean(z) + a.
- Stem, with the images' normalization (x - m) / s before it and g after it: the weight is
  g · W / s, the bias β - g · mean - Σ weight · m. The zeros with which the network pads after the
  normalization are the pixel m before it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.core.types import Precision
from burn.deploy.layout import Array
from burn.layers.half import Half
from burn.layers.sign import hard_sign, weight_scale
from burn_engine.format import BinaryConvolution, Convolution, GlobalMean, Layer, Linear


def fold(backbone: Backbone) -> tuple[Layer, ...]:
    """Return the layers of `backbone`, a chain in eval mode, in the order in which they run.

    The constants are float64 and not rounded; weights of binary convolutions, (out, k, k, in), have
    the network's dtype. At precision BINARY they are ±1. At the others they are the latent weights,
    and at FLOAT they apply to map - threshold instead of its signs.
    """
    chain = backbone.chain()
    assert chain is not None
    layers: list[Layer] = [stem(backbone, chain.stem, chain.stem_norm)]
    after = np.zeros(chain.stem.out_channels)
    for name, half in chain.layers:
        layers.append(_binary(name, half, after))
        after = float64(half.activation.after)
    layers.append(pool(after, backbone.feature_norm))
    if chain.feature_layer is not None:
        linear = chain.feature_layer
        layers.append(linear_layer("feature_layer", linear.weight, linear.bias, relu=True))
    return tuple(layers)


def pool(after: Array, norm: nn.BatchNorm1d | None) -> GlobalMean:
    """Fold the mean over pixels, and BN of the features if there is one, without weight and bias.

    The map lacks the constant `after`, (channels,).
    """
    if norm is None:
        return GlobalMean(name="pool", bias=after)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = 1 / np.sqrt(float64(norm.running_var) + norm.eps)
    bias = (after - float64(norm.running_mean)) * scale
    return GlobalMean(name="pool", bias=bias, scale=scale)


def linear_layer(name: str, weight: Tensor, bias: Tensor | None, *, relu: bool) -> Linear:
    """Return a Linear with float64 constants, from weight (out, in) and bias (out,) or None."""
    added = np.zeros(len(weight)) if bias is None else float64(bias)
    return Linear(name=name, relu=relu, weight=float64(weight), bias=added)


def stem(backbone: Backbone, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> Convolution:
    """Fold the convolution of the normalized images and the BN after it."""
    gain, offset = affine(norm)
    # The network divides by its float32 buffers, where 0.229 is not exactly that of the settings.
    mean, std = (float64(constant).reshape(3) for constant in (backbone.mean, backbone.std))
    weight = float64(convolution.weight).transpose(0, 2, 3, 1) / std * gain[:, None, None, None]
    bias = offset - (weight * mean).sum(axis=(1, 2, 3))
    stride = convolution.stride[0]
    return Convolution(name="stem", stride=stride, weight=weight, bias=bias, padding=mean)


def _binary(name: str, half: Half, after: Array) -> BinaryConvolution:
    """Fold a binary layer; `after`, (in,), is the constant that the map before it lacks."""
    convolution, activation = half.convolution, half.activation
    gain, offset = affine(half.norm)
    weight = convolution.weight.detach()
    if convolution.precision == Precision.BINARY:
        gain = gain * float64(weight_scale(weight.double())).reshape(-1)
        weight = hard_sign(weight)
    repeat = len(weight) // len(after)
    return BinaryConvolution(
        name=name,
        stride=convolution.stride,
        shortcut=True,
        weight=weight.cpu().permute(0, 2, 3, 1).contiguous().numpy(),
        threshold=-float64(convolution.sign.shift) - after,
        multiplier=gain,
        bias=offset + float64(activation.before) + np.tile(after, repeat),
        slope=float64(activation.slope),
    )


def affine(norm: nn.BatchNorm2d | nn.SyncBatchNorm) -> tuple[Array, Array]:
    """Return BN in eval mode as gain and offset of gain · x + offset, each (channels,)."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    # Both are None, whatever their types say, in BN that learns neither.
    weight = 1.0 if norm.weight is None else float64(norm.weight)
    bias = 0.0 if norm.bias is None else float64(norm.bias)
    gain = weight / np.sqrt(float64(norm.running_var) + norm.eps)
    return gain, bias - gain * float64(norm.running_mean)


def float64(tensor: Tensor) -> Array:
    return tensor.detach().to("cpu", torch.float64, copy=True).numpy()
