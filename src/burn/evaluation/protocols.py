"""The protocols by name: from a backbone and two sources to results."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn

from burn.classifier_file import NAME as CLASSIFIER_NAME
from burn.classifier_file import Classifier, save_classifier
from burn.data.sources import Source
from burn.errors import UserError
from burn.evaluation.cache import plain_features
from burn.evaluation.classifier import (
    LinearConfig,
    augmented_batches,
    cached_batches,
    top_k,
    train_linear,
)
from burn.evaluation.confusion import keep_confusion
from burn.evaluation.neighbours import keep_neighbours
from burn.evaluation.progress import progress_bar
from burn.evaluation.subject import Subject
from burn.knn import knn_predict
from burn.results import Result


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


_PLACES = LinearConfig(epochs=28, lr=0.01, drops=(0.25, 0.5, 0.75), weight_decay=1e-5)


@dataclass(frozen=True)
class TransferConfig:
    """Settings of transfer learning: a data set's name brings the paper's, which others overrule.

    Attributes:
        settings: cifar10, cifar100, cub200 and birdsnap are linear evaluation's; places205 trains
            28 epochs at 0.01, a tenth after every 7, weight decay 1e-5.
        epochs: instead of theirs.
        lr: instead of theirs.
        drops: instead of theirs.
        weight_decay: instead of theirs.
        batch_size: images for each step.
        augment: as for linear.
        probe: as for linear.
    """

    settings: Literal["cifar10", "cifar100", "cub200", "birdsnap", "places205"] = "cifar10"
    epochs: int | None = None
    lr: float | None = None
    drops: tuple[float, ...] | None = None
    weight_decay: float | None = None
    batch_size: int = 256
    augment: Literal["crop", "none"] = "crop"
    probe: Literal["strict", "mlp"] = "strict"

    def linear(self) -> LinearConfig:
        """The settings, each from here or from the data set."""
        base = _PLACES if self.settings == "places205" else LinearConfig()
        own = {name: value for name, value in asdict(self).items() if name != "settings"}
        return replace(base, **{name: value for name, value in own.items() if value is not None})

    def check(self) -> None:
        """Raise UserError for values out of range."""
        self.linear().check()


def check_sources(train: Source, test: Source) -> None:
    """Raise UserError unless both have labels of the same classes."""
    for source in (train, test):
        if source.labels is None:
            raise UserError(
                f"{source.name} has no labels: give class folders, a parquet with a column label, "
                "a list, CIFAR, CUB or Birdsnap"
            )
    assert train.labels is not None
    assert test.labels is not None
    _check_classes(train, test)
    if test.labels.max() >= len(train.classes):
        raise UserError(
            f"{test.name} has label {test.labels.max()}, {train.name} only "
            f"0 … {len(train.classes) - 1}"
        )


def _check_classes(train: Source, test: Source) -> None:
    """Raise UserError where a number would not mean the same class in both."""
    numbered = [_are_numbers(source.classes) for source in (train, test)]
    if train.classes == test.classes or all(numbered):
        return
    if any(numbered):  # a list or a parquet file knows no names
        named = test if numbered[0] else train
        if all(name.isdigit() for name in named.classes):
            shown = ", ".join(named.classes[:5])
            raise UserError(
                f"{named.name} has classes named {shown}: they are not the other's numbers"
            )
    elif extra := sorted(set(test.classes) - set(train.classes)):
        raise UserError(f"{test.name} has classes that {train.name} lacks: {', '.join(extra[:5])}")
    else:
        raise UserError(f"{test.name} lacks classes of {train.name}: their numbers would not match")


def _are_numbers(classes: tuple[str, ...]) -> bool:
    return classes == tuple(str(i) for i in range(len(classes)))


def class_names(subject: Subject) -> tuple[str, ...]:
    """Of the training labels: the test images' names where the training images have numbers."""
    train, test = subject.train.classes, subject.test.classes
    if not _are_numbers(train):
        return train
    return (*test[: len(train)], *train[len(test) :])


