"""A trained chain of binary layers with few constants each: the maths of a packed file.

Notation, for each channel: a binary convolution of the network sees the map X, takes the signs of
X + shift and gives to the integers d (the sum of products of signs) a BN and a shortcut; RPReLU
then gives PReLU(· + before) + after.

A folded layer hands on z = PReLU(y) and leaves the `after` of its RPReLU, a constant, to whoever
reads the map, so no shift is ever added to a map. With the map's constant a, X = z + a (a = 0
behind the stem):

- Sign. X + shift ≥ 0 ⟺ z ≥ -shift - a, the threshold; sign(0) = +1 in both.
- BN of the convolution with weights ±mean|W|: g · (mean|W| · d - mean) + β, g = γ / √(var + ε). So
  the multiplier is g · mean|W|, and β - g · mean is a part of the bias.
- Shortcut. Averaging over pixels that exist and repeating channels carry a constant through:
  shortcut(X) = shortcut(z) + a, whose a (repeated with the channels) goes to the bias as well.
- bias = β - g · mean + a + before, and y = multiplier · d + bias + shortcut(z) is PReLU's argument.
- Mean over all pixels: mean(X) = mean(z) + a.
- Stem, with the images' normalisation (x - m) / s before it and g behind: the weight is g · W / s,
  the bias β - g · mean - Σ weight · m. The zeros with which the network pads behind the
  normalisation are the pixel m before it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.core.types import Precision
from burn.deploy.layers import Array, BinaryConvolution, Convolution, GlobalMean, Layer, Linear
from burn.layers.block import Half
from burn.layers.chain import Chain
from burn.layers.sign import hard_sign, weight_scale


def fold(backbone: Backbone) -> tuple[Layer, ...]:
    """The layers of `backbone`, a chain, in eval mode, images to features, in the order they run.

    Constants are float64 and not rounded; weights of binary convolutions have the network's type.
    """
    chain = backbone.chain()
    assert chain is not None
    layers: list[Layer] = [_stem(backbone, chain)]
    after = np.zeros(chain.stem.out_channels)
    for name, half in chain.layers:
        layers.append(_binary(name, half, after))
        after = _float64(half.activation.after)
    layers.append(GlobalMean("pool", after))
    if chain.feature_layer is not None:
        linear = chain.feature_layer
        layers.append(linear_layer("feature_layer", linear.weight, linear.bias, relu=True))
    return tuple(layers)


def linear_layer(name: str, weight: Tensor, bias: Tensor, *, relu: bool) -> Linear:
    """weight: (out, in); bias: (out,)."""
    return Linear(name, relu, _float64(weight), _float64(bias))


def _stem(backbone: Backbone, chain: Chain) -> Convolution:
    gain, offset = _affine(chain.stem_norm)
    # As the network divides: its float32 0.229 is not the setting's.
    mean, std = (_float64(constant).reshape(3) for constant in (backbone.mean, backbone.std))
    weight = _float64(chain.stem.weight).transpose(0, 2, 3, 1) / std * gain[:, None, None, None]
    bias = offset - (weight * mean).sum(axis=(1, 2, 3))
    return Convolution("stem", chain.stem.stride[0], weight, bias, mean)


def _binary(name: str, half: Half, after: Array) -> BinaryConvolution:
    """after: (in,), the constant that the map before this layer lacks."""
    convolution, activation = half.convolution, half.activation
    gain, offset = _affine(half.norm)
    weight = convolution.weight.detach()
    if convolution.precision == Precision.BINARY:
        gain = gain * _float64(weight_scale(weight.double())).reshape(-1)
        weight = hard_sign(weight)
    repeat = len(weight) // len(after)
    return BinaryConvolution(
        name=name,
        stride=convolution.stride,
        shortcut=True,
        weight=weight.cpu().permute(0, 2, 3, 1).contiguous().numpy(),
        threshold=-_float64(convolution.sign.shift) - after,
        multiplier=gain,
        bias=offset + _float64(activation.before) + np.tile(after, repeat),
        slope=_float64(activation.slope),
    )


def _affine(norm: nn.BatchNorm2d) -> tuple[Array, Array]:
    """BN in eval mode as gain · x + offset, each (channels,)."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    gain = _float64(norm.weight) / np.sqrt(_float64(norm.running_var) + norm.eps)
    return gain, _float64(norm.bias) - gain * _float64(norm.running_mean)


def _float64(tensor: Tensor) -> Array:
    return tensor.detach().to("cpu", torch.float64, copy=True).numpy()
