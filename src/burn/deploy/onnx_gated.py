"""Layers of BNext and the expert network as float modules, for `burn export OUT.onnx`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.deploy.layout import Array
from burn_engine.format import (
    BranchedConvolution,
    Convolution,
    GatedConvolution,
    Kernel,
    Linear,
    Matrix,
)


def constant(values: Array) -> nn.Parameter:
    """Return values as a parameter that is not trained."""
    return nn.Parameter(torch.from_numpy(values).float().contiguous(), requires_grad=False)


def map_constant(values: Array) -> nn.Parameter:
    """Return a parameter (channels, 1, 1) from values (channels,)."""
    return constant(values[:, None, None])


class Gated(nn.Module):
    """A gated_convolution of the packed format, with weights of ±1.

    All its experts are computed and one is taken: a graph has no convolution whose weights depend
    on the image and which takes a batch of any size.
    """

    def __init__(self, layer: GatedConvolution) -> None:
        super().__init__()
        weight = layer.weight.transpose(0, 3, 1, 2) * layer.multiplier[:, None, None, None]
        self.weights = nn.ParameterList(map(constant, np.split(weight, layer.experts)))
        self.stride, self.padding, self.groups = layer.stride, weight.shape[-1] // 2, layer.groups
        self.repeat, self.gate_of, self.product = layer.repeat, layer.gate_of, layer.product
        self.threshold = map_constant(layer.threshold)
        self.bias, self.inner_slope = constant(layer.bias), constant(layer.inner_slope)
        self.scale, self.shift = map_constant(layer.scale), map_constant(layer.shift)
        self.slope = constant(layer.slope)
        self.mix = None if layer.mix is None else constant(layer.mix)
        self.shortcut_slope = None
        if layer.shortcut_slope is not None:
            self.shortcut_slope = constant(layer.shortcut_slope)
        self.choice = None if layer.choice is None else linear(layer.choice)
        self.down = None if layer.gate is None else linear(layer.gate.down.matrix())
        self.up = None if layer.gate is None else linear(layer.gate.up.matrix())
        self.has_shortcut = layer.shortcut
        self.sides = nn.ModuleList(_Dense(side, side.slope) for side in layer.side)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3))
        read = torch.cat([x] * self.repeat, dim=1) if self.repeat > 1 else x
        signs = torch.where(read >= self.threshold, 1.0, -1.0)
        sums = [F.conv2d(signs, w, None, self.stride, self.padding, 1, self.groups)
                for w in self.weights]  # fmt: skip
        y = sums[0]
        if self.choice is not None:
            chosen = F.one_hot(self.choice(means).argmax(dim=1), len(sums)).to(x.dtype)
            stacked = torch.stack(sums, dim=1)
            y = (stacked * chosen[:, :, None, None, None]).sum(dim=1)
        u = F.prelu(y + self.bias[:, None, None], self.inner_slope)
        pooled = self._pool(x)
        out = u * self.scale
        if self.down is not None and self.up is not None:
            if self.mix is not None:
                repeated = self._repeat(pooled.mean(dim=(2, 3)), u.shape[1])
                means = self.mix * repeated + (1 - self.mix) * u.mean(dim=(2, 3))
            gate = torch.sigmoid(self.up(F.relu(self.down(means))))
            out = out * gate[:, :, None, None]
        if not self.has_shortcut:
            return F.prelu(out + self.shift, self.slope)
        if self.shortcut_slope is None:
            shortcut = pooled
            for side in self.sides:
                shortcut = side(shortcut)
        else:
            shortcut = self._repeat(self._pool(F.prelu(x, self.shortcut_slope)), u.shape[1])
        if self.product:
            out = out * shortcut
        return F.prelu(out + self.shift + shortcut, self.slope)

    def _pool(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            return x
        return F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)

    def _repeat(self, x: Tensor, channels: int) -> Tensor:
        times = channels // x.shape[1]
        return torch.cat([x] * times, dim=1) if times > 1 else x


class Stem(nn.Module):
    """Convolution that subtracts the colour outside the image first, as ONNX pads with zeros."""

    def __init__(self, kernel: Convolution | Kernel, colour: Array, stride: int) -> None:
        super().__init__()
        self.colour = map_constant(colour)
        self.weight = constant(kernel.weight.transpose(0, 3, 1, 2))
        self.bias = constant(kernel.bias + (kernel.weight * colour).sum(axis=(1, 2, 3)))
        self.stride, self.padding = stride, kernel.weight.shape[1] // 2

    def forward(self, images: Tensor) -> Tensor:
        x = images - self.colour
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)


class Branched(nn.Module):
    """A branched_convolution of the packed format."""

    def __init__(self, layer: BranchedConvolution) -> None:
        super().__init__()
        self.first = Stem(layer.first, layer.padding, layer.stride)
        self.second_stride = layer.second_stride
        self.narrow, self.last = _Dense(layer.narrow), _Dense(layer.last)
        self.widen = constant(layer.widen.weight.transpose(0, 3, 1, 2))
        self.widen_bias = constant(layer.widen.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.first(images))
        padding = self.widen.shape[-1] // 2
        narrow = self.narrow(x)
        wide = F.conv2d(narrow, self.widen, self.widen_bias, self.second_stride, padding)
        largest = F.max_pool2d(x, 3, self.second_stride, 1)
        return self.last(torch.cat([F.relu(wide), largest], dim=1))


class _Dense(nn.Module):
    """1×1 convolution and PReLU, or ReLU without slopes."""

    def __init__(self, matrix: Matrix, slope: Array | None = None) -> None:
        super().__init__()
        self.weight, self.bias = constant(matrix.weight[:, :, None, None]), constant(matrix.bias)
        self.slope = constant(np.zeros(len(matrix.bias)) if slope is None else slope)

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(F.conv2d(x, self.weight, self.bias), self.slope)


def linear(matrix: Matrix | Linear) -> nn.Linear:
    """Return a matrix as a module."""
    made = nn.Linear(matrix.weight.shape[1], len(matrix.weight))
    made.weight, made.bias = constant(matrix.weight), constant(matrix.bias)
    return made
