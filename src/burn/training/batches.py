"""The data loader of a stage, whose order and views depend on the stage's random seed."""

from __future__ import annotations

from burn.data.base import Source
from burn.data.feature_cache import FeatureCache
from burn.data.formats.shards import ShardedImages
from burn.data.formats.stream import StreamLoader
from burn.data.loader import EpochLoader, EpochSampler, TrainLoader, Transform, random_views
from burn.methods.base import Method
from burn.recipes.schema import Recipe


def stage_views(
    recipe: Recipe, method: Method, seed: int, cache: FeatureCache | None = None
) -> Transform:
    """Return the transform that draws a stage's views of an image."""
    configs = recipe.view_configs(method.num_views)
    views = random_views(configs, seed, recipe.teacher_configs(method.num_taught), cache)
    return lambda image, epoch, index: views(image, recipe.view_epoch(epoch), index)


def stage_batches(
    recipe: Recipe,
    method: Method,
    source: Source,
    seed: int,
    workers: int,
    *,
    rank: int = 0,
    count: int = 1,
    cache: FeatureCache | None = None,
    pin: bool = False,
) -> EpochLoader:
    """Return the data loader of a stage, which yields one process's micro-batches.

    `cache` is that of the teacher's features for the same seed; `pin` puts batches into page-locked
    memory, for a GPU. Fewer images than processes raise UserError.
    """
    batch_size = recipe.batch_size // recipe.accumulate // count
    views = stage_views(recipe, method, seed, cache)
    cached_shape = None if cache is None else cache.cached_shape
    if isinstance(source, ShardedImages):
        return StreamLoader(
            source, views, batch_size, seed, rank, count, workers, cached_shape, pin=pin
        )
    sampler = EpochSampler(len(source), batch_size, seed, drop_last=True, rank=rank, count=count)
    return TrainLoader(source, views, sampler, workers, cached_shape, pin=pin)
