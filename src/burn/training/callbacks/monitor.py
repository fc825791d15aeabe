"""Callbacks that measure a training run: its numbers, gradients and kNN accuracy."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from rich.console import Console

from burn.core.errors import listed, printable
from burn.core.types import Batch
from burn.data.base import Source
from burn.data.formats.shards import ShardedImages
from burn.data.view_config import ViewConfig
from burn.evaluation.features import extract_features
from burn.evaluation.knn import knn_accuracy
from burn.learning.loop import Callback, Loop
from burn.runtime.distributed import Processes
from burn.runtime.hardware import resident_bytes
from burn.runtime.signals import StopRequest
from burn.training.callbacks.checks import gradient_norms
from burn.training.collapse import FeatureMonitor, TargetMonitor, effective_rank
from burn.training.pretraining import Pretraining
from burn.training.records.metrics import TERMS
from burn.training.records.summary import WatchedKnn
from burn.training.records.writer import Record

LEAST_IMAGES = 10
_KNN_IMAGES = 1000


class Monitor(Callback):
    """Writes numbers about training, reports a collapse, and counts unreadable images.

    The numbers, and the norms of the gradients of a whole step, are written every `every` optimizer
    steps and at the first and the last one. With several processes the numbers are computed from
    the main process's images only, but unreadable images are counted in all of them. More of these
    than the share `max_bad` of the source end the run with a UserError.
    """

    def __init__(
        self,
        every: int,
        max_bad: float,
        source: Source,
        record: Record,
        processes: Processes,
        console: Console,
    ) -> None:
        self._every, self._max_bad, self._source = every, max_bad, source
        self._processes, self._console = processes, console
        self._record = record
        self.target, self.features = TargetMonitor(), FeatureMonitor()
        self._images = 0
        self._since = self._began = time.perf_counter()
        self._seconds_before = 0.0
        self.unreadable: set[int] = set()  # positions of images that this process could not read
        self.last: dict[str, float] = {}  # the last numbers that were written
        self.knn: WatchedKnn | None = None  # the last one, which `OnlineKnn` sets

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before a stage was resumed."""
        return self._seconds_before + time.perf_counter() - self._began

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "target": self.target.state_dict(),
            "features": self.features.state_dict(),
            "unreadable": sorted(self.all_unreadable()),
            "last": self.last,
            **(self.knn.numbers() if self.knn else {"knn": None}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seconds_before = state["seconds"]
        self.target.load_state_dict(state["target"])
        # Resume files of earlier versions of burn lack this monitor.
        self.features.load_state_dict(state.get("features", {}))
        self.unreadable = set(state["unreadable"])
        self.last, self.knn = state["last"], WatchedKnn.of(state)

    def on_start(self, loop: Loop[Pretraining]) -> None:
        if self._processes.is_main:
            self._record.start(loop.step)
        if loop.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(loop.device)
        self._since = self._began = time.perf_counter()
        self._images = 0

    def on_before_step(self, loop: Loop[Pretraining]) -> None:
        step, parts = loop.step + 1, loop.learner.method.parts()
        looked_at = self._processes.is_main and loop.is_looked_at(step, self._every)
        if looked_at and loop.learner.learned_in_step:
            self._record.gradients(step, gradient_norms([part for part in parts if part.trained]))

    def on_end(self, loop: Loop[Pretraining]) -> None:
        self._record.close()
        self._check_unreadable()

    def on_failure(self, loop: Loop[Pretraining]) -> None:
        self._record.close()

    def all_unreadable(self) -> set[int]:
        """Return the positions of the images that any process could not read."""
        return set().union(*self._processes.gather(self.unreadable))

    def _check_unreadable(self) -> None:
        count = self._processes.all_reduce_max(len(self.unreadable)) * self._processes.count
        if count <= self._max_bad * len(self._source):
            return
        bad = self.all_unreadable()
        if len(bad) <= self._max_bad * len(self._source):
            return
        self._processes.fail(
            f"stopped: {unreadable_images(self._source, bad)}; fix or remove them, or allow more "
            f"than {100 * self._max_bad:g} % of {len(self._source)} by --max-bad"
        )

    def on_batch_end(self, loop: Loop[Pretraining], batch: Batch) -> None:
        if batch.unreadable and not self.unreadable:
            name = self._source.describe(batch.unreadable[0])
            self._console.print(
                f"unreadable image, left out: {printable(name)} (all are counted at the end)"
            )
        self.unreadable.update(batch.unreadable)
        self._images += len(batch.indices) * self._processes.count
        output = loop.learner.output
        if output is not None and output.target_probabilities is not None:
            self.target.add(output.target_probabilities)
        step = loop.step
        if not (loop.stepped and loop.is_looked_at(step, self._every)):
            return
        self._check_unreadable()
        if output is None or not self._processes.is_main:
            return
        seconds = time.perf_counter() - self._since
        terms = {name: float(value) for name, value in output.terms.items()}
        numbers = {name: value for name, value in terms.items() if name in TERMS}
        self._record.terms(step, {n: value for n, value in terms.items() if n not in TERMS})
        numbers["learning_rate"] = loop.learning_rate
        numbers["feature_std"] = float(output.features.float().std(dim=0).mean())
        numbers["effective_rank"] = effective_rank(output.features)
        numbers |= self.features.look(output.features, step)
        numbers |= self.target.close(step)
        numbers["images_per_second"] = self._images / seconds
        numbers["memory"] = memory(loop.device)
        self.last = {**self.last, **numbers}  # the target's numbers are measured less often
        self._record.metrics(step, loop.epoch, numbers)
        for monitor in (self.target, self.features):
            if monitor.collapsed_at == step:
                self._console.print(monitor.message(numbers), style="bold red")
        self._since, self._images = time.perf_counter(), 0


class OnlineKnn(Callback):
    """Measures kNN accuracy after every epoch, on up to 1,000 labelled training images.

    A fixed fifth of these images is classified by the others. Labels never reach the loss. The
    measurement is cancelled if the run is asked to stop.
    """

    def __init__(
        self,
        source: Source,
        views: ViewConfig,
        monitor: Monitor,
        record: Record,
        stop: StopRequest,
    ) -> None:
        self._monitor, self._record, self._stop = monitor, record, stop
        self._views = views
        # Random access to images of shards is slow: some neighbours are read once and kept.
        sharded = isinstance(source, ShardedImages)
        self._source = source.sample(_KNN_IMAGES) if sharded else source
        assert self._source.labels is not None
        labelled = np.flatnonzero(self._source.labels >= 0)
        random = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(labelled), generator=random)[:_KNN_IMAGES]
        self._indices = labelled[chosen.numpy()].tolist()

    def on_start(self, loop: Loop[Pretraining]) -> None:
        # A state that was saved at the last step of an epoch is older than that epoch's accuracy.
        if loop.ends_epoch:
            self._measure(loop, is_written=self._record.has(loop.step, "knn"))

    def on_epoch_end(self, loop: Loop[Pretraining]) -> None:
        self._measure(loop, is_written=False)

    def _measure(self, loop: Loop[Pretraining], *, is_written: bool) -> None:
        """Measure the accuracy, and write it unless the step's row has it already."""
        if self._stop.requested or len(self._indices) < LEAST_IMAGES:
            return

        def check_stop(_: int) -> None:
            if self._stop.requested:
                raise _Stopped

        try:
            features = extract_features(
                loop.learner.method.backbone,
                self._source,
                self._views,
                indices=self._indices,
                advance=check_stop,
            )
        except _Stopped:
            return
        labels = features.labels
        assert labels is not None
        cut = len(labels) // 5
        accuracy = knn_accuracy(
            features.values[cut:], labels[cut:], features.values[:cut], labels[:cut]
        )
        chance = float(labels[:cut].bincount().max()) / cut
        self._monitor.knn = WatchedKnn(accuracy, cut, chance)
        if not is_written:
            self._record.metrics(loop.step, loop.epoch, {"knn": accuracy})


class _Stopped(Exception):
    """Raised to leave the extraction of features between two batches."""


def memory(device: torch.device) -> float:
    """Return the memory in use, in MB (10⁶ bytes).

    On CUDA it is the peak of the stage's tensors since the stage was started or resumed, otherwise
    the resident memory of this process (on macOS its peak).
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return resident_bytes() / 1e6


def unreadable_images(source: Source, positions: Collection[int]) -> str:
    """Describe the unreadable images of a source: their number and the names of the first five."""
    names = listed(sorted(positions), 5, each=200, name=source.describe)
    return f"unreadable images, left out: {len(positions)}: {names}"
