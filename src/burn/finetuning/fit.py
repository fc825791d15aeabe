"""The training on all images: it writes resume files and metrics.csv, and stops on a signal."""

from __future__ import annotations

import io
import time

import torch

from burn.core.errors import UserError
from burn.evaluation.fine_tuning import Tuner
from burn.finetuning.folder import TunedFolder
from burn.finetuning.job import Job, Stopped
from burn.finetuning.progress import TuningProgress


def fit(job: Job, folder: TunedFolder, tuner: Tuner, progress: TuningProgress) -> float:
    """Train to the end, from the resume file if there is one.

    Args:
        job: Says when to save and when to stop.
        folder: The folder of the run.
        tuner: The training, at its beginning.
        progress: Shows the steps.

    Returns:
        The seconds of training, those before an interruption included.

    Raises:
        UserError: Training diverged, or the resume file cannot be used.
        Stopped: After a step in which a signal came, and which was saved.
    """
    began = time.monotonic()
    files = folder.resume_files()
    shapes = {
        f"{part}.{name}": tensor.shape
        for part in ("backbone", "head")
        for name, tensor in tuner.state_dict()[part].items()
    }
    before = 0.0
    if resumed := files.usable(shapes, job.console):
        content = torch.load(resumed, map_location="cpu", weights_only=True)
        tuner.load_state_dict(content["tuner"])
        before = content["seconds"]
        progress.skip(tuner.steps)
        job.console.print(
            f"resumed at step {tuner.steps:,} of {tuner.num_steps:,}", highlight=False
        )
    metrics = folder.metrics(tuner.steps)
    every = max(1, min(20, tuner.num_steps // 50))
    saved = time.monotonic()
    failure = ""

    def elapsed() -> float:
        return before + time.monotonic() - began

    def save() -> None:
        nonlocal saved, failure
        state = tuner.state_dict()
        weights = {
            f"{part}.{name}": tensor
            for part in ("backbone", "head")
            for name, tensor in state[part].items()
        }
        content = io.BytesIO()
        torch.save(
            {
                "state_dict": weights, "tuner": state, "seconds": elapsed(),
                "owner": files.owner, "settings": files.settings,
            },
            content,
        )  # fmt: skip
        saved = time.monotonic()
        try:
            files.add(content.getvalue())
            failure = ""
        except OSError as error:
            failure = error.strerror or str(error)
            job.console.print(
                f"step {tuner.steps} could not be saved: {files.newest}: {failure}; training "
                "continues",
                style="bold red",
            )

    def step() -> None:
        progress.step(tuner)
        if tuner.steps % every == 0 or tuner.steps == tuner.num_steps:
            metrics(tuner)
        stopping = job.stop.requested
        if stopping or time.monotonic() - saved >= 60 * job.request.save_every:
            save()
        if stopping:
            raise Stopped

    progress.begin("finetune")
    if not tuner.train(on_step=step):
        raise UserError("fine-tuning diverged: give lower --lrs; nothing was saved")
    return elapsed()
