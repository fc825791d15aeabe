"""Float backbones: any architecture of timm, without its classifier."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import timm
import torch
from timm.models import PretrainedCfg
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_weights

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BACKBONES
from burn.core.errors import UserError
from burn.layers.sync_norm import SyncNorm

_RESNET_CHANNELS = (64, 128, 256, 512)
# Synchronized BN in eval mode is BN: a run on several GPUs has converted the teacher too.
_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, SyncNorm)
# Pixels that a folded network takes at once on a CPU, 8 images of 224×224: its maps then stay small
# enough for the allocator to use the same memory again. 16 images at once take 6 % longer.
_CHUNK = 8 * 224 * 224


class FloatBackbone(Backbone):
    """timm model as a feature extractor, with the model's own pooling.

    A transformer pools by its class token or by the mean of its tokens. Its position embeddings are
    resampled to the images' size where the architecture supports that.

    Args:
        config: Settings whose `name` is an architecture of timm.

    Raises:
        UserError: timm has no such architecture, or it cannot be built with these settings.
    """

    def __init__(self, config: BackboneConfig) -> None:
        about = published(config.name)
        options: dict[str, Any] = {}
        if config.width != 1:
            options["channels"] = tuple(max(8, round(config.width * c)) for c in _RESNET_CHANNELS)
        model = None
        if about.fixed_input_size:
            with suppress(TypeError):  # the architecture has no such option
                model = _create(config.name, dynamic_img_size=True, **options)
        self._is_fixed = about.fixed_input_size and model is None
        try:
            model = model or _create(config.name, **options)
        except TypeError as error:
            raise UserError(
                f"backbone {config.name} has no settable width: give width 1"
            ) from error
        if config.stem_stride is not None:
            _shrink_stem(model, config)
        if config.resnet_strides is not None:
            _set_strides(model, config)
        # The pooled features' width, which in some networks is not the last map's.
        width = getattr(model, "head_hidden_size", None) or model.num_features
        super().__init__(config, num_features=cast(int, width))
        self.model = model

    @property
    def fixed_size(self) -> int | None:
        about = cast(Any, self.model).pretrained_cfg
        return int(about["input_size"][-1]) if self._is_fixed else None

    def forward_features(self, images: Tensor) -> Tensor:
        try:
            return self.model.forward_features(self.normalize(images))  # type: ignore[operator]
        except AssertionError as error:  # timm checks the size of images
            raise UserError(f"backbone {self.config.name}: {error}") from error

    def pool(self, features: Tensor) -> Tensor:
        return self.model.forward_head(features, pre_logits=True).float()  # type: ignore[operator]

    def folded(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
        if type(self.model) is not ResNet:
            return None
        try:
            return _FoldedResNet(self, self.model, dtype)
        except _UnknownLayer:
            return None

    def trunk(self, images: Tensor) -> Tensor:
        model = self._resnet()
        x = model.maxpool(model.act1(model.bn1(model.conv1(self.normalize(images)))))
        return model.layer3(model.layer2(model.layer1(x)))

    def top(self, features: Tensor) -> Tensor:
        return self._resnet().layer4(features)

    def _resnet(self) -> Any:
        if not isinstance(self.model, ResNet):
            raise UserError(self._no_stages())
        return self.model


def published(name: str) -> PretrainedCfg:
    """Return timm's configuration of an architecture, or of its weights for a name with a tag.

    Args:
        name: NAME or NAME.TAG.

    Raises:
        UserError: timm has no such name; the message lists similar ones.
    """
    known, _, tag = name.partition(".")
    try:
        if timm.is_model(name) and (about := timm.get_pretrained_cfg(name)):
            return about
        candidates, kind = [*BACKBONES, *timm.list_models()], "give reactnet_a or a timm name"
    except RuntimeError:
        candidates, kind = timm.list_pretrained(f"{known}.*"), f"timm has no {tag} of {known}"
    near = difflib.get_close_matches(name, candidates, n=3, cutoff=0.5)
    hint = f"; similar names: {', '.join(near)}" if near else ""
    raise UserError(f"unknown backbone {name!r}: {kind}{hint}")


def _create(name: str, **options: Any) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=False, num_classes=0, **options)
    except TypeError:  # the architecture has no such option
        raise
    except Exception as error:  # mostly a width that its layers cannot have
        reason = str(error).partition("\n")[0][:120]
        channels = options.get("channels")
        with_what = f" with {list(channels)} channels" if channels else ""
        raise UserError(f"backbone {name} cannot be built{with_what}: {reason}") from error


def _shrink_stem(model: nn.Module, config: BackboneConfig) -> None:
    if not isinstance(model, ResNet) or not isinstance(model.conv1, nn.Conv2d):
        raise UserError(f"backbone {config.name} has no settable stem: leave stem_stride unset")
    stem = nn.Conv2d(3, model.conv1.out_channels, 3, config.stem_stride or 1, 1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1, model.maxpool = stem, nn.Identity()


def _set_strides(model: nn.Module, config: BackboneConfig) -> None:
    """Set the strides of a plain ResNet's stages to those of the configuration."""
    assert config.resnet_strides is not None
    if type(model) is not ResNet:
        raise UserError(f"backbone {config.name} is not a ResNet: leave resnet_strides unset")
    for number, stride in enumerate(config.resnet_strides, start=1):
        first = cast(Any, getattr(model, f"layer{number}")[0])
        shrinking = first.conv1 if isinstance(first, BasicBlock) else first.conv2
        branch = list(first.downsample.children()) if first.downsample is not None else []
        kernels = [layer for layer in branch if isinstance(layer, nn.Conv2d)]
        changed = shrinking.stride != (stride, stride)
        pools = [*branch, first.aa]  # some networks shrink maps by pooling
        simple = len(kernels) == 1 and not any(isinstance(x, nn.AvgPool2d) for x in pools)
        if changed and not simple:
            raise UserError(
                f"resnet_strides {list(config.resnet_strides)}: stage {number} of {config.name} "
                f"has the stride {shrinking.stride[0]}, which cannot be changed"
            )
        if changed:
            shrinking.stride = kernels[0].stride = (stride, stride)


