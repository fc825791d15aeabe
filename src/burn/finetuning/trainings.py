"""The trainings of a fine-tuning: linear classifiers, trials of learning rates, and all images."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.core.errors import UserError
from burn.core.types import Batch, Features
from burn.data.base import Source
from burn.data.splits import Subset, hold_out
from burn.evaluation.accuracy import top_k
from burn.evaluation.cache import plain_features
from burn.evaluation.checks import doubt_of_choice
from burn.evaluation.configs import LinearConfig
from burn.evaluation.features import extract_features
from burn.evaluation.fine_tuning import FineTuningLearner, Tuner
from burn.evaluation.linear_layer import (
    cached_batches,
    calibrating_temperature,
    train_linear_at_best_rate,
)
from burn.finetuning.folder import TunedFolder
from burn.finetuning.job import HELD_OUT, Answers, Job, Stopped
from burn.finetuning.settings import epochs_in_words
from burn.learning.loop import Callback, Loop
from burn.learning.pace import Pace, rate
from burn.learning.resume_files import SaveResume
from burn.runtime.signals import StopRequest
from burn.training.records.metrics import StepFile

_HELD_OUT = 0.1  # share of the images on which a linear classifier's learning rate is chosen
_TRIAL = {
    "lr": float, "head_lr": float, "top1": (float, type(None)), "loss": (float, type(None)),
    "calibration": float, "seconds": float,
}  # fmt: skip
_DIVERGED: dict[str, float | None] = {"top1": None, "loss": None, "calibration": 1.0}
_FIRST, _LATER = 10, 0.1  # seconds to the first line; share of the time so far to the next


def train(job: Job, folder: TunedFolder) -> tuple[Tuner, nn.Linear, dict[str, Any], float]:
    """Choose the learning rates, and train on all images.

    Returns the training, its classifier, what a checkpoint tells of it, and its seconds.
    """
    config, seed = job.config, job.request.seed
    _say_plan(job)
    taught = None
    with job.stop.at_once():
        features = plain_features(job.frozen, "train", job.console)
        if job.teacher is not None:
            taught = job.teacher.features(job.train, job.workers)
    linear = _linear_start(features, job.learn, seed)
    frozen = _accuracy(linear, features, job.held)
    said = f"linear classifier on the frozen network: {frozen:.1f} % of the held-out images"
    if taught is not None:
        teacher_classifier = _linear_start(taught, job.learn, seed)
        teacher_accuracy = _accuracy(teacher_classifier, taught, job.held)
        said += f", on the teacher: {teacher_accuracy:.1f} %"
    job.console.print(said, highlight=False)
    with _Progress(job.console, job.all_steps) as progress:
        answers = None
        if config.trials and job.teacher is not None and taught is not None:
            answers = job.teacher.answers(teacher_classifier)
        trials = _choose(job, folder, linear, answers, progress)
        best = _best_of(trials) if trials else None
        lr = best["lr"] if best else config.lrs[0]
        head_lr = best["head_lr"] if best else config.head_lrs[0]
        head = _linear_start(features, job.train, seed)
        if job.teacher is not None and taught is not None:
            answers = job.teacher.answers(_linear_start(taught, job.train, seed))
        backbone = copy.deepcopy(job.model.backbone)
        head = head.to(job.device)
        tuner = job.tuner(backbone, head, job.train, config.epochs, lr, head_lr, answers)
        seconds = _fit(job, folder, tuner, progress)
        if not _has_finite_scores(job, features.positions, backbone, head):
            raise UserError(
                "fine-tuning diverged, and no network was saved: give lower --lrs with --overwrite"
            )
    about = {
        "start": job.start,
        "settings": asdict(config),
        "lr": lr,
        "head_lr": head_lr,
        "linear": round(frozen, 4),
        "held_out": len(job.held),
        "trials": trials,
        "calibration": best["calibration"] if best else 1.0,
        "teacher": job.described["teacher"],
        "test": job.described["test"],
        "unreadable": sorted(tuner.unreadable),
    }
    return tuner, head, about, seconds


def _say_plan(job: Job) -> None:
    config, choice = job.config, ""
    if config.trials:
        choice = (
            f" {config.trials} trials of {epochs_in_words(config.trial_epochs)} on "
            f"{len(job.learn):,} of them choose the learning rates on the other "
            f"{len(job.held):,}, then"
        )
    text = f"fine-tuning {job.model.name} on {len(job.train):,} images:{choice}"
    job.console.print(f"{text} {epochs_in_words(config.epochs)} on all", highlight=False)


def _linear_start(features: Features, source: Subset, seed: int) -> nn.Linear:
    """Train a linear classifier on frozen features, as linear evaluation with `--augment none`.

    The features are those of plain views of all images of `source`'s source. A tenth of `source`
    chooses the learning rate; if there is one image of each class, they choose it themselves. The
    classifier is on the CPU; the softmax of its scores is calibrated if images are held out.
    """
    rows = torch.isin(features.positions, torch.from_numpy(source.indices))
    assert source.labels is not None
    held_out, single = rows, np.bincount(source.labels).max() < 2
    if not single:
        _, part = hold_out(source, _HELD_OUT, seed, keep_single=True)
        held_out = torch.isin(features.positions, torch.from_numpy(source.indices[part.indices]))
    if not bool(held_out.any()):
        raise UserError(f"{source.name}: none of the held-out images can be read")
    batches = cached_batches(features.of(rows), LinearConfig().batch_size, seed)
    chosen = train_linear_at_best_rate(
        batches, features.of(held_out), len(source.classes), LinearConfig(), seed
    )
    layer = chosen.layer
    if not single:
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.div_(chosen.temperature)
    return layer


def _accuracy(layer: nn.Linear, features: Features, source: Subset) -> float:
    """Return the accuracy in percent of a classifier on a part of the images with features."""
    part = features.of(torch.isin(features.positions, torch.from_numpy(source.indices)))
    assert part.labels is not None
    with torch.inference_mode():
        return 100 * top_k(layer(part.values), part.labels, 1) if len(part.labels) else 0.0


def _choose(
    job: Job,
    folder: TunedFolder,
    start: nn.Linear,
    answers: Answers | None,
    progress: _Progress,
) -> list[dict[str, Any]]:
    """Train with each learning rate; first those of the backbone, then the classifier's."""
    config, learn = job.config, job.learn
    if not config.trials:
        return []
    kept = folder.trials(_TRIAL)
    trials: list[dict[str, Any]] = []

    def trial(lr: float, head_lr: float) -> dict[str, Any]:
        """Train on the images that are not held out, and evaluate on those that are."""
        if earlier_trial := kept.find(lr=lr, head_lr=head_lr):
            progress.skip(job.steps(learn, config.trial_epochs))
            job.earlier += earlier_trial["seconds"]
            return earlier_trial
        began = time.perf_counter()
        progress.begin(f"trial, lr {lr:g}, {head_lr:g}")
        backbone = copy.deepcopy(job.model.backbone)
        head = copy.deepcopy(start).to(job.device)
        tuner = job.tuner(backbone, head, learn, config.trial_epochs, lr, head_lr, answers)
        finite = tuner.train([progress, _Stops(job.stop, saved=bool(trials))])
        scores = _held_out_scores(job, backbone, head) if finite else _DIVERGED
        seconds = round(time.perf_counter() - began, 3)
        top1 = scores["top1"]
        shown = "diverged" if top1 is None else f"top-1 {top1:.1f} % of the held-out images"
        job.console.print(f"lr {lr:g}, {head_lr:g}: {shown}, {seconds:.0f} s", highlight=False)
        return kept.add({"lr": lr, "head_lr": head_lr, **scores, "seconds": seconds})

    for lr in config.lrs:
        trials.append(trial(lr, config.head_lrs[0]))
    lr = _best_of(trials)["lr"]
    for head_lr in config.head_lrs[1:]:
        trials.append(trial(lr, head_lr))
    _note_choice(job, trials)
    return trials


