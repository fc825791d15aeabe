"""The protocols by name: from a backbone and two sources to results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from burn.data.sources import Source
from burn.errors import UserError
from burn.evaluation.classifier import (
    LinearConfig,
    augmented_batches,
    cached_batches,
    top_k,
    train_linear,
)
from burn.evaluation.subject import Subject
from burn.features import extract_features
from burn.knn import knn_predict
from burn.results import Result
from burn.types import Features


@dataclass(frozen=True)
class KnnConfig:
    """Settings of the kNN protocol.

    Attributes:
        k: neighbours that vote.
        temperature: of the votes' weights, exp(cosine / temperature).
    """

    k: int = 20
    temperature: float = 0.07

    def check(self) -> None:
        """Raise UserError for values out of range."""
        if self.k < 1 or self.temperature <= 0:
            raise UserError("k must be at least 1 and temperature above 0")


class FeatureCache:
    """Plain features of a subject's two sources, extracted at first use; counts bad images."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._kept: dict[str, Features] = {}
        self.unreadable: list[str] = []

    def __call__(self, part: str) -> Features:
        if part not in self._kept:
            s, bad = self._subject, []
            source = s.train if part == "train" else s.test
            self._kept[part] = extract_features(
                s.backbone, source, s.views, workers=s.workers, unreadable=bad
            )
            self.unreadable += [source.describe(index) for index in bad]
        return self._kept[part]


def check_sources(train: Source, test: Source) -> None:
    """Raise UserError unless both have labels of the same classes."""
    for source in (train, test):
        if source.labels is None:
            raise UserError(
                f"{source.name} has no labels: give class folders, a parquet with a column label, "
                "or CIFAR"
            )
    assert train.labels is not None
    assert test.labels is not None
    named = all(not name.isdigit() for name in (*train.classes, *test.classes))
    if named and set(test.classes) - set(train.classes):
        extra = sorted(set(test.classes) - set(train.classes))
        raise UserError(f"{test.name} has classes that {train.name} lacks: {', '.join(extra[:5])}")
    if named and train.classes != test.classes:
        raise UserError(f"{test.name} lacks classes of {train.name}: their numbers would not match")
    if test.labels.max() >= len(train.classes):
        raise UserError(
            f"{test.name} has label {test.labels.max()}, {train.name} only "
            f"0 … {len(train.classes) - 1}"
        )


def run_knn(subject: Subject, features: FeatureCache, config: KnnConfig) -> list[Result]:
    """Top-1 of weighted kNN between plain features of the training and the test images."""
    began = time.perf_counter()
    bank, queries = features("train"), features("test")
    assert bank.labels is not None
    assert queries.labels is not None
    scores = knn_predict(
        bank.values, bank.labels, queries.values, len(bank.classes), config.k, config.temperature
    )
    numbers = {"top1": top_k(scores, queries.labels, 1)}
    return _results("knn", numbers, subject, asdict(config), began)


def run_linear(
    subject: Subject,
    features: FeatureCache,
    config: LinearConfig,
    on_epoch: Callable[[int], None] = lambda _: None,
) -> list[Result]:
    """Top-1 and top-5 of a linear layer on the frozen backbone."""
    began = time.perf_counter()
    s = subject
    if config.augment == "none":
        batches = cached_batches(features("train"), config.batch_size, s.seed)
    else:
        batches = augmented_batches(
            s.backbone, s.train, s.views, config.batch_size, s.seed, s.workers
        )
    dimension, num_classes = s.backbone.num_features, len(s.train.classes)
    layer = train_linear(batches, dimension, num_classes, config, s.seed, on_epoch)
    test = features("test")
    assert test.labels is not None
    with torch.inference_mode():
        scores = layer(test.values)
    numbers = {"top1": top_k(scores, test.labels, 1), "top5": top_k(scores, test.labels, 5)}
    return _results("linear", numbers, subject, asdict(config), began)


def _results(
    protocol: str, numbers: dict[str, float], subject: Subject, settings: dict[str, Any],
    began: float,
) -> list[Result]:  # fmt: skip
    seconds = round(time.perf_counter() - began, 3)
    return [
        Result(
            protocol=protocol,
            metric=metric,
            value=round(100 * value, 4),
            model=subject.model,
            checkpoint=subject.checkpoint,
            train=subject.train.name,
            test=subject.test.name,
            seed=subject.seed,
            seconds=seconds,
            settings=settings,
        )
        for metric, value in numbers.items()
    ]
