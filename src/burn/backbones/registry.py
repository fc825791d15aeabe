"""Functions that check, describe and build backbones by name."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BACKBONES, BackboneEntry, is_binary
from burn.backbones.names import require_known
from burn.backbones.plan import MOST_BLOCKS, REACTNETS
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.runtime.hardware import memory_bytes

if TYPE_CHECKING:
    from burn.backbones.base import Backbone


def build_backbone(config: BackboneConfig, precision: Precision) -> Backbone:
    """Return a backbone in channels-last format, initialized from torch's global random state.

    Raises:
        UserError: Name, width, strides and precision do not go together, or the network is too
            large for this machine's memory.
    """
    check_backbone(config)
    import torch

    _check_memory(config, precision)
    backbone = _build(config, precision)
    # Not by `Module.to`, which fails where a layer has weights of five dimensions.
    for tensor in (*backbone.parameters(), *backbone.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return backbone


def describe_backbone(config: BackboneConfig, precision: Precision) -> Backbone:
    """Return the backbone on torch's meta device, with names and shapes but without weights.

    It takes no memory, whatever its size, and draws no random numbers.
    """
    check_backbone(config)
    import torch  # only for a backbone that there is

    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return _build(config, precision)


def _build(config: BackboneConfig, precision: Precision) -> Backbone:
    if precision != Precision.FLOAT and not is_binary(config.name):
        raise UserError(f"backbone {config.name} has no binary layers: train it in one stage")
    entry = BACKBONES.get(config.name)
    if entry is None:
        # timm is slow to import, so it is imported only where a network needs it.
        from burn.backbones.float import FloatBackbone

        return FloatBackbone(config)
    built = entry.build(config, precision)
    if entry.plugin is not None:
        _check_built(built, entry)
    return built


def _check_built(built: Any, entry: BackboneEntry) -> None:
    """Raise UserError unless a plugin has built a backbone of the name that it registered."""
    from burn.backbones.base import Backbone

    if not isinstance(built, Backbone):
        raise UserError(f"backbone {entry.name}: a {type(built).__name__} is not a burn.Backbone")
    if built.config.name != entry.name:
        raise UserError(
            f"backbone {entry.name}: it must give burn.Backbone the config that it is called with, "
            f"not one named {built.config.name}"
        )


# By all that it follows from. A description takes as long as a small network, and a run builds the
# same ones several times.
_STATE_BYTES: dict[tuple[object, ...], int] = {}


def _check_memory(config: BackboneConfig, precision: Precision) -> None:
    """Raise UserError for a network of which this machine cannot hold two copies in memory."""
    import torch

    key = (repr(config), precision, BACKBONES.get(config.name), torch.get_default_dtype())
    if key not in _STATE_BYTES:
        state = describe_backbone(config, precision).state_dict()
        _STATE_BYTES[key] = sum(t.numel() * t.element_size() for t in state.values())
    size, memory = _STATE_BYTES[key], memory_bytes()
    if memory is not None and 2 * size > memory:
        raise UserError(
            f"backbone {config.name} of width {config.width:g} takes {size / 1e9:,.1f} GB; this "
            f"machine has {memory / 1e9:,.1f} GB of memory, and two copies must fit into it"
        )


def check_backbone(config: BackboneConfig) -> None:
    """Raise UserError for a setting that is out of range or that the architecture does not have."""
    if not 0 < config.width <= 16:
        raise UserError(f"backbone.width {config.width} is not in (0, 16]")
    if config.stem_stride not in (None, 1, 2):
        raise UserError(f"backbone.stem_stride {config.stem_stride} is not 1 or 2")
    for name in ("stage_strides", "resnet_strides"):
        strides = getattr(config, name) or ()
        if any(stride not in (1, 2) for stride in strides):
            raise UserError(f"backbone.{name} {list(strides)}: each must be 1 or 2")
    if not 0 < config.temperature <= 1:
        raise UserError(f"backbone.temperature {config.temperature} is not in (0, 1]")
    if not 1 <= config.experts <= 64:
        raise UserError(f"backbone.experts {config.experts} is not in 1 … 64")
    if min(config.std) <= 0:
        raise UserError(f"backbone.std {list(config.std)}: each must be above 0")
    if any(not 1 <= depth <= MOST_BLOCKS for depth in config.depths or ()):
        depths = list(config.depths or ())
        raise UserError(f"backbone.depths {depths}: each must be in 1 … {MOST_BLOCKS}")
    if config.name in REACTNETS and config.resnet_strides:
        raise UserError(f"resnet_strides belong to float ResNets; {config.name} has stage_strides")
    entry = BACKBONES.get(config.name)
    if entry is None:
        require_known(config.name)
        if config.stage_strides != BackboneConfig().stage_strides:
            raise UserError(f"stage_strides belong to binary networks, not to {config.name}")
        if config.feature_layer:
            raise UserError(f"feature_layer belongs to the reactnet networks, not to {config.name}")
        for name in ("depths", "temperature", "experts"):
            if getattr(config, name) != getattr(BackboneConfig, name):
                raise UserError(f"backbone {config.name} has no setting {name}")
    else:
        used = entry.settings | {"name", "mean", "std", "feature_norm"}  # four that all have
        for field in fields(config):
            if field.name not in used and getattr(config, field.name) != field.default:
                raise UserError(f"backbone {config.name} has no setting {field.name}")
    if config.feature_norm and config.feature_layer:
        raise UserError(
            "backbone.feature_layer needs backbone.feature_norm false: the features behind it are "
            "not normalized"
        )
