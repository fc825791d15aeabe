"""The teacher's features of the views of a run, in a cache that later runs may use."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.core.paths import run_around
from burn.data.augment import drawing_fingerprint
from burn.data.base import Source
from burn.data.feature_cache import CacheFolder, FeatureCache
from burn.methods.entries import find_method
from burn.recipes.schema import Recipe

_LOOKED_AT = 64  # views from which the cached share is estimated


def is_cacheable(recipe: Recipe) -> bool:
    """Return whether the teacher's features of a view depend only on the view."""
    entry = find_method(recipe.method)
    return entry.needs_teacher and entry.caches_teacher(recipe.settings)


class TeacherCache:
    """The cache folder for a run's teacher, views and images, inside that for all teachers.

    UserError says that the features depend on the batch, or that the folder is damaged.
    """

    def __init__(
        self, cache: Path, recipe: Recipe, teacher: Teacher, source: Source, compute: str
    ) -> None:
        if not is_cacheable(recipe):
            statistics = recipe.settings.teacher_batch_norm
            raise UserError(
                f"--teacher-cache: with burn.teacher_batch_norm {statistics} the features depend "
                "on the batch and cannot be cached: leave it out"
            )
        if (run := run_around(cache)) is not None:
            raise UserError(
                f"--teacher-cache {cache} lies in {run}, the folder of a run: give a folder for "
                "features alone"
            )
        self.path = cache
        self._source = source
        self._about = _about(recipe, teacher, source, compute)
        dimension = CacheFolder.stored_dimension(cache, self._about)
        self.is_there = dimension is not None  # a folder for this teacher, views and images
        self._dimension = teacher.network.num_features
        if dimension not in (None, self._dimension):
            raise UserError(
                f"--teacher-cache {cache} holds features of dimension {dimension}, but the "
                f"teacher's have dimension {self._dimension}: remove it"
            )

    def make(self) -> CacheFolder:
        """Create the folder if it does not exist."""
        return CacheFolder.make(self.path, self._about, self._dimension, len(self._source))

    def open(self, seed: int, num_taught: int) -> FeatureCache:
        """Open the cache of a stage; of an image's views the teacher sees `num_taught`."""
        return FeatureCache(self.make(), seed, num_taught)

    def share_cached(self, seed: int, num_taught: int, epochs: int) -> float:
        """Estimate the share of a stage's images whose features are cached, from a few of them."""
        random = np.random.default_rng(0)
        pairs = zip(
            random.integers(epochs, size=_LOOKED_AT).tolist(),
            random.integers(len(self._source), size=_LOOKED_AT).tolist(),
            strict=True,
        )
        return self.open(seed, num_taught).share_cached(list(pairs))


def _about(recipe: Recipe, teacher: Teacher, source: Source, compute: str) -> dict[str, Any]:
    """Describe everything that the features depend on, except seed, epoch, image and view."""
    view, config = recipe.teacher_view(), teacher.network.config
    settings = asdict(view)
    del settings["resize"]  # used only in evaluation
    return {
        "teacher": {key: teacher.origin[key] for key in ("architecture", "sha256")},
        "normalisation": {"mean": config.mean, "std": config.std},
        "views": settings,
        "drawing": drawing_fingerprint(view),
        "images": {"number": len(source), "fingerprint": source.fingerprint},
        "compute": compute,
    }
