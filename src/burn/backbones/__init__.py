"""Backbones by name."""

from __future__ import annotations

import torch

from burn.backbones.base import Backbone, BackboneConfig
from burn.errors import UserError
from burn.types import Precision

__all__ = ["Backbone", "BackboneConfig", "build_backbone", "is_binary"]


def is_binary(name: str) -> bool:
    """Whether the backbone of this name has binary layers (and so training stages)."""
    return name == "reactnet_a"


def build_backbone(config: BackboneConfig, precision: Precision) -> Backbone:
    """A freshly initialised backbone (by torch's global random state), channels last.

    Raises UserError where name, width, strides and precision do not go together.
    """
    _check(config)
    if not is_binary(config.name):
        # timm is slow to import: a binary network does not wait for it.
        from burn.backbones.float import float_backbone

        if precision != Precision.FLOAT:
            raise UserError(f"backbone {config.name} has no binary layers: train it in one stage")
        return float_backbone(config)
    from burn.backbones.reactnet import ReActNet

    return ReActNet(config, precision).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _check(config: BackboneConfig) -> None:
    if not 0 < config.width <= 16:
        raise UserError(f"width {config.width} is not in (0, 16]")
    if config.stem_stride not in (None, 1, 2):
        raise UserError(f"stem_stride {config.stem_stride} is not 1 or 2")
    if any(stride not in (1, 2) for stride in config.stage_strides):
        raise UserError(f"stage_strides {list(config.stage_strides)}: each must be 1 or 2")
    if min(config.std) <= 0:
        raise UserError(f"std {list(config.std)}: each must be above 0")
    if not is_binary(config.name):
        if config.stage_strides != BackboneConfig().stage_strides:
            raise UserError(f"stage_strides belong to reactnet_a, not to {config.name}")
        if config.feature_layer:
            raise UserError(f"feature_layer belongs to reactnet_a, not to {config.name}")
