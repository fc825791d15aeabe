"""Float backbones: any architecture of timm, without its classifier."""

from __future__ import annotations

import difflib
from contextlib import suppress
from typing import Any, cast

import timm
import torch
from timm.models import PretrainedCfg
from timm.models.resnet import ResNet
from torch import Tensor, nn

from burn.backbones.base import Backbone, BackboneConfig
from burn.errors import UserError

_RESNET_CHANNELS = (64, 128, 256, 512)


class FloatBackbone(Backbone):
    """A timm model as a feature extractor; `feature map -> vector` is the model's own pooling.

    A transformer's own pooling is its class token or the mean of its tokens. Its position
    embeddings are resampled to the images' size where the architecture knows how.
    """

    def __init__(self, config: BackboneConfig) -> None:
        about = published(config.name)
        options: dict[str, Any] = {}
        if config.width != 1:
            options["channels"] = tuple(max(8, round(config.width * c)) for c in _RESNET_CHANNELS)
        model = None
        if about.fixed_input_size:
            with suppress(TypeError):  # an architecture that does not know how
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
        except AssertionError as error:  # timm's, of a size that does not suit
            raise UserError(f"backbone {self.config.name}: {error}") from error

    def pool(self, features: Tensor) -> Tensor:
        return self.model.forward_head(features, pre_logits=True).float()  # type: ignore[operator]

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
    """What timm says of an architecture, or of its weights where the name has a tag (NAME.TAG).

    Raises UserError for a name that timm lacks, with those near it.
    """
    known, _, tag = name.partition(".")
    try:
        if timm.is_model(name) and (about := timm.get_pretrained_cfg(name)):
            return about
        candidates, kind = ["reactnet_a", *timm.list_models()], "reactnet_a or a timm name"
    except RuntimeError:
        candidates, kind = timm.list_pretrained(f"{known}.*"), f"timm has no {tag} of {known}"
    near = difflib.get_close_matches(name, candidates, n=3, cutoff=0.5)
    hint = f"; near: {', '.join(near)}" if near else ""
    raise UserError(f"unknown backbone {name!r}: {kind}{hint}")


def _create(name: str, **options: Any) -> nn.Module:
    try:
        return timm.create_model(name, pretrained=False, num_classes=0, **options)
    except RuntimeError as error:
        raise UserError(f"backbone {name}: {error}") from error


def _shrink_stem(model: nn.Module, config: BackboneConfig) -> None:
    if not isinstance(model, ResNet) or not isinstance(model.conv1, nn.Conv2d):
        raise UserError(f"backbone {config.name} has no settable stem: leave stem_stride unset")
    stem = nn.Conv2d(3, model.conv1.out_channels, 3, config.stem_stride or 1, 1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1, model.maxpool = stem, nn.Identity()


def float_backbone(config: BackboneConfig) -> FloatBackbone:
    """The float network of `config`, channels last. Raises UserError for a name timm lacks."""
    return FloatBackbone(config).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