def _note_choice(job: Job, trials: Sequence[Mapping[str, Any]]) -> None:
    config, best = job.config, _best_of(trials)
    results = "; ".join(
        f"{t['lr']:g}, {t['head_lr']:g}: "
        + ("diverged" if t["top1"] is None else f"{t['top1']:.1f}")
        for t in trials
    )
    job.notes.append(
        f"learning rates of network, classifier: top-1 on {len(job.held):,} held-out "
        f"training images after {epochs_in_words(config.trial_epochs)}: {results}"
    )
    if best["lr"] in (min(config.lrs), max(config.lrs)) and len(config.lrs) > 1:
        job.notes.append(
            f"the chosen learning rate {best['lr']:g} is at the end of the range: --lrs beyond "
            "it may be better"
        )
    job.notes += doubt_of_choice(len(job.held), HELD_OUT, "the learning rates")


class _Stops(Callback):
    """Ends a trial after a step in which a signal came; a resumed run begins it again."""

    def __init__(self, stop: StopRequest, saved: bool) -> None:
        self._stop, self._saved = stop, saved

    def on_batch_end(self, loop: Loop[Any], batch: Any) -> None:
        if self._stop.requested:
            raise Stopped(self._saved)


def _held_out_scores(job: Job, backbone: Backbone, head: nn.Linear) -> dict[str, float | None]:
    """Return top-1 in percent, cross-entropy and calibrating temperature on held-out images."""
    features = _features(job, backbone, job.held)
    assert features.labels is not None
    with torch.inference_mode():
        scores = head.cpu()(features.values)
    if not bool(torch.isfinite(scores).all()):
        return _DIVERGED
    return {
        "top1": round(100 * top_k(scores, features.labels, 1), 4),
        "loss": round(min(1e9, float(F.cross_entropy(scores, features.labels))), 6),
        "calibration": calibrating_temperature(scores, features.labels),
    }


