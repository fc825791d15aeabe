"""The network and the images of an evaluation, and what it collects while it runs."""

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
from burn.checkpoints.native import find_checkpoint, images_seen, load_checkpoint
from burn.checkpoints.pretrained import names_checkpoint
from burn.checkpoints.tuned import plain_meta
from burn.core.errors import UserError, listed, printable
from burn.core.inputs import read_json
from burn.core.paths import RUN_FILE, stored_path
from burn.core.results import Result
from burn.core.settings import from_plain
from burn.core.types import Checkpoint, Features
from burn.data.base import Source
from burn.data.checks import remarks
from burn.data.decode import UnreadableImage
from burn.data.view_config import ViewConfig
from burn.deploy.running import PackedForward
from burn.evaluation.checks import are_numbers
from burn.evaluation.configs import EvaluationCompute
from burn.evaluation.features import Forward, packed_forward
from burn.runtime.compute import Device, default_workers, torch_device, uses_bfloat16
from burn.runtime.launch import ranks

_LOST = 5  # least size of a class whose loss is an error; a rare class may lose all its images
_MOST_NAMES = 1000  # class names to write in each line of results.jsonl; ImageNet's take 10 kB


@dataclass(frozen=True)
class EvaluationContext:
    """What a protocol evaluates, on which images, and how.

    Attributes:
        model: Short name of the network for tables.
        checkpoint: The checkpoint of its weights, as the command names it.
        backbone: The network.
        views: Settings of the views that it was trained with.
        train: Images to learn from.
        test: Images to evaluate on.
        seed: The random seed.
        workers: Number of data-loader workers.
        out: Folder for the files that a protocol writes, or None.
        bfloat16: Whether the backbone runs under autocast.
        packed: The backbone in burn-engine, which computes features instead, or None.
        meta: Description of the backbone's checkpoint, or None where it is not known.
        notes: Remarks to show the user afterwards, such as images that were left out.
        kept: Extracted features by key.
        training: How the checkpoint was trained, as in `Result.training`.
        announce: To be called with the results before other files are written.
        unkept: Why other files could not be written, a line each.
        classifiers: The linear classifiers that a protocol trained.
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
    packed: PackedForward | None = None
    meta: Mapping[str, Any] | None = None

    @property
    def device(self) -> torch.device:
        """The device of the backbone."""
        return next(self.backbone.parameters()).device

    @property
    def forward(self) -> Forward:
        """The backbone as it computes features."""
        return Forward(self.backbone, self.bfloat16, self.packed)

    @property
    def compute(self) -> str:
        """The arithmetic of features: packed, bfloat16 or float32."""
        return self.forward.compute

    @cached_property
    def fingerprint(self) -> str:
        """A hash that changes with the weights and settings of the backbone."""
        return fingerprint(self.backbone)

    def about(self) -> dict[str, str]:
        """Return the names of network, checkpoint and images, as results have them."""
        return {
            "model": self.model,
            "checkpoint": self.checkpoint,
            "train": self.train.name,
            "test": self.test.name,
        }

    def about_in(self, folder: Path) -> dict[str, str]:
        """Return the same names as a file in a folder holds them."""
        return {**self.about(), "checkpoint": stored_path(self.checkpoint, folder)}

    def keep(self, write: Callable[[], object]) -> bool:
        """Write a file that no number depends on; a failure is added to `unkept`, not raised.

        Args:
            write: Writes the file. It may raise OSError or UserError, e.g. for a full disk.

        Returns:
            Whether the file was written.
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
        """Check that `keep` wrote all files.

        Raises:
            UserError: A file could not be written.
        """
        if self.unkept:
            more = f" (and {len(self.unkept) - 1} more)" if len(self.unkept) > 1 else ""
            raise UserError(
                "the results are complete, but a file that belongs beside them could not be "
                f"written: {self.unkept[0]}{more}"
            )

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the training labels, from the test images if the training images have none."""
        train, test = self.train.classes, self.test.classes
        if not are_numbers(train):
            return train
        return (*test[: len(train)], *train[len(test) :])

    @cached_property
    def data(self) -> dict[str, Any]:
        """Facts about the images, as in `Result.data`."""
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
        """Add a note about images that could not be read, unless it was added before.

        Args:
            source: The images.
            positions: Positions of those that could not be read; possibly none.

        Raises:
            UserError: A class lost all of its images, and had at least five, so that the result
                would be about fewer classes than it claims.
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
        self,
        protocol: str,
        numbers: Mapping[str, float],
        settings: Mapping[str, Any],
        began: float,
        spread: Mapping[str, float] | None = None,
        right: str | None = None,
    ) -> list[Result]:
        """Make a Result of each number.

        Args:
            protocol: Name of the protocol.
            numbers: The numbers by the names of their metrics.
            settings: Settings of the protocol.
            began: When the work began, by `time.perf_counter`.
            spread: Standard deviations over samples by the names of their metrics.
            right: The right answers of the top-1, as in `Result.right`.
        """
        seconds = round(time.perf_counter() - began, 3)
        return [
            Result(
                protocol=protocol,
                metric=metric,
                value=round(value, 4),
                seed=self.seed,
                seconds=seconds,
                settings={**settings, "compute": self.compute},
                spread=round(spread[metric], 4) if spread and metric in spread else None,
                data=self.data,
                training=self.training,
                right=right if metric.endswith("top1") else None,
                **self.about(),
            )
            for metric, value in numbers.items()
        ]


def _why_unreadable(source: Source, index: int) -> str:
    """Return the name of an image and why it is unreadable; only the name if it is not any more."""
    try:
        source.read(index)
    except UnreadableImage as error:
        return str(error)
    return source.describe(index)


