"""The summary of a run that is printed before its first step."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burn.core.errors import listed, printable
from burn.core.types import Batch, CachedFeatures
from burn.data.base import Source
from burn.data.checks import remarks
from burn.data.view_config import ViewConfig
from burn.learning.pace import rate, rough_time
from burn.methods.base import Method
from burn.methods.entries import find_method
from burn.methods.shared.frozen import frozen_target
from burn.recipes.schema import Recipe
from burn.training.plan import StageSteps
from burn.training.prepared import PreparedRun, stage_seed
from burn.training.teacher_cache import TeacherCache

# Pixels of a trial, which has at least 4 images; fewer would mostly measure Python's overhead.
_TRIAL_PIXELS = 4 * 224**2
# A run with fewer pixels of views takes only minutes on a CPU, and the progress bar soon shows its
# time. ReActNet-A of half the width processes 0.3 million pixels per second and core.
_WORTH_A_TRIAL = 1e8
_LONG = 6 * 3600  # seconds on a CPU, above which a GPU is recommended


def print_summary(run: PreparedRun, out: Path, method: Method) -> None:
    """Print what a run in a folder begins with, and on a CPU its expected time.

    `method` is the first stage's with fresh weights. It must not be used afterwards.
    """
    recipe, base, source, steps = run.plan.recipe, run.base_recipe, run.source, run.steps
    teacher, init = run.described["teacher"], run.described["init"]
    lines = {
        "images": "; ".join([f"{len(source):,} from {source.name}", *remarks(source)]),
        "classes": _classes(source, recipe),
        "network": _network(recipe),
        **({"start": _start(init)} if init else {}),
        **({"teacher": _teacher(teacher)} if teacher else {}),
        "device": _device(run.machine_described, run.compute, run.workers),
        "batch": _batch(recipe, steps) + _norms(run),
        "steps": _steps(recipe, steps, run.plan.max_steps),
    }
    for name, text in lines.items():
        run.say(summary_line(name, text))
    cautions = (
        learning_rate_caution(recipe, base, run.plan.recipe_name, steps.batch_size),
        classifier_caution(recipe, base),
    )
    for line in filter(None, cautions):
        run.say(line, "yellow")
    taught = 1.0
    if run.cache is not None:
        seed = stage_seed(run.plan.seed, 1)
        taught, line = cache_line(run.cache, seed, method, recipe, steps)
        run.say(line)
    begun = any(out.glob("stage?"))  # the estimate would include the part that is already done
    if not begun and run.processes.device.type == "cpu" and run.processes.count == 1:
        bfloat16 = run.compute == "bfloat16"
        seconds = expected_time(method, recipe, steps, bfloat16=bfloat16, taught=taught)
        if seconds is not None:
            run.say(time_line(seconds, steps, recipe))


def summary_line(name: str, text: str) -> str:
    """Format a line of the summary: a name in a column, and the printable part of a text."""
    return f"{name:<8} {printable(text)}"


def _classes(source: Source, recipe: Recipe) -> str:
    why = f" ({text})" if (text := getattr(source, "unlabelled", "")) else ""
    if source.labels is None:
        return f"none{why}; labels are not needed, but kNN accuracy cannot be monitored"
    if find_method(recipe.method).needs_labels:
        return f"{len(source.classes):,}, which method {recipe.method} learns from"
    return f"{len(source.classes):,}, only used to monitor kNN accuracy{why}"


def _network(recipe: Recipe) -> str:
    width = f" of width {recipe.backbone.width:g}" if recipe.backbone.width != 1 else ""
    size = f"{recipe.views.size} pixels"
    if recipe.teacher_size not in (None, recipe.views.size):
        size += f", {recipe.teacher_size} for the teacher"
    return f"{recipe.backbone.name}{width}, method {recipe.method}, {size}"


def _teacher(origin: Mapping[str, Any]) -> str:
    text = f"{origin['spec']} ({origin['architecture']})"
    return f"{text}, trained with {origin['labels']} labels" if "labels" in origin else text


def _start(origin: Mapping[str, Any]) -> str:
    text = f"the weights of {origin['spec']} ({str(origin['precision']).replace('_', ' ')})"
    return f"{text}, behind which are {origin['labels']} labels" if "labels" in origin else text


def _device(machine: Mapping[str, Any], compute: str, workers: int) -> str:
    if machine["device"] == "cpu":
        counted = f"{machine['threads']} thread{'s' if machine['threads'] != 1 else ''}"
        name = f"CPU ({machine['processor']}), {counted}"
    else:
        name = str(machine["device"])
    processes = machine["processes"]
    name += f", {processes} processes" if processes > 1 else ""
    each = " each" if processes > 1 else ""
    return f"{name}, {compute}; {workers} data-loader worker{'s' if workers != 1 else ''}{each}"


def _batch(recipe: Recipe, steps: StageSteps) -> str:
    """Describe the batch size that the run will have and its factors, and the learning rate."""
    text = f"{steps.batch_size}"
    if steps.processes > 1 or steps.parts > 1:
        parts = [f"{steps.processes} processes"] if steps.processes > 1 else []
        parts += [f"{steps.images} images"]
        parts += [f"{steps.parts} parts"] if steps.parts > 1 else []
        text += f" = {' × '.join(parts)}"
    if steps.batch_size < recipe.batch_size:
        text += f" (the recipe's {recipe.batch_size} is more than there are images)"
    return f"{text}, learning rate {recipe.optim.lr:g} ({recipe.optim.name})"


def _norms(run: PreparedRun) -> str:
    """Say over which images of several processes BN computes its statistics."""
    if run.processes.count == 1:
        return ""
    across = f"; BN over {'all processes' if run.synchronizes else 'each process alone'}"
    return across if run.processes.device.type == "cuda" else f"{across} (SyncBN needs CUDA)"


def _steps(recipe: Recipe, steps: StageSteps, max_steps: int | None) -> str:
    count = len(recipe.precisions())
    stages = f"{count} stages" if count > 1 else "1 stage"
    each = f"{recipe.epochs} epoch{'s' if recipe.epochs != 1 else ''} × {steps.per_epoch:,}"
    if steps.total == max_steps:
        each = f"{steps.total:,} (--max-steps)"
    total = count * steps.total
    return f"{total:,} = {stages} × {each}"


def learning_rate_caution(recipe: Recipe, base: Recipe, name: str, batch_size: int) -> str:
    """Return a warning if the learning rate is meant for another batch size, or "".

    The learning rate scales with the batch size (Goyal et al., 2017), Adam's with its square root
    (Malladi et al., 2022). Factors of up to 2 are accepted, and so is a learning rate or an
    optimizer that the user changed: `base` is the recipe before that, called `name`.
    """
    if (recipe.optim.lr, recipe.optim.name) != (base.optim.lr, base.optim.name):
        return ""  # chosen by the user
    rule, factor = "linear", batch_size / base.batch_size
    if recipe.optim.name == "adam":
        rule, factor = "square-root", math.sqrt(factor)
    if 0.5 <= factor <= 2:
        return ""
    return (
        f"learning rate {recipe.optim.lr:g} of {name} is meant for batches of {base.batch_size}, "
        f"but these have {batch_size} images: {rule} scaling gives --optim.lr "
        f"{recipe.optim.lr * factor:.2g}"
    )


def classifier_caution(recipe: Recipe, base: Recipe) -> str:
    """Return a warning if settings of BURN's classifiers were changed but there are none, or ""."""
    burns = recipe.method == base.method == "burn"
    if not burns or recipe.settings.classifier != "none":
        return ""
    unused = [
        f"--burn.{name.replace('_', '-')}"
        for name in _OF_CLASSIFIERS
        if getattr(recipe.settings, name) != getattr(base.settings, name)
    ]
    if not unused:
        return ""
    return f"{listed(unused)} without effect: --burn.classifier is none, so FS is the whole loss"


