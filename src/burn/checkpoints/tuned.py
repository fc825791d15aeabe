"""Checkpoints of fine-tuned networks, which hold the classifier and the names of its classes.

Besides what every checkpoint's description has (`native`), theirs has `classes`, the names of the
outputs of `classifier.weight` and `classifier.bias`, and `finetuned`: what it was fine-tuned from
(`start`: name, fingerprint of the backbone, and its stage, steps and images_seen as far as known),
the settings, the test images' accuracy excluded. `steps`, `images_per_step` and `data` are those of
fine-tuning; `recipe`, `views` and `teacher` those of pretraining, as the network has them from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burn.checkpoints.native import save_checkpoint
from burn.core.types import Precision
from burn.data.view_config import ViewConfig

if TYPE_CHECKING:
    from torch import nn

    from burn.backbones.base import Backbone

STAGE = "stage1.safetensors"  # name in a run's folder


def tuned_meta(
    before: Mapping[str, Any],
    *,
    classes: Sequence[str],
    data: Mapping[str, Any],
    steps: int,
    images_per_step: int,
    seed: int,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the description of a fine-tuned network.

    `before` is that of the network before, or of `plain_meta`; `data` has name, number and
    fingerprint of the labelled images, and `about` how it was fine-tuned, as plain JSON values.
    """
    kept = ("precision", "backbone", "views", "recipe", "teacher", "init", "plugins")
    return {
        **{name: before[name] for name in kept if name in before},
        "stage": 1,
        "num_stages": 1,
        "steps": steps,
        "images_per_step": images_per_step,
        "max_steps": None,
        "seed": seed,
        "data": dict(data),
        "labels": data["name"],
        "classes": list(classes),
        "finetuned": dict(about),
    }


def plain_meta(
    name: str, backbone: Backbone, views: ViewConfig, labels: str | None = None
) -> dict[str, Any]:
    """Return the description that a network without one begins from, such as one from elsewhere.

    `labels` names the data whose labels it was trained with, if that is known.
    """
    precision = getattr(backbone, "precision", Precision.FLOAT)  # binary networks have it
    about = {"precision": precision.value, "recipe": {"name": name}, "labels": labels}
    return {**about, "backbone": asdict(backbone.config), "views": asdict(views)}


def save_tuned(path: Path, backbone: Backbone, head: nn.Linear, meta: dict[str, Any]) -> None:
    """Write a fine-tuned network with its classifier, and `tuned_meta`. Raises OSError."""
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    weights |= {f"classifier.{name}": tensor for name, tensor in head.state_dict().items()}
    save_checkpoint(path, weights, meta)