class _UnknownLayer(Exception):
    """Raised where a ResNet has a layer that cannot be folded."""


class _Convolution:
    """Convolution with BN folded into it, which can add another map and apply ReLU.

    On a CPU, oneDNN does all of it in one pass, with weights that are laid out for it once.
    """

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
        self._settings = conv.padding, conv.stride, conv.dilation, conv.groups
        self._onednn = weight.device.type == "cpu" and _onednn(dtype)
        self._packed = False

    def __call__(self, x: Tensor, plus: Tensor | None = None, *, relu: bool) -> Tensor:
        padding, stride, dilation, groups = self._settings
        if self._onednn:
            if not self._packed:  # oneDNN chooses the layout by the size of the maps
                self._weight = torch.ops.mkldnn._reorder_convolution_weight(
                    self._weight, *self._settings, list(x.shape)
                )
                self._packed = True
            operation, tail = torch.ops.mkldnn._convolution_pointwise, ([], "")
            settings = (self._weight, self._bias, padding, stride, dilation, groups)
            activation = "relu" if relu else "none"
            if plus is None:
                return operation(x, *settings, activation, *tail)
            activation = "relu" if relu else None
            return operation.binary(x, plus, *settings, "add", 1.0, activation, *tail)
        x = F.conv2d(x, self._weight, self._bias, stride, padding, dilation, groups)  # type: ignore[arg-type]
        if plus is not None:
            x.add_(plus)
        return x.relu_() if relu else x


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
        plain = operation(x, packed, None, *settings, "none", [], "")
        both = operation.binary(x, 3 * x, packed, None, *settings, "add", 1.0, "relu", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return False
    return bool((plain == -1).all() and (both == 2).all())


class _Step:
    """Convolution with or without ReLU, or pooling."""

    def __init__(self, run: _Convolution | nn.Module, *, relu: bool = False) -> None:
        self.run, self.relu = run, relu

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.run, _Convolution):
            return self.run(x, relu=self.relu)
        return self.run(x)


def _steps(modules: Iterable[nn.Module | None], dtype: torch.dtype) -> list[_Step]:
    """Return consecutive modules as steps, each convolution merged with its BN and ReLU."""
    layers: list[nn.Module] = []
    for module in modules:
        inside = module if isinstance(module, nn.Sequential) else [module]
        layers += [part for part in inside if not isinstance(part, nn.Identity | None)]
    steps: list[_Step] = []
    while layers:
        layer = layers.pop(0)
        if type(layer) is nn.Conv2d and layer.padding_mode == "zeros":
            norm = layers.pop(0) if layers and type(layers[0]) in _NORMS else None
            convolution = _Convolution(layer, cast(nn.BatchNorm2d | None, norm), dtype)
            relu = bool(layers) and type(layers[0]) is nn.ReLU
            steps.append(_Step(convolution, relu=relu))
            del layers[: int(relu)]
        elif type(layer) in (nn.MaxPool2d, nn.AvgPool2d):
            steps.append(_Step(layer))
        else:
            raise _UnknownLayer
    return steps


class _FoldedBlock:
    """Residual block of folded convolutions; ReLU follows the sum."""

    def __init__(self, block: BasicBlock | Bottleneck, dtype: torch.dtype) -> None:
        inside = [
            block.conv1,
            block.bn1,
            block.drop_block,
            block.act1,
            block.aa,
            block.conv2,
            block.bn2,
        ]
        act = block.act2
        if isinstance(block, Bottleneck):
            inside = [
                block.conv1,
                block.bn1,
                block.act1,
                block.conv2,
                block.bn2,
                block.drop_block,
                block.act2,
                block.aa,
                block.conv3,
                block.bn3,
            ]
            act = block.act3
        *self.first, last = _steps([*inside, block.se, block.drop_path], dtype)
        if type(act) is not nn.ReLU or not isinstance(last.run, _Convolution) or last.relu:
            raise _UnknownLayer
        self.last = last.run
        self.shortcut = _steps([block.downsample], dtype)

    def __call__(self, x: Tensor) -> Tensor:
        shortcut = x
        for step in self.shortcut:
            shortcut = step(shortcut)
        for step in self.first:
            x = step(x)
        return self.last(x, shortcut, relu=True)


class _FoldedResNet:
    """Function that `Backbone.folded` returns for a ResNet of plain blocks."""

    def __init__(self, backbone: FloatBackbone, model: ResNet, dtype: torch.dtype) -> None:
        self._backbone, self._dtype = backbone, dtype
        stem = [model.conv1, model.bn1, model.act1, model.maxpool]
        self._parts: list[Callable[[Tensor], Tensor]] = [*_steps(stem, dtype)]
        for block in (b for stage in (1, 2, 3, 4) for b in getattr(model, f"layer{stage}")):
            if type(block) not in (BasicBlock, Bottleneck):
                raise _UnknownLayer
            self._parts.append(_FoldedBlock(block, dtype))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return self._features(images)
        size = max(1, _CHUNK // (images.shape[2] * images.shape[3]))
        return torch.cat([self._features(part) for part in images.split(size)])

    def _features(self, images: Tensor) -> Tensor:
        x = self._backbone.normalize(images).to(self._dtype)
        for part in self._parts:
            x = part(x)
        return self._backbone.pool(x.float() if x.dtype == torch.bfloat16 else x)
