"""Float backbones: any architecture of timm, without its classifier."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import timm
import torch
from timm.models import PretrainedCfg
from timm.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BACKBONES
from burn.backbones.folded import fold
from burn.backbones.names import unknown
from burn.core.errors import UserError

_RESNET_CHANNELS = (64, 128, 256, 512)


class FloatBackbone(Backbone):
    """timm model as a feature extractor, with the model's own pooling.

    A transformer pools by its class token or by the mean of its tokens. Its position embeddings are
    resampled to the images' size where the architecture supports that. UserError says what timm
    does not have, or cannot build with these settings.
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
        except TypeError:
            model = None
        # Others may take channels, but have other numbers of them.
        if model is None or (options and not isinstance(model, ResNet)):
            raise UserError(f"backbone {config.name} has no settable width: give width 1")
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
        network = fold(self.model, dtype)
        if network is None:
            return None

        def part(images: Tensor) -> Tensor:
            x = network(self.normalize(images).to(dtype))
            pooled = self.pool(x.float() if dtype == torch.bfloat16 else x)
            return self.normalize_features(pooled)

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            return torch.cat([part(some) for some in images.split(network.batch(images))])

        return features

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
    """Return timm's configuration of an architecture, or of its weights for NAME.TAG.

    Raises:
        UserError: timm has no such name; the message lists similar ones.
    """
    architecture, _, tag = name.partition(".")
    try:
        if timm.is_model(name) and (about := timm.get_pretrained_cfg(name)):
            return about
    except RuntimeError:
        tags = timm.list_pretrained(f"{architecture}.*")
        raise unknown(name, f"timm has no {tag} of {architecture}", tags) from None
    raise unknown(name, "give reactnet_a or a timm name", (*BACKBONES, *timm.list_models()))


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
