"""Float backbones: any architecture of timm, without its classifier."""

from __future__ import annotations

import difflib
from typing import Any, cast

import timm
import torch
from timm.models.resnet import ResNet
from torch import Tensor, nn

from burn.backbones.base import Backbone, BackboneConfig
from burn.errors import UserError

_RESNET_CHANNELS = (64, 128, 256, 512)


class FloatBackbone(Backbone):
    """A timm model as a feature extractor; `feature map -> vector` is the model's own pooling."""

    def __init__(self, config: BackboneConfig) -> None:
        if not timm.is_model(config.name):
            near = difflib.get_close_matches(config.name, ["reactnet_a", *timm.list_models()], n=3)
            hint = f"; near: {', '.join(near)}" if near else ""
            raise UserError(f"unknown backbone {config.name!r}: reactnet_a or a timm name{hint}")
        options: dict[str, Any] = {}
        if config.width != 1:
            options["channels"] = tuple(max(8, round(config.width * c)) for c in _RESNET_CHANNELS)
        try:
            model = timm.create_model(config.name, pretrained=False, num_classes=0, **options)
        except TypeError as error:
            raise UserError(f"backbone {config.name} has no settable width") from error
        except RuntimeError as error:
            raise UserError(f"backbone {config.name}: {error}") from error
        if config.stem_stride is not None:
            _shrink_stem(model, config)
        super().__init__(config, num_features=cast(int, model.num_features))
        self.model = model

    @property
    def fixed_size(self) -> int | None:
        about = cast(Any, self.model).pretrained_cfg
        return int(about["input_size"][-1]) if about.get("fixed_input_size") else None

    def forward_features(self, images: Tensor) -> Tensor:
        return self.model.forward_features(self.normalize(images))  # type: ignore[operator]

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


def _shrink_stem(model: nn.Module, config: BackboneConfig) -> None:
    if not isinstance(model, ResNet) or not isinstance(model.conv1, nn.Conv2d):
        raise UserError(f"backbone {config.name} has no settable stem: leave stem_stride unset")
    stem = nn.Conv2d(3, model.conv1.out_channels, 3, config.stem_stride or 1, 1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1, model.maxpool = stem, nn.Identity()


def float_backbone(config: BackboneConfig) -> FloatBackbone:
    """The float network of `config`, channels last. Raises UserError for a name timm lacks."""
    return FloatBackbone(config).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
