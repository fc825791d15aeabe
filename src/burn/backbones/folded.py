"""Folded float networks: BN becomes part of the convolutions, for a network that does not train.

It knows timm's ResNets of plain blocks, and the networks of its class EfficientNet without
squeeze-and-excitation whose activation is ReLU or ReLU6, such as EfficientNet-lite and MobileNetV2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Literal, cast

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.norm_act import BatchNormAct2d, SyncBatchNormAct
from timm.layers.padding import pad_same
from timm.models._efficientnet_blocks import ConvBnAct, DepthwiseSeparableConv, InvertedResidual
from timm.models.efficientnet import EfficientNet
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from burn.layers.sync_norm import SyncNorm

_Activation = Literal["none", "relu", "relu6"]
_ACTIVATIONS: dict[type[nn.Module], _Activation] = {nn.ReLU: "relu", nn.ReLU6: "relu6"}
# Synchronized BN in eval mode is BN: a run on several GPUs has converted the teacher too.
_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, SyncNorm)
_ACTIVATED_NORMS = (BatchNormAct2d, SyncBatchNormAct)
# Pixels that a network takes at once on a CPU. ResNets take 8 images of 224×224: their maps then
# stay small enough for the allocator to use the same memory again; 16 images take 6 % longer.
# The maps of the others are six times as wide, and fit the second-level cache in smaller parts.
_RESNET_PIXELS = 8 * 224 * 224
_EFFICIENTNET_PIXELS = 3 * 224 * 224


class FoldedNetwork:
    """Function from normalized images (batch, 3, height, width) to the network's last map.

    `pixels` is the number of pixels of the images that are best computed at once on a CPU.
    """

    def __init__(self, parts: Iterable[Callable[[Tensor], Tensor]], pixels: int) -> None:
        self._parts = list(parts)
        self._pixels = pixels

    def __call__(self, images: Tensor) -> Tensor:
        for part in self._parts:
            images = part(images)
        return images

    def batch(self, images: Tensor) -> int:
        """Return the number of images that are best computed at once, for images of this size."""
        if images.device.type != "cpu":
            return max(1, len(images))
        return max(1, self._pixels // (images.shape[2] * images.shape[3]))


def fold(model: nn.Module, dtype: torch.dtype) -> FoldedNetwork | None:
    """Return a faster equivalent of timm's `model.forward_features` in eval mode.

    It copies the weights as they are now, and takes and computes maps of the given dtype. None
    stands for a network with a layer that cannot be folded.
    """
    try:
        if type(model) is ResNet:
            return _fold_resnet(model, dtype)
        if type(model) is EfficientNet:
            return _fold_efficientnet(model, dtype)
    except _UnknownLayer:
        pass
    return None


def _fold_resnet(model: ResNet, dtype: torch.dtype) -> FoldedNetwork:
    stem = [model.conv1, model.bn1, model.act1, model.maxpool]
    parts: list[Callable[[Tensor], Tensor]] = [*_steps(stem, dtype)]
    for block in (b for stage in (1, 2, 3, 4) for b in getattr(model, f"layer{stage}")):
        if type(block) is BasicBlock:
            first = [block.conv1, block.bn1, block.drop_block, block.act1, block.aa]
            last, act = [block.conv2, block.bn2], block.act2
        elif type(block) is Bottleneck:
            first = [block.conv1, block.bn1, block.act1]
            first += [block.conv2, block.bn2, block.drop_block, block.act2, block.aa]
            last, act = [block.conv3, block.bn3], block.act3
        else:
            raise _UnknownLayer
        if type(act) is not nn.ReLU:
            raise _UnknownLayer
        steps = _steps([*first, *last, block.se, block.drop_path], dtype)
        parts.append(_Residual(steps, _steps([block.downsample], dtype), "relu"))
    return FoldedNetwork(parts, _RESNET_PIXELS)


def _fold_efficientnet(model: EfficientNet, dtype: torch.dtype) -> FoldedNetwork:
    parts: list[Callable[[Tensor], Tensor]] = [*_steps([model.conv_stem, model.bn1], dtype)]
    for block in (b for stage in model.blocks for b in cast(nn.Sequential, stage)):
        if type(block) is ConvBnAct:
            layers = [block.conv, block.bn1, block.aa]
        elif type(block) is DepthwiseSeparableConv:
            layers = [block.conv_s2d, block.bn_s2d, block.conv_dw, block.bn1]
            layers += [block.aa, block.se, block.conv_pw, block.bn2]
        elif type(block) is InvertedResidual:
            layers = [block.conv_s2d, block.bn_s2d, block.conv_pw, block.bn1]
            layers += [block.conv_dw, block.bn2, block.aa, block.se, block.conv_pwl, block.bn3]
        else:
            raise _UnknownLayer
        steps = _steps([*layers, block.drop_path], dtype)
        parts += [_Residual(steps, [], "none")] if block.has_skip else steps
    return FoldedNetwork(
        [*parts, *_steps([model.conv_head, model.bn2], dtype)], _EFFICIENTNET_PIXELS
    )


class _UnknownLayer(Exception):
    """Raised where a network has a layer that cannot be folded."""


class _Convolution:
    """Convolution with BN folded into it, which can add another map and then applies `activation`.

    On a CPU, oneDNN does all of it in one pass, with weights that are laid out for it once.
    """

    activation: _Activation = "none"

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d | None, dtype: torch.dtype) -> None:
        weight, bias = conv.weight.detach(), conv.bias
        if norm is not None:
            if norm.running_mean is None or norm.running_var is None:
                raise _UnknownLayer  # this BN normalizes by the batch's statistics
            weight, bias = fuse_conv_bn_weights(
                weight, bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
        self._weight = weight.detach().to(dtype, memory_format=torch.channels_last)
        self._bias = None if bias is None else bias.detach().to(dtype)
        self._kernel = tuple(conv.kernel_size)
        self._pads = isinstance(conv, Conv2dSame)  # TensorFlow's padding, by the size of the map
        self._settings = conv.padding, conv.stride, conv.dilation, conv.groups
        self._onednn = weight.device.type == "cpu" and _onednn(dtype)
        # oneDNN's ReLU makes 0 of what is not a number, which would hide that a network diverged.
        numbers = [self._weight] if self._bias is None else [self._weight, self._bias]
        if self._onednn and not all(bool(part.isfinite().all()) for part in numbers):
            raise _UnknownLayer
        self._packed = False

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        activation = self.activation
        padding, stride, dilation, groups = self._settings
        if self._pads:
            x = pad_same(x, self._kernel, stride, dilation)  # type: ignore[arg-type]
        if self._onednn:
            if not self._packed:  # oneDNN chooses the layout by the size of the maps
                self._weight = torch.ops.mkldnn._reorder_convolution_weight(
                    self._weight, *self._settings, list(x.shape)
                )
                self._packed = True
            operation = torch.ops.mkldnn._convolution_pointwise
            settings = (self._weight, self._bias, padding, stride, dilation, groups)
            if plus is None:
                return operation(x, *settings, *_ONEDNN_NAMES[activation])
            if plus.shape[2:] == (1, 1):
                # torch 2.11 cannot add maps of one pixel in that pass: "could not create a memory".
                x = operation(x, *settings, *_ONEDNN_NAMES["none"]).add_(plus)
            elif activation != "relu6":
                name = None if activation == "none" else activation
                return operation.binary(x, plus, *settings, "add", 1.0, name, [], "")
            else:
                x = operation.binary(x, plus, *settings, "add", 1.0, None, [], "")
        else:
            x = F.conv2d(x, self._weight, self._bias, stride, padding, dilation, groups)  # type: ignore[arg-type]
            if plus is not None:
                x.add_(plus)
        if activation == "none":
            return x
        return x.relu_() if activation == "relu" else x.clamp_(0, 6)


# Name, numbers and algorithm of an activation after a convolution.
_ONEDNN_NAMES = {
    "none": ("none", [], ""),
    "relu": ("relu", [], ""),
    "relu6": ("hardtanh", [0.0, 6.0], ""),
}


@functools.cache
def _onednn(dtype: torch.dtype) -> bool:
    """Return whether PyTorch's fused oneDNN convolution, whose name is not stable, works."""
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    x, weight = torch.ones(1, 2, 3, 3, dtype=dtype), torch.full((2, 2, 1, 1), -0.5, dtype=dtype)
    settings = [0, 0], [1, 1], [1, 1], 1
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *settings)
        operation = torch.ops.mkldnn._convolution_pointwise
        plain = operation(x, packed, None, *settings, *_ONEDNN_NAMES["none"])
        above = operation(-8 * x, packed, None, *settings, *_ONEDNN_NAMES["relu6"])
        both = operation.binary(x, 3 * x, packed, None, *settings, "add", 1.0, "relu", [], "")
        sums = operation.binary(x, 3 * x, packed, None, *settings, "add", 1.0, None, [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    right = (plain == -1).all() & (above == 6).all() & (both == 2).all() & (sums == 2).all()
    return bool(right)


_Step = _Convolution | nn.MaxPool2d | nn.AvgPool2d


def _steps(modules: Iterable[nn.Module | None], dtype: torch.dtype) -> list[_Step]:
    """Return consecutive modules as steps, each convolution merged with its BN and activation."""
    layers: list[nn.Module] = []
    for module in modules:
        inside = module if isinstance(module, nn.Sequential) else [module]
        for part in inside:
            if isinstance(part, _ACTIVATED_NORMS):
                layers += [part, cast(nn.Module, part.drop), cast(nn.Module, part.act)]
            elif part is not None:
                layers.append(part)
    layers = [layer for layer in layers if not isinstance(layer, nn.Identity)]
    steps: list[_Step] = []
    while layers:
        layer = layers.pop(0)
        if type(layer) in (nn.Conv2d, Conv2dSame) and layer.padding_mode == "zeros":
            norm = None
            if layers and (type(layers[0]) in _NORMS or isinstance(layers[0], _ACTIVATED_NORMS)):
                norm = layers.pop(0)
            convolution = _Convolution(
                cast(nn.Conv2d, layer), cast(nn.BatchNorm2d | None, norm), dtype
            )
            if layers and type(layers[0]) in _ACTIVATIONS:
                convolution.activation = _ACTIVATIONS[type(layers.pop(0))]
            steps.append(convolution)
        elif type(layer) in (nn.MaxPool2d, nn.AvgPool2d):
            steps.append(cast(_Step, layer))
        else:
            raise _UnknownLayer
    return steps


class _Residual:
    """Steps whose output is added to a shortcut; an activation follows the sum."""

    def __init__(self, steps: list[_Step], shortcut: list[_Step], activation: _Activation) -> None:
        *self._first, self._last = steps
        self._shortcut = shortcut
        self._sums = isinstance(self._last, _Convolution) and self._last.activation == "none"
        if self._sums:
            cast(_Convolution, self._last).activation = activation
        elif activation != "none":
            raise _UnknownLayer

    def __call__(self, x: Tensor) -> Tensor:
        shortcut = x
        for step in self._shortcut:
            shortcut = step(shortcut)
        for step in self._first:
            x = step(x)
        if self._sums:
            return cast(_Convolution, self._last)(x, shortcut)
        return self._last(x).add_(shortcut)