def _has_finite_scores(job: Job, readable: Tensor, backbone: Backbone, head: nn.Linear) -> bool:
    """Return whether a trained network's scores of some training images are finite.

    `readable` are positions of those that can be read. The classifier is moved to the CPU.
    """
    some = Subset(job.train, readable[: job.config.batch_size].tolist())
    with torch.inference_mode():
        scores = head.cpu()(_features(job, backbone, some).values)
    return bool(torch.isfinite(scores).all())


def _features(job: Job, backbone: Backbone, source: Source) -> Features:
    return extract_features(
        backbone, source, job.model.views, workers=job.workers, bfloat16=job.bfloat16
    )


def _best_of(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the most accurate trial; of equal ones that of the least cross-entropy."""
    valid = [trial for trial in trials if trial["top1"] is not None]
    if not valid:
        raise UserError("finetune: every trial diverged: give lower --lrs")
    return max(valid, key=lambda trial: (trial["top1"], -trial["loss"]))


def _fit(job: Job, folder: TunedFolder, tuner: Tuner, progress: _Progress) -> float:
    """Train to the end, from the resume file if there is one, and return the seconds of training.

    Those before an interruption count. A signal raises Stopped after a step, which was saved if it
    could be.
    """
    files, steps = folder.resume_files(), tuner.loop.num_steps

    def restore(loop: Loop[FineTuningLearner]) -> None:
        if files.resume(loop, job.console):
            progress.skip(loop.step)
            job.console.print(f"resumed at step {loop.step:,} of {steps:,}", highlight=False)

    metrics = _Metrics(folder.metrics_file(), max(1, min(20, steps // 50)))
    saver = SaveResume(files, job.stop, job.request.save_every, job.console)
    progress.begin("finetune")
    finite = tuner.train([progress, metrics, saver], restore)
    job.earlier += metrics.before
    if saver.stopped_by:
        raise Stopped(saved=saver.last_step == tuner.loop.step)
    if not finite:
        raise UserError("fine-tuning diverged: give lower --lrs; nothing was saved")
    return metrics.seconds


class _Metrics(Callback):
    """Writes metrics.csv, and knows how long the training took."""

    def __init__(self, file: StepFile, every: int) -> None:
        self._file, self._every = file, every
        self.before, self._began = 0.0, time.monotonic()  # seconds before an interruption

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self._began

    def on_start(self, loop: Loop[FineTuningLearner]) -> None:
        self._file.start(loop.step)

    def on_batch_end(self, loop: Loop[FineTuningLearner], batch: Batch) -> None:
        if loop.step % self._every and loop.step != loop.num_steps:
            return
        row = {
            "step": loop.step,
            "epoch": loop.epoch,
            "loss": float(loop.learner.loss),
            "accuracy": float(loop.learner.right),
            "learning_rate": loop.learning_rate,
        }
        self._file.append([row])

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = state["seconds"]


class _Progress(Callback):
    """The progress of several trainings, one after the other, within a `with` statement."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        self._pace = Pace()
        self._bar: Progress | None = None
        self._title = ""

    def __enter__(self) -> _Progress:
        self._started = time.monotonic()
        self._due = self._started + _FIRST
        if self._console.is_terminal and not self._console.quiet:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=20),
                TextColumn("{task.fields[told]}"), console=self._console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task("finetune", total=self._total, told="starting")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, title: str) -> None:
        self._title = title

    def skip(self, steps: int) -> None:
        """Count steps that an earlier call of the command made."""
        self._done += steps

    def on_batch_end(self, loop: Loop[FineTuningLearner], batch: Batch) -> None:
        self._done += 1
        now = time.monotonic()
        self._pace.batch(len(batch.indices), now)
        if now < self._due:
            return  # reading the loss from a GPU waits for it
        parts = [f"{loop.step}/{loop.num_steps} steps"]
        if (speed := self._pace.images_per_second) is not None:
            parts += [rate(speed), f"{self._pace.left(self._total - self._done)} left in all"]
        loss, right = float(loop.learner.loss), float(loop.learner.right)
        parts.append(f"loss {loss:.3f} accuracy {100 * right:.0f} %")
        text = " · ".join(parts)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, description=self._title, told=text)
            self._due = now + 0.2
        else:
            self._console.print(f"{self._title} · {text}", highlight=False)
            self._due = now + max(_FIRST, _LATER * (now - self._started))