@dataclass(frozen=True)
class Model:
    """A network to evaluate, in eval mode, and the views that it was trained with.

    `name` is short, for tables, `training` as in `Result.training`, `meta` as for `tuned_meta`.
    """

    name: str
    backbone: Backbone
    views: ViewConfig
    training: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None

    @property
    def labels_notes(self) -> list[str]:
        """A line for each way in which labels helped to train the network."""
        facts = label_facts(self.training) or {}
        return [f"{self.name}: {_LABELS[key]} {labels} labels" for key, labels in facts.items()]


# By their keys in `Result.training`, the ways in which labels may stand behind a network.
_LABELS = {
    "teacher_labels": "its teacher was trained with",
    "start_labels": "behind the weights that it started from are",
}


def label_facts(training: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what `Result.training` tells of labels, and nothing of the training itself."""
    facts = training or {}
    return {key: facts[key] for key in _LABELS if key in facts} or None


def open_context(
    model: Model,
    checkpoint: str,
    sources: tuple[Source, Source],
    *,
    seed: int,
    device: Device = "auto",
    compute: EvaluationCompute = "auto",
    workers: int | None = None,
    out: Path | None = None,
    frozen: bool = True,
) -> EvaluationContext:
    """Make the context of a network on some images, as every command evaluates.

    The network moves to the device. The context's notes tell how labels helped to train it,
    whether it is tested on the training images, and which images are left out. `frozen` says that
    the weights stay as they are, so that burn-engine may compute features. UserError is raised if
    the device is not there, or `compute` is "packed" and burn-engine cannot run the network.
    """
    backbone = model.backbone.to(torch_device(device))
    size = model.views.size
    if workers is None:
        workers = default_workers(device, ranks().local_count)
    context = EvaluationContext(
        model.name,
        checkpoint,
        backbone,
        model.views,
        *sources,
        seed,
        workers,
        out,
        bfloat16=compute != "packed" and uses_bfloat16(compute, device),
        notes=model.labels_notes,
        training=model.training,
        packed=packed_forward(backbone, size, compute, torch_device(device)) if frozen else None,
        meta=model.meta,
    )
    train, test = sources
    if (train.fingerprint, len(train)) == (test.fingerprint, len(test)):
        context.notes.append(
            f"{test.name} is both trained and tested on, so the numbers tell nothing of other "
            "images: give others to test on, or labelled data as DATA:rest and DATA:tenth"
        )
    for source in sources:
        lines = [f"{source.name}: {line}" for line in remarks(source)]
        context.notes.extend(line for line in lines if line not in context.notes)
    return context


def open_model(spec: str, *, fresh: bool, seed: int) -> Model:
    """Open the network of a run folder, a checkpoint, or ARCHITECTURE:FILE as for `load_backbone`.

    With `fresh` the network of a checkpoint gets new random weights, as a lower bound. UserError is
    raised if the checkpoint cannot be read.
    """
    if not names_checkpoint(spec):
        if fresh:
            raise UserError("random weights need a checkpoint of burn's to copy the network from")
        backbone, origin = load_backbone(spec)
        views = ViewConfig(size=backbone.fixed_size or 224)
        name = str(origin["architecture"])
        if "labels" in origin:
            name += f", trained with {origin['labels']} labels"
        meta = plain_meta(name, backbone, views, origin.get("labels"))
        return Model(name, backbone, views, meta=meta)
    checkpoint = load_checkpoint(find_checkpoint(Path(spec)))
    model = model_of(checkpoint, backbone_from(checkpoint, fresh=fresh, seed=seed))
    if not fresh:
        return model
    name = f"random {model.backbone.config.name}, {checkpoint.meta['precision']}"
    return Model(name, model.backbone, model.views, meta=model.meta)


def model_of(checkpoint: Checkpoint, backbone: Backbone) -> Model:
    """Combine a backbone with its checkpoint's description, or raise UserError if it is damaged."""
    meta = checkpoint.meta
    try:
        views = from_plain(ViewConfig, meta["views"])
        views.check()
        name = f"{meta['recipe']['name']}, "
        name += "fine-tuned" if "finetuned" in meta else f"stage {meta['stage']}"
        name = "".join(c for c in name if c.isprintable())[:80]
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"{checkpoint.origin}: its description is damaged: {error}") from error
    return Model(name, backbone, views, _training(meta, Path(checkpoint.origin)), meta)


def _training(meta: Mapping[str, Any], file: Path) -> dict[str, Any] | None:
    """Return `Result.training` of a checkpoint, if its metadata say how long it was trained."""
    try:
        stage, steps = int(meta["stage"]), int(meta["steps"])
        images = images_seen(meta)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    facts = {}
    for key, part in (("teacher_labels", "teacher"), ("start_labels", "init")):
        origin = meta.get(part)
        if isinstance(origin, Mapping) and origin.get("labels") is not None:
            facts[key] = printable(str(origin["labels"])[:80])
    facts |= {"run": run} if (run := _run_around(file)) else {}
    precision = str(meta.get("precision"))
    return {"stage": stage, "steps": steps, "images_seen": images, "precision": precision, **facts}


def _run_around(file: Path) -> str | None:
    """Return the name that run.json gives the run of a checkpoint, or None if there is none."""
    try:
        name = read_json(file.parent / RUN_FILE).get("run") if file.is_file() else None
    except (UserError, AttributeError):  # no run, such as an imported checkpoint
        return None
    return name if isinstance(name, str) and name.isalnum() else None
