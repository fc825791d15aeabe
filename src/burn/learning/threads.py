"""The number of threads of training on a CPU, chosen by measured rate."""

from __future__ import annotations

import time
from typing import Any

import torch

from burn.core.types import Batch
from burn.learning.loop import Callback, Loop
from burn.runtime.threads import ThreadChooser


class Threads(Callback):
    """Sets the number of threads that a chooser chooses, which a resumed run goes on with."""

    def __init__(self, chooser: ThreadChooser) -> None:
        self.chooser = chooser
        self._last: tuple[float, float] | None = None

    def on_start(self, loop: Loop[Any]) -> None:
        torch.set_num_threads(self.chooser.threads)

    def on_batch_end(self, loop: Loop[Any], batch: Batch) -> None:
        now = time.monotonic(), time.process_time()
        last, self._last = self._last, now  # the first batch also starts workers
        before = self.chooser.threads
        if last is None:
            self.chooser.step(len(batch.indices), None)
        else:
            self.chooser.step(len(batch.indices), now[0] - last[0], now[1] - last[1])
        if self.chooser.threads != before:
            torch.set_num_threads(self.chooser.threads)

    def on_end(self, loop: Loop[Any]) -> None:
        torch.set_num_threads(self.chooser.most)

    on_failure = on_end

    def state_dict(self) -> dict[str, Any]:
        return self.chooser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chooser.load_state_dict(state)
