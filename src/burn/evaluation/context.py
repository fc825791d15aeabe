"""From a command line's words to something that can be evaluated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burn.backbones.base import Backbone
from burn.checkpoints.classifier import Classifier, fingerprint
from burn.checkpoints.foreign.weights import backbone_from, load_backbone
from burn.checkpoints.native import find_checkpoint, images_per_step, load_checkpoint
from burn.core.errors import UserError, listed, printable
from burn.core.results import Result
from burn.core.settings import from_plain
from burn.core.types import Checkpoint, Features
from burn.data.base import Source
from burn.data.decode import UnreadableImage
from burn.data.view_config import ViewConfig

_LOST = 5  # images of a class; a rare class may lose one or two that are damaged
_MOST_NAMES = 1000  # names of classes in each line of results.jsonl; ImageNet's are 10 kB


@dataclass(frozen=True)
class EvaluationContext:
    """What is evaluated, on what, and how.

    model: short name for tables. checkpoint: where its weights came from. out: folder for what a
    protocol keeps, if anything. bfloat16: whether the backbone runs under autocast. notes: what
    the user should hear of afterwards, such as images that were left out. kept: features by key.
    training: how long the checkpoint was trained, as `Result.training`.
    announce: called with the results before anything beside them is written. unkept: why files
    beside the results could not be written, a line each. classifiers: the linear ones that a
    protocol trained.
    """

    model: str
    checkpoint: str
    backbone: Backbone
    views: ViewConfig
    train: Source
    test: Source
    seed: int
    workers: int
    out: Path | None = None
    bfloat16: bool = False
    notes: list[str] = field(default_factory=list)
    kept: dict[str, Features] = field(default_factory=dict)
    training: Mapping[str, Any] | None = None
    announce: Callable[[Sequence[Result]], None] = lambda _: None
    unkept: list[str] = field(default_factory=list)
    classifiers: list[Classifier] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """Where the backbone is."""
        return next(self.backbone.parameters()).device

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the network's weights and settings."""
        return fingerprint(self.backbone)

    def about(self) -> dict[str, str]:
        """Which network is evaluated on what, in the words of its results."""
        return {
            "model": self.model,
            "checkpoint": self.checkpoint,
            "train": self.train.name,
            "test": self.test.name,
        }

    def keep(self, write: Callable[[], object]) -> bool:
        """Call `write`, which writes a file that no number depends on; returns whether it could.

        A full disk or a folder without permission is remembered in `unkept` instead of raised.
        """
        try:
            write()
        except (OSError, UserError) as error:
            why = str(error)
            if isinstance(error, OSError) and error.filename:
                why = f"{error.filename}: {error.strerror}"
            if why not in self.unkept:
                self.unkept.append(why)
            return False
        return True

    def require_kept(self) -> None:
        """Raise UserError where a file that `keep` was to write could not be written."""
        if self.unkept:
            more = f" (and {len(self.unkept) - 1} more)" if len(self.unkept) > 1 else ""
            raise UserError(
                "the results are complete, but a file that belongs beside them could not be "
                f"written: {self.unkept[0]}{more}"
            )

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the training labels: the test images' where the training images have numbers."""
        train, test = self.train.classes, self.test.classes
        if not are_numbers(train):
            return train
        return (*test[: len(train)], *train[len(test) :])

    @cached_property
    def data(self) -> dict[str, Any]:
        """What the images are beyond their names, as `Result.data`."""
        names = self.class_names
        about: dict[str, Any] = {"num_classes": len(names)}
        if len(names) <= _MOST_NAMES:
            about["classes"] = list(names)
        for part, source in (("train", self.train), ("test", self.test)):
            about[f"{part}_images"] = len(source)
            about[f"{part}_fingerprint"] = source.fingerprint
        labels = self.test.labels
        if labels is not None and len(labels):
            about["largest_class"] = round(100 * int(np.bincount(labels).max()) / len(labels), 4)
        return about

    def note_unreadable(self, source: Source, positions: Iterable[int]) -> None:
        """Have the user hear, once, of images of `source` that could not be read, and why not.

        Raises UserError where a class lost all of its images, `_LOST` or more: the number would be
        of fewer classes than it says.
        """
        missing = sorted(set(positions))
        if not missing:
            return
        reason = _why_unreadable(source, missing[0])
        if source.labels is not None:
            counts = np.bincount(source.labels, minlength=len(source.classes))
            without = counts == np.bincount(source.labels[missing], minlength=len(counts))
            for label in np.flatnonzero(without & (counts >= _LOST)).tolist():
                first = next(index for index in missing if source.labels[index] == label)
                raise UserError(
                    f"{source.name}: none of the {counts[label]} images of class "
                    f"{source.classes[label]} can be read: {_why_unreadable(source, first)}"
                )
        names = listed(missing[1:], 4, each=200, name=source.describe)
        note = f"unreadable images, left out: {len(missing)}: {reason}"
        note += f"; {names}" if names else ""
        if note not in self.notes:
            self.notes.append(note)

    def results(
        self, protocol: str, numbers: Mapping[str, float], settings: Mapping[str, Any],
        began: float, spread: Mapping[str, float] | None = None, right: str | None = None,
    ) -> list[Result]:  # fmt: skip
        """A Result for each number; `began` is when its work did, by `time.perf_counter`.

        right: of the top-1, as `Result.right`.
        """
        seconds = round(time.perf_counter() - began, 3)
        compute = "bfloat16" if self.bfloat16 else "float32"
        return [
            Result(
                protocol=protocol,
                metric=metric,
                value=round(value, 4),
                seed=self.seed,
                seconds=seconds,
                settings={**settings, "compute": compute},
                spread=round(spread[metric], 4) if spread and metric in spread else None,
                data=self.data,
                training=self.training,
                right=right if metric.endswith("top1") else None,
                **self.about(),
            )
            for metric, value in numbers.items()
        ]


