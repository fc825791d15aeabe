"""SVM classification of frozen features (paper, Table 3 and appendix A)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from burn.core.errors import UserError, listed
from burn.core.results import Result
from burn.data.augment import resize
from burn.data.base import Source
from burn.data.formats.voc import Voc
from burn.data.view_config import ViewConfig
from burn.evaluation.artifacts.kept import KeptParts
from burn.evaluation.cache import Split, custom_features
from burn.evaluation.configs import SvmConfig
from burn.evaluation.context import EvaluationContext
from burn.evaluation.progress import progress_bar
from burn.evaluation.svm.solver import (
    NEGATIVES_PER_SHOT,
    SHOTS,
    Choice,
    SvmData,
    check_shots,
    possible_shots,
    svm_few_shot,
    svm_full,
)
from burn.runtime.signals import interrupted

_CHOICES: tuple[Choice, ...] = ("cv", "oracle")
_FULL = "full"
_PART = {
    "what": str, "cv": float, "oracle": float, "std": dict, "classes": dict, "notes": list,
    "seconds": float,
}  # fmt: skip


def run_svm(context: EvaluationContext, config: SvmConfig, console: Console) -> list[Result]:
    """Run SVM classification: mAP of one linear SVM per class, on all images and on a few.

    There are two numbers for each: cv chooses a class's cost by cross-validation on the training
    images, oracle chooses it on the test images, which is customary for few shots but optimistic. A
    class that lacks positive or negative images, in training or in the test, is left out with a
    note. Finished parts are stored in svm.jsonl in `context.out`.

    Raises:
        UserError: All classes are left out, the backbone has no feature map, or a class has fewer
            positives than `config.shots`.
        Interrupted: After Ctrl-C or SIGTERM.
    """
    began = time.perf_counter()
    data = _data(context, config, console)
    shots = config.shots
    if shots is None:
        shots = tuple(possible_shots(data.train_targets))
        if left_out := [str(k) for k in SHOTS if k not in shots]:
            context.notes.append(
                f"few-shot k = {', '.join(left_out)} left out: some class has fewer positives"
            )
    check_shots(data, max(shots, default=1))  # before any SVM is fitted
    settings: dict[str, Any] = asdict(config) | {"shots": list(shots)}
    kept_in = context.out / "svm.jsonl" if context.out else None
    kept = KeptParts(kept_in, _key(context, data, config), _PART)
    parts: list[dict[str, Any]] = []
    earlier = 0.0  # seconds of the parts that earlier calls finished
    with progress_bar(console) as progress:
        for what in ([_FULL] if config.full else []) + [f"k={k}" for k in shots]:
            if part := kept.find(what=what):
                earlier += part["seconds"]
            else:
                samples = 1 if what == _FULL else config.samples
                bar = progress.add_task(f"SVM, {what}", total=len(data.classes) * samples)
                try:
                    part = _fit(what, data, context.seed, samples, partial(progress.advance, bar))
                except KeyboardInterrupt as stopped:
                    where = "nothing is kept; give --out to keep what is finished"
                    if context.out:
                        where = (
                            f"features and {len(kept.parts)} parts are kept in {context.out}; the "
                            "same command resumes"
                        )
                    raise interrupted(f"interrupted: {where}", stopped) from None
                context.keep(partial(kept.add, part))
            parts.append(part)
    numbers = {f"{p['what']} mAP {c}": p[c] for p in parts for c in _CHOICES}
    spread = {f"{p['what']} mAP {c}": p["std"][c] for p in parts for c in _CHOICES if p["std"]}
    context.notes.extend(dict.fromkeys(note for part in parts for note in part["notes"]))
    results = context.results("svm", numbers, settings, began - earlier, spread)
    classes = {"classes": parts[0]["classes"]}
    return [
        replace(r, settings={**r.settings, **classes}) if r.metric.startswith(_FULL) else r
        for r in results
    ]


def _fit(
    what: str, data: SvmData, seed: int, samples: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Compute one part: mAP in percent by both choices of cost, on all images or on k shots."""
    began = time.perf_counter()
    part: dict[str, Any] = {"what": what, "std": {}, "classes": {}, "notes": []}
    if what == _FULL:
        scores = svm_full(data, seed, advance)
        part |= {choice: 100 * scores.mean_ap(choice) for choice in _CHOICES}
        part["classes"] = {
            name: {"AP cv": round(100 * ap, 4), "cost": cost}
            for name, ap, cost in zip(data.classes, scores.ap_cv, scores.cost_cv, strict=True)
        }
    else:
        k = int(what.removeprefix("k="))
        few = svm_few_shot(data, k, seed, samples, advance)
        for choice in _CHOICES:
            values = [sample.mean_ap(choice) for sample in few]
            part[choice] = 100 * float(np.mean(values))
            part["std"][choice] = 100 * float(np.std(values))
        fewest = min(n for sample in few for n in sample.negatives)
        if fewest < NEGATIVES_PER_SHOT * k:
            part["notes"].append(
                f"{what}: some class learns from all of its {fewest} negatives, fewer than "
                f"{NEGATIVES_PER_SHOT * k}"
            )
    return part | {"seconds": round(time.perf_counter() - began, 3)}


