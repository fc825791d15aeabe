"""SVM classification of frozen features (paper, Table 3 and appendix A)."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as T

from burn.data.sources import Source
from burn.data.voc import Voc
from burn.errors import UserError
from burn.evaluation.cache import Split, custom_features
from burn.evaluation.progress import progress_bar
from burn.evaluation.subject import Subject
from burn.evaluation.svm import (
    NEGATIVES_PER_SHOT,
    SHOTS,
    Choice,
    SvmData,
    SvmScores,
    possible_shots,
    svm_few_shot,
    svm_full,
)
from burn.results import Result

_CHOICES: tuple[Choice, ...] = ("cv", "oracle")


@dataclass(frozen=True)
class SvmConfig:
    """The protocol's settings; the defaults are the paper's.

    Attributes:
        full: learn from all training images.
        shots: positives of each class in few-shot learning, beside 19 times as many negatives;
            default: those of 1, 2, 4, 8, 16, 32, 64 and 96 that every class has.
        samples: independent few-shot samples.
        image_size: side in pixels of the square that images are squashed to; default: that of the
            views in pretraining.
    """

    full: bool = True
    shots: tuple[int, ...] | None = None
    samples: int = 5
    image_size: int | None = None

    def check(self) -> None:
        """Raise UserError for values out of range."""
        if any(k < 1 for k in self.shots or ()) or self.samples < 1:
            raise UserError("shots and samples must be at least 1")
        if self.image_size is not None and not 8 <= self.image_size <= 4096:
            raise UserError(f"image_size {self.image_size} is not in 8 … 4096 pixels")
        if not self.full and self.shots == ():
            raise UserError("nothing to do: --full false and no --shots")


def run_svm(subject: Subject, config: SvmConfig, console: Console) -> list[Result]:
    """mAP of one linear SVM a class, on all images and on a few, each by two choices of cost.

    cv picks a class's cost by cross-validation on the training images; oracle by the test, as is
    customary for few shots, which flatters. Raises UserError for a backbone without a feature map,
    and for a class with fewer positives than `config.shots` asks for.
    """
    began = time.perf_counter()
    data = _data(subject, config, console)
    shots = config.shots
    if shots is None:
        shots = tuple(possible_shots(data.train_targets))
        if left_out := [str(k) for k in SHOTS if k not in shots]:
            subject.notes.append(
                f"few-shot k = {', '.join(left_out)} left out: some class has fewer positives"
            )
    num_classes = len(data.classes)
    numbers: dict[str, float] = {}
    spread: dict[str, float] = {}
    settings: dict[str, Any] = asdict(config) | {"shots": list(shots)}
    seed = subject.seed
    short: list[str] = []
    with progress_bar(console) as progress:
        if config.full:
            bar = progress.add_task("SVM, all images", total=num_classes)
            scores = svm_full(data, seed, lambda n: progress.advance(bar, n))
            _note_undefined(subject, data, scores)
            numbers |= {f"full mAP {c}": 100 * scores.mean_ap(c) for c in _CHOICES}
            settings["classes"] = {
                name: {"AP cv": round(100 * ap, 4), "cost": cost}
                for name, ap, cost in zip(data.classes, scores.ap_cv, scores.cost_cv, strict=True)
                if not np.isnan(ap)
            }
        for k in shots:
            total = num_classes * config.samples
            few_bar = progress.add_task(f"SVM, k = {k}", total=total)
            few = svm_few_shot(
                data, k, seed, config.samples, lambda n, bar=few_bar: progress.advance(bar, n)
            )
            fewest = min(n for sample in few.samples for n in sample.negatives)
            short += [str(k)] if fewest < NEGATIVES_PER_SHOT * k else []
            for c in _CHOICES:
                mean, std = few.mean_std(c)
                numbers[f"k={k} mAP {c}"], spread[f"k={k} mAP {c}"] = 100 * mean, 100 * std
    if short:
        subject.notes.append(
            f"k = {', '.join(short)}: some class has fewer than {NEGATIVES_PER_SHOT} · k negatives "
            "and learns from all it has"
        )
    return subject.results("svm", numbers, settings, began, spread)


def _data(subject: Subject, config: SvmConfig, console: Console) -> SvmData:
    size = config.image_size or subject.views.size
    # 256 before 224, unless the recipe says otherwise of its own size.
    short = subject.views.resize if size == subject.views.size else None
    before = short or round(size * 8 / 7)
    with torch.no_grad():
        images = torch.zeros(1, 3, size, size, dtype=torch.uint8, device=subject.device)
        name = subject.backbone.config.name
        try:
            features = subject.backbone.eval().forward_features(images)
        except (AssertionError, RuntimeError) as error:  # timm's own checks
            raise UserError(
                f"{name} takes no images of {size} pixels: give --image-size"
            ) from error
        if features.ndim != 4:
            raise UserError(f"svm needs a feature map, which {name} does not give")

    def view(image: Tensor) -> Tensor:
        image = T.resize(image, [before], InterpolationMode.BICUBIC)
        return T.resize(image, [size, size], InterpolationMode.BICUBIC)

    def extract(split: Split, source: Source) -> tuple[Any, Any]:
        found = custom_features(subject, split, console, f"svm {before} {size}", view, _grid)
        return found.values.numpy(), _targets(source)[found.positions.numpy()]

    (train, train_targets), (test, test_targets) = (
        extract("train", subject.train),
        extract("test", subject.test),
    )
    return SvmData(train, train_targets, test, test_targets, subject.train.classes)


def _grid(features: Tensor) -> Tensor:
    """Means over the quarters of a map (batch, channels, h, w): (batch, 4 · channels), norm 1."""
    return F.normalize(F.adaptive_avg_pool2d(features.float(), 2).flatten(1), dim=1)


def _targets(source: Source) -> np.ndarray:
    """int8 (images, classes): 1 present, -1 absent, 0 in difficult instances only."""
    if isinstance(source, Voc):
        return source.presence
    assert source.labels is not None
    one_hot = source.labels[:, None] == np.arange(len(source.classes))
    return np.where(one_hot, 1, -1).astype(np.int8)


def _note_undefined(subject: Subject, data: SvmData, scores: SvmScores) -> None:
    if scores.undefined:
        names = ", ".join(data.classes[index] for index in scores.undefined)
        subject.notes.append(f"left out of the mean, no positive test image: {names}")
