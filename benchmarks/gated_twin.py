"""BNext and the expert network in ordinary operations, the peers of `benchmarks/gated.py`.

Each layer is computed as the papers write it: BNext's gate from the mixture of two maps, an expert
layer's weights as the mixture of all experts by one-hot shares. Signs and weights have the
surrogates of `twin.py`, which autograd differentiates; maps stay in PyTorch's default memory order,
and nothing is fused or recomputed. tests/test_twin.py compares features and gradients with burn's.
"""

from __future__ import annotations

import copy
from types import MethodType

import torch
from torch import Tensor
from torch.nn import functional as F
from twin import SignActivation

from burn.backbones.base import Backbone
from burn.backbones.bnext import MixedLayer
from burn.backbones.expert import ExpertLayer


def gated_twin(network: Backbone) -> Backbone:
    """Return a copy of the network with the same weights, whose layers are written out plainly.

    Args:
        network: BNext at a temperature of 0, or the expert network, at precision BINARY and with
            the piecewise polynomial gradient of the sign.
    """
    twin = copy.deepcopy(network)
    twin.normalize = MethodType(_normalize, twin)  # type: ignore[method-assign]
    for module in twin.modules():
        if isinstance(module, MixedLayer):
            module.forward = MethodType(_mixed_layer, module)  # type: ignore[method-assign]
        elif isinstance(module, ExpertLayer):
            module.forward = MethodType(_expert_layer, module)  # type: ignore[method-assign]
    return twin


def _normalize(self: Backbone, images: Tensor) -> Tensor:
    return (images.to(self.mean.dtype) / 255 - self.mean) / self.std


def _straight_through(value: Tensor, weight: Tensor) -> Tensor:
    """Return `value` with the gradient of the weight clipped to -1 … 1."""
    clipped = weight.clamp(-1, 1)
    return value.detach() - clipped.detach() + clipped


def _mixed_layer(self: MixedLayer, x: Tensor) -> Tensor:
    shift, weight = self.convolution.sign.shift, self.convolution.weight
    signs = SignActivation()(x + shift.view(1, -1, 1, 1).expand_as(x))
    scale = weight.abs().mean(dim=(1, 2, 3), keepdim=True).detach()
    binary = _straight_through(scale * torch.sign(weight), weight)
    y = F.conv2d(signs, binary, stride=self.stride, padding=weight.shape[-1] // 2)
    y = self.activation(self.norm(y))
    pooled = self.pool(x)
    y = y * self.gate(self.mix(pooled, y).mean(dim=(2, 3)))
    if self.shortcut_activation is None:
        return self.second_norm(y) + pooled
    shortcut = self.pool(self.shortcut_activation(x))
    return self.second_norm(y * shortcut) + shortcut


def _expert_layer(self: ExpertLayer, x: Tensor) -> Tensor:
    z = self.norm(x)
    means = z.mean(dim=(2, 3))
    convolution = self.convolution
    scores = convolution.choice(means)
    soft = scores.softmax(dim=1)
    chosen = F.one_hot(scores.argmax(dim=1), convolution.experts).to(soft.dtype)
    shares = chosen - soft.detach() + soft
    experts = convolution.weight
    mixed = (shares @ experts.flatten(1)).view(-1, *experts.shape[2:])
    scale = experts.abs().mean(dim=(0, 2, 3, 4)).detach().repeat(len(x))[:, None, None, None]
    binary = _straight_through(scale * torch.sign(mixed), mixed)
    signs = SignActivation()(z)
    y = F.conv2d(
        signs.reshape(1, -1, *x.shape[2:]),
        binary,
        stride=convolution.stride,
        padding=convolution.padding,
        groups=len(x) * convolution.groups,
    )
    y = y.view(len(x), -1, *y.shape[2:]) * convolution.scale.view(1, -1, 1, 1)
    return self.activation(y * self.gate(means))
