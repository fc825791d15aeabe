"""The number of threads of training on a CPU, chosen by measured rate."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch

from burn.core.types import Batch
from burn.runtime import threads
from burn.runtime.distributed import Processes
from burn.runtime.threads import ThreadChooser
from burn.training.plan import Machine


def chooses_threads(machine: Machine, processes: Processes, batches: int) -> bool:
    """Return whether the number of threads of a stage is chosen while it trains.

    It is not where the user gave a number or asked for the same bits again, where compiled code
    would be compiled again for another number, and in short stages.

    Args:
        machine: Where and how the run trains.
        processes: The processes that share it.
        batches: Batches of the stage.
    """
    return (
        processes.device.type == "cpu"
        and processes.count == 1
        and not (machine.deterministic or machine.compile)
        and threads.chooses_threads(batches)
    )


class Threads(L.Callback):
    """Sets the number of threads that a chooser chooses, which a resumed run goes on with.

    Attributes:
        chooser: Chooses by the time from batch to batch.
    """

    def __init__(self) -> None:
        self.chooser = ThreadChooser(torch.get_num_threads())
        self._last: float | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.set_num_threads(self.chooser.threads)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, *_: Any
    ) -> None:
        now = time.monotonic()
        last, self._last = self._last, now  # the first batch also starts workers
        before = self.chooser.threads
        self.chooser.step(len(batch.indices), None if last is None else now - last)
        if self.chooser.threads != before:
            torch.set_num_threads(self.chooser.threads)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.set_num_threads(self.chooser.most)

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        torch.set_num_threads(self.chooser.most)

    def state_dict(self) -> dict[str, Any]:
        return self.chooser.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.chooser.load_state_dict(state_dict)
