"""How far a fine-tuning is: a bar on a terminal, lines otherwise, with the time left in all."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from burn.core.types import Batch
from burn.evaluation.fine_tuning import Tuning
from burn.learning.loop import Callback, Loop
from burn.learning.pace import Pace, rate

_FIRST, _LATER = 10, 0.1  # seconds to the first line; share of the time so far to the next


class TuningProgress(Callback):
    """The progress of several trainings, one after the other, within a `with` statement."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        self._pace = Pace()
        self._bar: Progress | None = None
        self._title = ""

    def __enter__(self) -> TuningProgress:
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

    def on_batch_end(self, loop: Loop[Tuning], batch: Batch) -> None:
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
