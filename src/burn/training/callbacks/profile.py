"""A profile of the training steps: the time spent on each of their parts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from burn.core.files import cannot_be_written, write_text
from burn.core.types import Batch
from burn.learning.loop import Callback, Loop
from burn.learning.pace import rate
from burn.methods.shared.frozen import FrozenTarget
from burn.methods.shared.momentum import MomentumTarget
from burn.runtime.hardware import peak_bytes
from burn.training.pretraining import Pretraining

_WARM_UP = 5  # micro-batches to ignore, since the first ones allocate memory and choose algorithms
# The parts of a step, in the order in which they happen.
_PARTS: tuple[str, ...] = (
    "waiting for data",
    "teacher or momentum network",
    "student forward",
    "heads and loss",
    "backward",
    "optimizer",
    "monitoring and the rest",
)
_DATA, _TARGET, _STUDENT, _LOSS, _BACKWARD, _UPDATE, _REST = _PARTS


class Profile(Callback):
    """Measures the time of the parts of every step and prints their shares at the end of a stage.

    On a GPU it synchronizes with the device at every measurement, which takes some time itself. It
    must be the first callback and `last` the last one, so that the work of the other callbacks
    after a step counts as "monitoring and the rest". The time between epochs is left out.
    """

    def __init__(self, path: Path, console: Console) -> None:
        self._path, self._console = path, console
        self._seconds = dict.fromkeys(_PARTS, 0.0)
        self.last = _OthersDone(self)
        self._mark = 0.0
        self._seen = self._batches = self._images = 0
        self._device = torch.device("cpu")
        self._handles: list[Any] = []

    def on_start(self, loop: Loop[Pretraining]) -> None:
        self._device = loop.device
        for module in loop.learner.method.modules():
            if isinstance(module, (FrozenTarget, MomentumTarget)):
                self._watch(module, _TARGET)
        self._watch(loop.learner.method.backbone, _STUDENT)

    def on_epoch_start(self, loop: Loop[Pretraining]) -> None:
        self._mark = self._now()

    def _watch(self, module: nn.Module, part: str) -> None:
        """Count the time of a module's calls as `part`, and the time before a call as the loss."""
        self._handles += [
            module.register_forward_pre_hook(lambda *_: self.take(_LOSS)),
            module.register_forward_hook(lambda *_: self.take(part)),
        ]

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def take(self, part: str) -> None:
        """Add the time since the last measurement to `part`."""
        now = self._now()
        if self._seen >= _WARM_UP:
            self._seconds[part] += now - self._mark
        self._mark = now

    def on_batch_start(self, loop: Loop[Pretraining], batch: Batch) -> None:
        self.take(_DATA)

    def on_before_backward(self, loop: Loop[Pretraining]) -> None:
        self.take(_LOSS)

    def on_after_backward(self, loop: Loop[Pretraining]) -> None:
        self.take(_BACKWARD)

    def on_batch_end(self, loop: Loop[Pretraining], batch: Batch) -> None:
        self.take(_UPDATE)
        if self._seen >= _WARM_UP:
            self._batches += 1
            self._images += len(batch.indices) * loop.processes.count
        self._seen += 1

    def on_end(self, loop: Loop[Pretraining]) -> None:
        for handle in self._handles:
            handle.remove()
        if not loop.processes.is_main:
            return
        total = sum(self._seconds.values())
        if not self._batches or not total:
            self._console.print(f"too few steps for a profile: more than {_WARM_UP} are needed")
            return
        on_gpu = self._device.type == "cuda"
        memory = torch.cuda.max_memory_allocated(self._device) if on_gpu else peak_bytes()
        title = f"a batch of {self._images // self._batches} images, mean of {self._batches}"
        table = Table(title=title, title_justify="left")
        for heading in ("part", "ms", "share"):
            table.add_column(heading, justify="left" if heading == "part" else "right")
        for part, seconds in self._seconds.items():
            milliseconds = f"{1000 * seconds / self._batches:.1f}"
            table.add_row(part, milliseconds, f"{100 * seconds / total:.0f} %")
        self._console.print(table)
        images_per_second = self._images / total
        self._console.print(f"{rate(images_per_second)}, peak memory {memory / 2**20:.0f} MiB")
        numbers = {
            "seconds": self._seconds,
            "batches": self._batches,
            "images": self._images,
            "images_per_second": images_per_second,
            "peak_memory_bytes": memory,
            "device": str(self._device),
            "torch": torch.__version__,
        }
        try:
            write_text(self._path, json.dumps(numbers, indent=2) + "\n")
        except OSError as error:
            self._console.print(cannot_be_written(self._path, error))


class _OthersDone(Callback):
    """Comes after all other callbacks, to measure the time that they take."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def on_batch_end(self, loop: Loop[Pretraining], batch: Batch) -> None:
        self._profile.take(_REST)