_OF_CLASSIFIERS = (
    "lam", "lam_start", "lam_end", "temperature", "kl_direction", "num_classes", "hidden",
)  # fmt: skip


def cache_line(
    cache: TeacherCache, seed: int, method: Method, recipe: Recipe, steps: StageSteps
) -> tuple[float, str]:
    """Return the share of a stage's views for which the teacher runs, and the summary's line.

    Of views that repeat after some epochs it runs for the first ones alone. Seed and method are
    those of the first stage.
    """
    epochs = min(math.ceil(steps.total / steps.per_epoch), recipe.view_epochs or 10**9)
    cached = cache.share_cached(seed, method.num_taught, epochs)
    stages = len(recipe.precisions())
    size = cache.open(seed, method.num_taught).num_bytes(epochs) * stages / 1e6
    size_text = f"{size / 1000:,.1f} GB" if size >= 1000 else f"{math.ceil(size):,} MB"
    there = "all" if cached == 1 else "none" if cached == 0 else f"about {100 * cached:.0f} %"
    stage = " for stage 1" if stages > 1 else ""
    text = f"teacher's features in {cache.path}: {there} cached{stage}; {size_text} when complete"
    all_epochs = max(epochs, math.ceil(steps.total / steps.per_epoch))
    return (1 - cached) * epochs / all_epochs, summary_line("cache", text)


