"""The progress bar of a training run."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from burn.core.types import Batch
from burn.learning.loop import Callback, Loop
from burn.learning.pace import Pace, rate
from burn.learning.threads import Threads
from burn.training.callbacks.monitor import Monitor
from burn.training.plan import StageSteps
from burn.training.pretraining import Pretraining


def _fixed(text: str) -> Column:
    return Column(no_wrap=True, min_width=len(text))


class ProgressBar(Callback):
    """A progress bar with images/s and the time left, or plain lines without a terminal.

    `later` are the optimizer steps of the stages after this one, which the time left includes.
    """

    def __init__(
        self,
        title: str,
        later: int,
        steps: StageSteps,
        monitor: Monitor,
        console: Console,
        threads: Threads | None = None,
    ) -> None:
        self._threads = threads
        self._title, self._later, self._steps = title, later, steps
        self._monitor, self._console = monitor, console
        self._pace = Pace()
        self._bar: Progress | None = None
        self._task: Any = None
        self._started = 0.0
        self._due = 0.0  # when to show something again

    def on_start(self, loop: Loop[Pretraining]) -> None:
        self._started = time.monotonic()
        self._due = self._started + 10
        if self._console.is_terminal:
            self._due = self._started
            total = self._steps.total
            # On a narrow terminal the bar is shortened first, then the end of the numbers.
            self._bar = Progress(
                TextColumn("{task.description}", table_column=_fixed(self._title)),
                BarColumn(bar_width=20),
                TextColumn(
                    "{task.completed}/{task.total} steps",
                    table_column=_fixed(f"{total}/{total} steps"),
                ),
                TextColumn("{task.fields[speed]}"),
                console=self._console,
            )
            self._task = self._bar.add_task(
                self._title, total=total, completed=loop.step, speed="starting"
            )
            self._bar.start()

    def on_batch_end(self, loop: Loop[Pretraining], batch: Batch) -> None:
        now = time.monotonic()
        self._pace.batch(len(batch.indices) * loop.processes.count, now)
        step, total = loop.step, self._steps.total
        if now < self._due and step != total:
            return  # reading the numbers from a GPU waits for it
        threads = self._threads.chooser.reason if self._threads else ""
        parts = [*self._speed(step), self._numbers(loop), threads]
        text = " · ".join(part for part in parts if part)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, speed=text)
            self._due = now + 0.2
        else:
            line = f"{self._title} · {step}/{total} steps · {text}"
            self._console.print(line, highlight=False)
            self._due = now + max(10, (now - self._started) / 10)

    def _speed(self, step: int) -> list[str]:
        images_per_second = self._pace.images_per_second
        if images_per_second is None:
            return []
        steps = self._steps.total - step + self._later
        if not steps:
            return [rate(images_per_second)]
        left = f"{self._pace.left(self._steps.passes_per_step * steps)} left"
        if self._later:
            left += " in all stages"
        return [rate(images_per_second), left]

    def _numbers(self, loop: Loop[Pretraining]) -> str:
        if loop.learner.output is None:
            return ""
        shown = {k: v for k, v in loop.learner.output.terms.items() if k != "lambda"}
        names = {"feature_similarity": "FS", "kl": "KL"}
        text = " ".join(f"{names.get(k, k)} {float(v):.3f}" for k, v in shown.items())
        return text if self._monitor.knn is None else f"{text} kNN {self._monitor.knn}"

    def on_end(self, loop: Loop[Pretraining]) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    on_failure = on_end
