"""The choice of learning rates, by short trainings that are tested on held-out training images."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.core.errors import UserError
from burn.core.types import Features
from burn.data.base import Source
from burn.data.splits import Subset
from burn.evaluation.artifacts.kept import KeptParts
from burn.evaluation.checks import doubt_of_choice
from burn.evaluation.features import extract_features
from burn.evaluation.linear_layer import calibrating_temperature, top_k
from burn.finetuning.folder import TunedFolder
from burn.finetuning.job import HELD_OUT, Answers, Job, Stopped
from burn.finetuning.progress import TuningProgress
from burn.finetuning.settings import epochs_in_words
from burn.learning.loop import Callback, Loop
from burn.runtime.signals import StopRequest

_TRIAL = {
    "lr": float, "head_lr": float, "top1": (float, type(None)), "loss": (float, type(None)),
    "calibration": float, "seconds": float,
}  # fmt: skip


def choose(
    job: Job,
    folder: TunedFolder,
    start: nn.Linear,
    answers: Answers | None,
    progress: TuningProgress,
) -> list[dict[str, Any]]:
    """Train with each learning rate; first those of the backbone, then the classifier's."""
    config = job.config
    if not config.trials:
        return []
    kept = folder.trials(_TRIAL)
    trials: list[dict[str, Any]] = []

    def add(lr: float, head_lr: float) -> None:
        stops = _Stops(job.stop, saved=bool(trials))
        trials.append(_trial(job, kept, start, answers, lr, head_lr, progress, stops))

    for lr in config.lrs:
        add(lr, config.head_lrs[0])
    best = best_of(trials)
    for head_lr in config.head_lrs[1:]:
        add(best["lr"], head_lr)
    best = best_of(trials)
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
    return trials


def _trial(
    job: Job,
    kept: KeptParts,
    start: nn.Linear,
    answers: Answers | None,
    lr: float,
    head_lr: float,
    progress: TuningProgress,
    stops: _Stops,
) -> dict[str, Any]:
    """Train on the images that are not held out, and evaluate on those that are."""
    config = job.config
    if earlier_trial := kept.find(lr=lr, head_lr=head_lr):
        progress.skip(job.steps(job.learn, config.trial_epochs))
        job.earlier += earlier_trial["seconds"]
        return earlier_trial
    began = time.perf_counter()
    progress.begin(f"trial, lr {lr:g}, {head_lr:g}")
    backbone = copy.deepcopy(job.model.backbone)
    head = copy.deepcopy(start).to(job.device)
    plan = job.plan(job.learn, config.trial_epochs, lr, head_lr)
    tuner = job.tuner(backbone, head, job.learn, plan, answers)
    finite = tuner.train([progress, stops])
    top1 = loss = None
    calibration = 1.0
    if finite:
        top1, loss, calibration = _held_out_scores(job, backbone, head)
    seconds = round(time.perf_counter() - began, 3)
    shown = "diverged" if top1 is None else f"top-1 {top1:.1f} % of the held-out images"
    job.console.print(f"lr {lr:g}, {head_lr:g}: {shown}, {seconds:.0f} s", highlight=False)
    done = {
        "lr": lr, "head_lr": head_lr, "top1": top1, "loss": loss,
        "calibration": calibration, "seconds": seconds,
    }  # fmt: skip
    return kept.add(done)


class _Stops(Callback):
    """Ends a trial after a step in which a signal came; a resumed run begins it again."""

    def __init__(self, stop: StopRequest, saved: bool) -> None:
        self._stop, self._saved = stop, saved

    def on_batch_end(self, loop: Loop[Any], batch: Any) -> None:
        if self._stop.requested:
            raise Stopped(self._saved)


def _held_out_scores(
    job: Job, backbone: Backbone, head: nn.Linear
) -> tuple[float | None, float | None, float]:
    """Return top-1 in percent, cross-entropy and calibrating temperature on held-out images."""
    features = _features(job, backbone, job.held)
    assert features.labels is not None
    with torch.inference_mode():
        scores = head.cpu()(features.values)
    if not bool(torch.isfinite(scores).all()):
        return None, None, 1.0
    top1 = round(100 * top_k(scores, features.labels, 1), 4)
    loss = round(min(1e9, float(F.cross_entropy(scores, features.labels))), 6)
    return top1, loss, calibrating_temperature(scores, features.labels)


def has_finite_scores(job: Job, readable: Tensor, backbone: Backbone, head: nn.Linear) -> bool:
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


def best_of(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the most accurate trial; of equal ones that of the least cross-entropy."""
    valid = [trial for trial in trials if trial["top1"] is not None]
    if not valid:
        raise UserError("finetune: every trial diverged: give lower --lrs")
    return max(valid, key=lambda trial: (trial["top1"], -trial["loss"]))
