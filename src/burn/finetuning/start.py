"""What fine-tuning begins with: linear classifiers on frozen features, of network and teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from burn.core.errors import UserError
from burn.core.types import Features
from burn.data.base import Source
from burn.data.splits import Subset, hold_out
from burn.evaluation.configs import LinearConfig
from burn.evaluation.context import Model, open_model
from burn.evaluation.features import extract_features
from burn.evaluation.linear_layer import cached_batches, top_k, train_linear_at_best_rate
from burn.finetuning.settings import FinetuneConfig
from burn.runtime.compute import uses_bfloat16

_HELD_OUT = 0.1  # share of the images on which a linear classifier's learning rate is chosen
_LARGEST_TEACHER = 224


def linear_start(features: Features, source: Subset, seed: int) -> nn.Linear:
    """Train a linear classifier on frozen features, as linear evaluation with `--augment none`.

    The features are those of plain views of all images of `source`'s source. A tenth of `source`
    chooses the learning rate; if there is one image of each class, they choose it themselves. The
    classifier is on the CPU; the softmax of its scores is calibrated if images are held out.
    """
    rows = torch.isin(features.positions, torch.from_numpy(source.indices))
    assert source.labels is not None
    held_out, single = rows, np.bincount(source.labels).max() < 2
    if not single:
        _, part = hold_out(source, _HELD_OUT, seed, keep_single=True)
        held_out = torch.isin(features.positions, torch.from_numpy(source.indices[part.indices]))
    if not bool(held_out.any()):
        raise UserError(f"{source.name}: none of the held-out images can be read")
    batches = cached_batches(features.of(rows), LinearConfig().batch_size, seed)
    chosen = train_linear_at_best_rate(
        batches, features.of(held_out), len(source.classes), LinearConfig(), seed
    )
    layer = chosen.layer
    if single:
        return layer
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.div_(chosen.temperature)
    return layer


def accuracy(layer: nn.Linear, features: Features, source: Subset) -> float:
    """Return the accuracy in percent of a classifier on a part of the images with features."""
    part = features.of(torch.isin(features.positions, torch.from_numpy(source.indices)))
    assert part.labels is not None
    with torch.inference_mode():
        return 100 * top_k(layer(part.values), part.labels, 1) if len(part.labels) else 0.0


class SoftLabels:
    """A float network that teaches `start`: it answers with classes of the labelled images."""

    def __init__(self, config: FinetuneConfig, start: Model, device: torch.device) -> None:
        assert config.teacher is not None
        self.model = open_model(config.teacher, fresh=False, seed=0)
        backbone = self.model.backbone
        self.size = config.teacher_size or _default_size(self.model, start)  # pixels
        if backbone.fixed_size not in (None, self.size):
            raise UserError(
                f"--teacher-size {self.size}: {config.teacher} needs {backbone.fixed_size} pixels"
            )
        self.backbone = backbone.to(device).requires_grad_(False).eval()
        self._bfloat16 = uses_bfloat16("auto", "cuda" if device.type == "cuda" else "cpu")
        dtype = torch.bfloat16 if self._bfloat16 else torch.float32
        self._features = self.backbone.folded(dtype) or self.backbone

    def features(self, source: Source, workers: int) -> Features:
        views = replace(self.model.views, size=self.size, resize=None)
        return extract_features(
            self.backbone, source, views, workers=workers, bfloat16=self._bfloat16
        )

    def answers(self, layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        """Return the function from views to scores by a linear classifier on its features."""
        device = next(self.backbone.parameters()).device
        layer = layer.to(device).requires_grad_(False)

        def scores(views: Tensor) -> Tensor:
            with torch.no_grad():
                with torch.autocast(device.type, torch.bfloat16, enabled=self._bfloat16):
                    features = self._features(views)
                return layer(features.float())

        return scores


def _default_size(teacher: Model, start: Model) -> int:
    if teacher.backbone.fixed_size is not None:
        return teacher.backbone.fixed_size
    recipe: Any = (start.meta or {}).get("recipe")
    size = recipe.get("teacher_size") if isinstance(recipe, dict) else None
    if isinstance(size, int) and 8 <= size <= 4096:
        return size
    if teacher.training is not None:
        return teacher.views.size
    return max(start.views.size, min(2 * start.views.size, _LARGEST_TEACHER))
