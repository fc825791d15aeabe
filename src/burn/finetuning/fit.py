"""The training on all images: it writes resume files and metrics.csv, and stops on a signal."""

from __future__ import annotations

import time
from typing import Any

from burn.core.errors import UserError
from burn.core.types import Batch
from burn.evaluation.fine_tuning import Tuner, Tuning
from burn.finetuning.folder import TunedFolder
from burn.finetuning.job import Job, Stopped
from burn.finetuning.progress import TuningProgress
from burn.learning.loop import Callback, Loop
from burn.learning.resume_files import SaveResume
from burn.training.records.metrics import StepFile


def fit(job: Job, folder: TunedFolder, tuner: Tuner, progress: TuningProgress) -> float:
    """Train to the end, from the resume file if there is one, and return the seconds of training.

    Those before an interruption count. A signal raises Stopped after a step, which was saved if it
    could be.
    """
    files, steps = folder.resume_files(), tuner.loop.num_steps

    def restore(loop: Loop[Tuning]) -> None:
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
        self._learning_rate = 0.0  # of the last step

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self._began

    def on_start(self, loop: Loop[Tuning]) -> None:
        self._file.start(loop.step)

    def on_before_step(self, loop: Loop[Tuning]) -> None:
        self._learning_rate = loop.optimizer.param_groups[0]["lr"]

    def on_batch_end(self, loop: Loop[Tuning], batch: Batch) -> None:
        if loop.step % self._every and loop.step != loop.num_steps:
            return
        row = {
            "step": loop.step,
            "epoch": loop.epoch,
            "loss": float(loop.learner.loss),
            "accuracy": float(loop.learner.right),
            "learning_rate": self._learning_rate,
        }
        self._file.append([row])

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.before = state["seconds"]
