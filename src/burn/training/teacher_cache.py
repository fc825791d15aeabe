"""Which of a teacher's features a run keeps, and where: `burn.data.feature_cache` for a recipe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.data.augment import drawing_fingerprint
from burn.data.base import Source
from burn.data.feature_cache import CacheFolder, FeatureCache
from burn.methods.registry import find_method
from burn.recipes.schema import Recipe

_LOOKED_AT = 64  # views, to tell how much is known


def is_cacheable(recipe: Recipe) -> bool:
    """Whether the teacher's features of a view depend on nothing but the view."""
    entry = find_method(recipe.method)
    return entry.needs_teacher and entry.caches_teacher(recipe.method_config())


class TeacherCache:
    """The folder for a run's teacher, its views and its images.

    cache: the folder of all teachers. compute: number format of the arithmetic. Raises UserError
    where the recipe's teacher has no features to keep, or the folder is damaged.
    """

    def __init__(
        self, cache: Path, recipe: Recipe, teacher: Teacher, source: Source, compute: str
    ) -> None:
        if not is_cacheable(recipe):
            raise UserError(
                f"--teacher-cache: with burn.teacher_batch_norm {recipe.burn.teacher_batch_norm} "
                "features depend on the batch and cannot be kept: leave it out"
            )
        self.path = cache
        self._source = source
        self._about = _about(recipe, teacher, source, compute)
        dimension = CacheFolder.known_dimension(cache, self._about)
        self.is_known = dimension is not None
        self._dimension = teacher.network.num_features
        if dimension not in (None, self._dimension):
            raise UserError(
                f"--teacher-cache {cache} holds {dimension} features a view of a teacher that has "
                f"{self._dimension}: remove it"
            )

    def make(self) -> CacheFolder:
        """The folder, made if it is not there. Raises UserError where it cannot be written."""
        return CacheFolder.make(self.path, self._about, self._dimension, len(self._source))

    def open(self, seed: int, num_taught: int) -> FeatureCache:
        """For a stage's seed and the views that its teacher sees."""
        return FeatureCache(self.make(), seed, num_taught)

    def share_known(self, seed: int, num_taught: int, epochs: int) -> float:
        """The share of a stage's views whose features are known, estimated from a few of them."""
        random = np.random.default_rng(0)
        looked_at = zip(
            random.integers(epochs, size=_LOOKED_AT).tolist(),
            random.integers(len(self._source), size=_LOOKED_AT).tolist(),
            strict=True,
        )
        return self.open(seed, num_taught).share_known(list(looked_at))


def _about(recipe: Recipe, teacher: Teacher, source: Source, compute: str) -> dict[str, Any]:
    """All that the features depend on but for seed, epoch, image and view."""
    view, config = recipe.teacher_view(), teacher.network.config
    settings = asdict(view)
    del settings["resize"]  # evaluation's
    return {
        "teacher": {key: teacher.origin[key] for key in ("architecture", "sha256")},
        "normalisation": {"mean": config.mean, "std": config.std},
        "views": settings,
        "drawing": drawing_fingerprint(view),
        "images": {"number": len(source), "fingerprint": source.fingerprint},
        "compute": compute,
    }
