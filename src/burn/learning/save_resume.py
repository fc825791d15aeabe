"""Saving the state of training at regular times and before it ends on a signal."""

from __future__ import annotations

import io
import time
from typing import Any

import torch
from rich.console import Console

from burn.learning.loop import Callback, Loop
from burn.learning.resume_files import ResumeFiles
from burn.runtime.signals import StopRequest


class SaveResume(Callback):
    """Saves a resume file at regular times, and ends training when a process is asked to stop.

    A file that cannot be written does not end the run. With `minutes` 0 every step is saved.
    """

    def __init__(
        self, files: ResumeFiles, stop: StopRequest, minutes: float, console: Console
    ) -> None:
        self._files, self._stop = files, stop
        self._seconds, self._console = 60 * minutes, console
        self._saved = time.monotonic()
        self.last_step: int | None = None  # that was saved
        self.stopped_by = 0  # number of the signal that ended training

    def on_start(self, loop: Loop[Any]) -> None:
        if loop.step:
            self.last_step = loop.step
        if loop.step and loop.step in loop.replanned_at:
            self._console.print(
                f"going on from step {loop.step}: the schedules of the learning rate, the loss and "
                f"all else are planned anew, over {loop.num_steps} steps",
                highlight=False,
            )

    def on_batch_end(self, loop: Loop[Any], batch: Any) -> None:
        if not loop.stepped:
            return
        # All processes must decide the same at the same step. 1 stands for a file that is due, so
        # signals, of which SIGHUP is 1, are counted from 2.
        due = time.monotonic() - self._saved >= self._seconds and loop.processes.is_main
        due = due or loop.step == loop.num_steps  # from there a longer run goes on
        signal = self._stop.number
        agreed = int(loop.processes.all_reduce_max(signal + 1 if signal else int(due)))
        if not agreed:
            return
        self._save(loop)
        if agreed > 1:
            # Processes that got no signal must stop, too, and skip what follows an epoch.
            self._stop.number = self.stopped_by = agreed - 1
            loop.should_stop = True

    def _save(self, loop: Loop[Any]) -> None:
        state = loop.state_dict()  # in every process, because callbacks communicate
        self._saved = time.monotonic()
        saved = loop.processes.is_main and self._written(loop, state)
        if loop.processes.all_reduce_max(saved):
            self.last_step = loop.step

    def _written(self, loop: Loop[Any], state: dict[str, Any]) -> bool:
        content = io.BytesIO()
        described = {"owner": self._files.owner, "settings": self._files.settings}
        torch.save({**state, **described}, content)
        try:
            self._files.add(content.getvalue())
        except OSError as error:
            last = self.last_step
            kept = "there is none yet" if last is None else f"that of step {last}"
            self._console.print(
                f"step {loop.step} could not be saved: {self._files.newest}: "
                f"{error.strerror or error}; training continues, the last good file is kept "
                f"({kept})",
                style="bold red",
            )
            return False
        return True