def run_knn(subject: Subject, config: KnnConfig, console: Console) -> list[Result]:
    """Top-1 of weighted kNN between plain features of the training and the test images.

    Confusions, and the nearest neighbours of a few test images, are kept in `subject.out`, in the
    place of older ones.
    """
    began = time.perf_counter()
    bank, queries = (plain_features(subject, part, console) for part in ("train", "test"))
    assert bank.labels is not None
    assert queries.labels is not None
    scores = knn_predict(
        bank.values, bank.labels, queries.values, len(bank.classes), config.k, config.temperature
    )
    numbers = {"top1": 100 * top_k(scores, queries.labels, 1)}
    results = subject.results("knn", numbers, asdict(config), began)
    classes = class_names(subject)
    keep_confusion(subject, "knn", "top1", scores, queries.labels, classes)
    keep_neighbours(subject, bank, queries, classes)
    return results


def run_linear(subject: Subject, config: LinearConfig, console: Console) -> list[Result]:
    """Top-1 and top-5 of a linear layer on the frozen backbone.

    A strict one is kept in `subject.out`, and the confusions of either, in the place of older ones.
    """
    judged = _probe(subject, config, console)
    probe, settings = judged.probe, judged.settings
    keep_confusion(
        subject, "linear", next(iter(judged.numbers)), judged.scores, judged.labels,
        class_names(subject),
    )  # fmt: skip
    if subject.out and isinstance(probe, nn.Linear):  # the mlp probe is no linear classifier
        classes = tuple(subject.train.classes)
        classifier = Classifier(probe.weight, probe.bias, classes, subject.fingerprint)
        about = {**settings, "train": subject.train.name, "seed": subject.seed}
        save_classifier(subject.out / CLASSIFIER_NAME, classifier, about)
    elif subject.out:
        subject.notes.append("the mlp probe is not kept: burn pack takes a linear classifier")
    return subject.results("linear", judged.numbers, settings, judged.began)


def run_transfer(subject: Subject, config: TransferConfig, console: Console) -> list[Result]:
    """Linear evaluation on another data set than the one pretrained on, by that set's settings."""
    judged = _probe(subject, config.linear(), console)
    settings = judged.settings | {"settings": config.settings}
    return subject.results("transfer", judged.numbers, settings, judged.began)


@dataclass(frozen=True)
class _Judged:
    """A trained probe and how it did; numbers are in percent, the top-1 first.

    scores: (images, classes) of the test images; labels: int64 (images,). began: when its work did.
    """

    probe: nn.Module
    scores: Tensor
    labels: Tensor
    numbers: dict[str, float]
    settings: dict[str, Any]
    began: float


def _probe(subject: Subject, config: LinearConfig, console: Console) -> _Judged:
    began = time.perf_counter()
    s = subject
    unreadable: set[int] = set()
    if config.augment == "none":
        batches = cached_batches(plain_features(s, "train", console), config.batch_size, s.seed)
    else:
        batches = augmented_batches(
            s.backbone, s.train, s.views, config.batch_size, s.seed, s.workers, unreadable,
            bfloat16=s.bfloat16,
        )  # fmt: skip
    with progress_bar(console) as progress:
        bar = progress.add_task("linear", total=config.epochs)
        probe = train_linear(
            batches, s.backbone.num_features, len(s.train.classes), config, s.seed,
            lambda _: progress.advance(bar),
        )  # fmt: skip
    s.note_unreadable(s.train, unreadable)
    test = plain_features(s, "test", console)
    assert test.labels is not None
    with torch.inference_mode():
        scores = probe(test.values)
    prefix = "" if config.probe == "strict" else "mlp "
    numbers = {f"{prefix}top{k}": 100 * top_k(scores, test.labels, k) for k in (1, 5)}
    return _Judged(probe, scores, test.labels, numbers, asdict(config), began)
