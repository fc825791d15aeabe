"""Checkpoints to pack and export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from burn.backbones.base import Backbone
from burn.checkpoints.native import save_checkpoint
from burn.core.types import Precision
from burn.data.view_config import ViewConfig

# Settings that between them have every stride, odd maps, channels that fill no byte, and the rest.
NETWORKS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 32),
    "all strides 2, odd maps": ({"stage_strides": (2, 2, 2, 2)}, 67),
    "9 channels, fewer blocks": (
        {"name": "reactnet_m", "width": 0.28125, "stage_strides": (2, 1, 2, 2)}, 35
    ),
    "twice as wide, stem at 1": (
        {"width": 0.5, "stem_stride": 1, "stage_strides": (2, 2, 2, 2)}, 29
    ),
    "narrowest": ({"width": 0.0625, "stage_strides": (1, 2, 2, 2)}, 24),
    "normalized features": ({"feature_norm": True}, 32),
    "feature layer, other colours": (
        {"feature_layer": True, "mean": (0.1, 0.5, 0.9), "std": (0.5, 0.1, 0.3)}, 32
    ),
}  # fmt: skip


def save(
    file: Path, backbone: Backbone, *, size: int = 32, heads: Mapping[str, Tensor] | None = None,
    resize: int | None = None,
) -> Path:  # fmt: skip
    """A checkpoint as training writes it, as far as deployment goes by it."""
    precision: Any = getattr(backbone, "precision", Precision.FLOAT)
    meta = {
        "backbone": asdict(backbone.config),
        "precision": precision.value,
        "stage": 2 if precision == Precision.BINARY else 1,
        "steps": 7,
        "recipe": {"name": "burn_\x1bsmall"},
        "views": asdict(ViewConfig(size=size, resize=resize)),
    }
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    save_checkpoint(file, weights | dict(heads or {}), meta)
    return file
