"""Saving the state of training at regular times and before it ends on a signal."""

from __future__ import annotations

import io
import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.console import Console

from burn.runtime.distributed import Processes
from burn.runtime.signals import StopRequest
from burn.training.module import PretrainModule
from burn.training.resume_files import ResumeFiles


class ResumeWriter(TorchCheckpointIO):
    """Writes resume files for Lightning, completely or not at all; a failure does not end the run.

    Args:
        files: The files of the stage.

    Attributes:
        failure: Why the last file was not written, or None.
    """

    def __init__(self, files: ResumeFiles) -> None:
        super().__init__()
        self.files = files
        self.failure: str | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a resume file, whatever the path.

        Lightning calls this in the main process while the others wait, so it must not raise.
        """
        content = io.BytesIO()
        described = {"owner": self.files.owner, "settings": self.files.settings}
        torch.save({**checkpoint, **described}, content)
        try:
            self.files.add(content.getvalue())
            self.failure = None
        except OSError as error:
            self.failure = error.strerror or str(error)


class SaveResume(L.Callback):
    """Saves a resume file at regular times, and ends training when a process is asked to stop.

    Args:
        writer: Writes the file.
        stop: Tells whether a signal asked this process to stop.
        processes: The processes that share the run.
        minutes: Minutes between two files; 0 saves every step.
        console: Where a failure is reported.

    Attributes:
        last_step: The last step that was saved, or None.
        stopped_by: Number of the signal that ended training, or 0.
    """

    def __init__(
        self,
        writer: ResumeWriter,
        stop: StopRequest,
        processes: Processes,
        minutes: float,
        console: Console,
    ) -> None:
        self._writer, self._stop, self._processes = writer, stop, processes
        self._seconds, self._console = 60 * minutes, console
        self._saved = time.monotonic()
        self._step = 0  # the last optimizer step that was handled
        self.last_step: int | None = None
        self.stopped_by = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, PretrainModule)
        self._step = step = trainer.global_step
        if step:
            self.last_step = step
        if step and step in pl_module.replanned_at and self._processes.is_main:
            self._console.print(
                f"going on from step {step}: the schedules of the learning rate, the loss and all "
                f"else are planned anew, over {pl_module.num_steps} steps",
                highlight=False,
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any
    ) -> None:
        assert isinstance(pl_module, PretrainModule)
        if trainer.global_step == self._step:
            return  # a micro-batch without an optimizer step
        self._step = trainer.global_step
        # All processes must decide the same at the same step. 1 stands for a file that is due, so
        # signals, of which SIGHUP is 1, are counted from 2.
        due = time.monotonic() - self._saved >= self._seconds and self._processes.is_main
        due = due or self._step == pl_module.num_steps  # from there a longer run goes on
        signal = self._stop.number
        agreed = int(self._processes.all_reduce_max(signal + 1 if signal else int(due)))
        if not agreed:
            return
        self._save(trainer)
        if agreed > 1:
            # Processes that got no signal must stop, too, and skip what follows an epoch.
            self._stop.number = self.stopped_by = agreed - 1
            trainer.should_stop = True

    def _save(self, trainer: L.Trainer) -> None:
        trainer.save_checkpoint(self._writer.files.newest)
        self._saved = time.monotonic()
        failure = self._writer.failure
        if not self._processes.is_main:
            return
        if failure is None:
            self.last_step = trainer.global_step
            return
        kept = "there is none yet" if self.last_step is None else f"that of step {self.last_step}"
        self._console.print(
            f"step {trainer.global_step} could not be saved: {self._writer.files.newest}: "
            f"{failure}; training continues, the last good file is kept ({kept})",
            style="bold red",
        )