def expected_time(
    method: Method, recipe: Recipe, steps: StageSteps, *, bfloat16: bool, taught: float = 1.0
) -> float | None:
    """Estimate the seconds of all stages on this CPU, very roughly, from passes over a few images.

    It is None for a run of minutes or a method that cannot take so few images. The method has fresh
    weights, and must not be used afterwards, since the passes change its queues and statistics.
    `taught` is the share of the views whose teacher's features are not cached when they are needed.
    """
    images = len(recipe.precisions()) * steps.total_images
    total = 0.0
    for share, cached in ((taught, False), (1 - taught, True)):
        if share == 0:
            continue
        configs = recipe.view_configs(method.num_views)
        teacher_configs = () if cached else recipe.teacher_configs(method.num_taught)
        pixels = sum(config.size**2 for config in (*configs, *teacher_configs))
        if images * pixels < _WORTH_A_TRIAL:
            return None
        count = max(4, min(steps.images, _TRIAL_PIXELS // pixels))
        try:
            batch = _trial_batch(method, configs, teacher_configs, count, cached=cached)
            seconds = min(_trial(method, batch, bfloat16=bfloat16) for _ in range(2))
        except (RuntimeError, ValueError):  # memory runs out; BN gets a single value per channel
            return None
        total += share * images * seconds / count
    return total


def _trial_batch(
    method: Method,
    configs: tuple[ViewConfig, ...],
    teacher_configs: tuple[ViewConfig, ...],
    count: int,
    *,
    cached: bool,
) -> Batch:
    random = np.random.default_rng(0)

    def view(config: ViewConfig) -> Tensor:
        shape = (count, 3, config.size, config.size)
        return torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8))

    indices = torch.arange(count)
    target = frozen_target(method)
    features = None
    if cached and target is not None:
        values = torch.randn(method.num_taught, count, target.num_features).half()
        features = CachedFeatures(values, torch.empty(0, dtype=torch.int64))
    return Batch(
        tuple(view(c) for c in configs),
        indices,
        labels=torch.zeros_like(indices),
        teacher_views=tuple(view(c) for c in teacher_configs),
        cached=features,
    )


def _trial(method: Method, batch: Batch, *, bfloat16: bool) -> float:
    began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        loss = method(batch, 0.0).loss
    loss.backward()
    return time.perf_counter() - began


def time_line(seconds: float, steps: StageSteps, recipe: Recipe) -> str:
    """Format the expected time of all stages, in seconds, as a line of the summary."""
    images = len(recipe.precisions()) * steps.total_images
    text = f"{rough_time(seconds)} for all stages on this CPU, {rate(images / seconds)}"
    if seconds > _LONG:
        text += "; a run of this size is meant for a GPU"
    return summary_line("time", text)