def _why_unreadable(source: Source, index: int) -> str:
    """Name of an image and the reason; the name alone where it can be read by now."""
    try:
        source.read(index)
    except UnreadableImage as error:
        return str(error)
    return source.describe(index)


def are_numbers(classes: tuple[str, ...]) -> bool:
    """Whether the classes have no names but 0, 1, 2 …"""
    return classes == tuple(str(i) for i in range(len(classes)))


@dataclass(frozen=True)
class Model:
    """A network to evaluate.

    name: short, for tables. backbone: in eval mode. views: the views that it is used to.
    training: how long it was trained, as `Result.training`.
    """

    name: str
    backbone: Backbone
    views: ViewConfig
    training: Mapping[str, Any] | None = None


def load_model(spec: str, *, fresh: bool, seed: int) -> tuple[str, Backbone, ViewConfig]:
    """Name, backbone and views of `open_model`."""
    model = open_model(spec, fresh=fresh, seed=seed)
    return model.name, model.backbone, model.views


def open_model(spec: str, *, fresh: bool, seed: int) -> Model:
    """The network that `spec` names.

    spec: as for a teacher (`burn.checkpoints.foreign.weights.load_backbone`). fresh: the same
    network with new weights drawn from `seed`, the floor that a checkpoint is compared with.
    """
    if not Path(spec).exists():
        backbone, origin = load_backbone(spec)
        if fresh:
            raise UserError("random weights need a checkpoint of burn's to copy the network from")
        views = ViewConfig(size=backbone.fixed_size or 224)
        name = str(origin["architecture"])
        if "labels" in origin:
            name += f", trained with {origin['labels']} labels"
        return Model(name, backbone, views)
    checkpoint = load_checkpoint(find_checkpoint(Path(spec)))
    model = model_of(checkpoint, backbone_from(checkpoint, fresh=fresh, seed=seed))
    if not fresh:
        return model
    name = f"random {model.backbone.config.name}, {checkpoint.meta['precision']}"
    return Model(name, model.backbone, model.views)


def model_of(checkpoint: Checkpoint, backbone: Backbone) -> Model:
    """The backbone with what its checkpoint says of it. Raises UserError where that is damaged."""
    meta = checkpoint.meta
    try:
        views = from_plain(ViewConfig, meta["views"])
        views.check()
        name = f"{meta['recipe']['name']}, stage {meta['stage']}"
        name = "".join(c for c in name if c.isprintable())[:80]
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"{checkpoint.origin}: its description is damaged: {error}") from error
    return Model(name, backbone, views, _training(meta))


def _training(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """How long a checkpoint's stage was trained, and by whose labels, if its description says."""
    try:
        stage, steps = int(meta["stage"]), int(meta["steps"])
        images = steps * images_per_step(meta)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    teacher = meta.get("teacher")
    labels = teacher.get("labels") if isinstance(teacher, Mapping) else None
    told = {} if labels is None else {"teacher_labels": printable(str(labels)[:80])}
    return {"stage": stage, "steps": steps, "images_seen": images, **told}