def _key(context: EvaluationContext, data: SvmData, config: SvmConfig) -> str:
    """Return a hash of everything that affects the numbers of a part."""
    digest = hashlib.sha256(repr((context.seed, config.samples, data.classes)).encode())
    for array in (data.train, data.train_targets, data.test, data.test_targets):
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _data(context: EvaluationContext, config: SvmConfig, console: Console) -> SvmData:
    size = config.image_size or context.views.size
    # The recipe's `resize` is for images of its own size.
    views = context.views if size == context.views.size else ViewConfig(size=size)
    resized_to = views.short_side
    with torch.no_grad():
        images = torch.zeros(1, 3, size, size, dtype=torch.uint8, device=context.device)
        name = context.backbone.config.name
        try:
            features = context.backbone.eval().forward_features(images)
        except (AssertionError, RuntimeError) as error:  # timm's own checks
            raise UserError(
                f"{name} cannot take images of {size} pixels: give --image-size"
            ) from error
        if features.ndim != 4 or features.shape[1] != context.backbone.num_features:
            raise UserError(f"svm needs a feature map, which {name} does not give")

    def view(image: Tensor) -> Tensor:
        if max(image.shape[1:]) <= 8 * min(image.shape[1:]):  # a very long image would become huge
            height, width = image.shape[1:]
            short = min(height, width)
            image = resize(image, resized_to * height // short, resized_to * width // short)
        return resize(image, size, size)

    def extract(split: Split, source: Source) -> tuple[Any, Any]:
        kind = f"svm {resized_to} {size}"
        features = custom_features(context, split, console, kind, 4, view, _grid)
        # Of numbered classes the test images may have fewer than the training images.
        targets = _targets(source, len(context.train.classes))
        return features.values.numpy(), targets[features.positions.numpy()]

    train, train_targets = extract("train", context.train)
    test, test_targets = extract("test", context.test)
    usable = _usable(context, train_targets, test_targets)
    kept = tuple(name for name, use in zip(context.train.classes, usable, strict=True) if use)
    return SvmData(train, train_targets[:, usable], test, test_targets[:, usable], kept)


def _usable(context: EvaluationContext, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return which classes, bool (classes,), can be learned and evaluated; note the others.

    The targets are (images, classes). UserError is raised if there is no such class.
    """
    lacking = {
        "no positive training image": ~(train > 0).any(axis=0),
        "no negative training image": ~(train <= 0).any(axis=0),
        "no positive test image": ~(test > 0).any(axis=0),
        "no negative test image": ~(test < 0).any(axis=0),
    }
    names = np.array(context.train.classes)
    left_out = [
        f"{what}: {listed(names[of].tolist(), 5)}" for what, of in lacking.items() if of.any()
    ]
    usable = ~np.logical_or.reduce(list(lacking.values()))
    if not usable.any():
        raise UserError(
            f"svm: no class has positive and negative images in both {context.train.name} and "
            f"{context.test.name}: {left_out[0]}"
        )
    context.notes.extend(f"left out classes with {reason}" for reason in left_out)
    return usable


def _grid(features: Tensor) -> Tensor:
    """Average the quarters of a map (batch, channels, h, w): (batch, 4 · channels), norm 1."""
    return F.normalize(F.adaptive_avg_pool2d(features.float(), 2).flatten(1), dim=1)


def _targets(source: Source, classes: int) -> np.ndarray:
    """Return the targets, int8 (images, classes): 1 present, -1 absent, 0 only difficult ones."""
    if isinstance(source, Voc):
        return source.presence
    assert source.labels is not None
    one_hot = source.labels[:, None] == np.arange(classes)
    return np.where(one_hot, 1, -1).astype(np.int8)
