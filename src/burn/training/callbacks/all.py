"""What happens around the steps of a stage: guard, monitors, online kNN, progress."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from burn.core.errors import SaidByFirst, UserError, printable
from burn.core.types import Batch
from burn.data.formats.shards import ShardedImages
from burn.data.sources import Source
from burn.evaluation.features import extract_features
from burn.evaluation.knn import knn_accuracy
from burn.methods.base import Method
from burn.runtime.distributed import Processes
from burn.runtime.hardware import resident_bytes
from burn.runtime.signals import StopRequest
from burn.training.callbacks.guard import (
    ALARM,
    RANK_ALARM,
    SPREAD_ALARM,
    FeatureMonitor,
    GradientFlowGuard,
    TargetMonitor,
    effective_rank,
    gradient_norms,
)
from burn.training.callbacks.pace import Pace, rate, time_left
from burn.training.module import PretrainModule
from burn.training.records.binary import BinaryLayers
from burn.training.records.writer import Record
from burn.training.steps import StageSteps

_KNN_IMAGES = 1000


class Guard(L.Callback):
    """Runs the gradient-flow guard until every part has been seen, then rests."""

    def __init__(self, guard: GradientFlowGuard) -> None:
        self._guard = guard

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any
    ) -> None:  # fmt: skip
        assert isinstance(pl_module, PretrainModule)
        if not self._guard.done and pl_module.learned_in_step:
            reached = pl_module.method.reached(pl_module.progress)
            self._guard.check(reached, trainer.global_step + 1)


class Monitor(L.Callback):
    """Collects numbers at every step, writes them every `every` steps, and names a collapse.

    They are written at the first and the last step, too. Of several processes the first one's share
    of the images is looked at, but unreadable images are everyone's: more than `max_bad` of the
    source's, in [0, 1], end the run with a UserError.
    """

    def __init__(
        self, every: int, max_bad: float, source: Source, record: Record, processes: Processes,
        console: Console,
    ) -> None:  # fmt: skip
        self._every, self._max_bad, self._source = every, max_bad, source
        self._processes, self._console = processes, console
        self._record = record
        self._target = TargetMonitor()
        self._features = FeatureMonitor()
        self._images = 0
        self._step = 0  # the last one that was looked at
        self._since = self._began = time.perf_counter()
        self._seconds_before = 0.0
        self.unreadable: set[int] = set()
        self.last: dict[str, float] = {}
        self.knn: float | None = None

    @property
    def collapsed_at(self) -> int | None:
        return self._target.collapsed_at

    @property
    def features_collapsed_at(self) -> int | None:
        return self._features.collapsed_at

    @property
    def seconds(self) -> float:
        """Time in training, that of the interrupted parts of a resumed stage included."""
        return self._seconds_before + time.perf_counter() - self._began

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "target": self._target.state_dict(),
            "features": self._features.state_dict(),
            "unreadable": sorted(self.all_unreadable()),
            "last": self.last,
            "knn": self.knn,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seconds_before = state_dict["seconds"]
        self._target.load_state_dict(state_dict["target"])
        # Resume files of the burn before this monitor hold nothing of it.
        self._features.load_state_dict(state_dict.get("features", {}))
        self.unreadable = set(state_dict["unreadable"])
        self.last, self.knn = state_dict["last"], state_dict["knn"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._processes.first:
            self._record.start(trainer.global_step)
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)
        self._since, self._images = time.perf_counter(), 0
        self._began, self._step = self._since, trainer.global_step

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._record.close()
        self._check_unreadable()

    def all_unreadable(self) -> set[int]:
        """Positions of the images that could not be read, of all processes."""
        return set().union(*self._processes.gather(self.unreadable))

    def _check_unreadable(self) -> None:
        count = self._processes.largest(len(self.unreadable)) * self._processes.count
        if count <= self._max_bad * len(self._source):
            return
        bad = self.all_unreadable()
        if len(bad) <= self._max_bad * len(self._source):
            return
        message = (
            f"stopped: {unreadable_images(self._source, bad)}; mend or remove them, or allow more "
            f"than {100 * self._max_bad:g} % of {len(self._source)} by --max-bad"
        )
        raise UserError(message) if self._processes.first else SaidByFirst(message)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch,
        batch_idx: int,
    ) -> None:  # fmt: skip
        assert isinstance(pl_module, PretrainModule)
        if batch.unreadable and not self.unreadable:
            name = self._source.describe(batch.unreadable[0])
            self._console.print(f"unreadable, left out: {printable(name)} (counted at the end)")
        self.unreadable.update(batch.unreadable)
        self._images += len(batch.indices) * self._processes.count
        output = pl_module.output
        if output is not None and output.target_probabilities is not None:
            self._target.add(output.target_probabilities)
        step = trainer.global_step
        if step == self._step or not pl_module.is_looked_at(step, self._every):
            self._step = step
            return
        self._step = step
        self._check_unreadable()
        if output is None or not self._processes.first:
            return
        seconds = time.perf_counter() - self._since
        numbers = {name: float(value) for name, value in output.terms.items()}
        numbers["learning_rate"] = trainer.optimizers[0].param_groups[0]["lr"]
        numbers["feature_std"] = float(output.features.float().std(dim=0).mean())
        numbers["effective_rank"] = effective_rank(output.features)
        numbers |= self._features.look(output.features, step)
        numbers |= self._target.close(step)
        numbers["images_per_second"] = self._images / seconds
        numbers["memory"] = memory(pl_module.device)
        self.last = {**self.last, **numbers}  # the target's come less often
        self._record.metrics(step, trainer.current_epoch, numbers)
        if self.collapsed_at == step:
            self._console.print(collapse_message(step, numbers), style="bold red")
        if self.features_collapsed_at == step:
            self._console.print(features_message(step, numbers), style="bold red")
        self._since, self._images = time.perf_counter(), 0


class Gradients(L.Callback):
    """Writes the norms of the gradients by part, at the steps that the monitor writes.

    Of the first process alone. What it sees are a whole step's: accumulated, averaged over the
    processes, not yet used.
    """

    def __init__(self, every: int, method: Method, record: Record) -> None:
        self._every, self._record = every, record
        self._parts = [part for part in method.parts() if part.trained]

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any
    ) -> None:  # fmt: skip
        assert isinstance(pl_module, PretrainModule)
        step = trainer.global_step + 1
        if pl_module.is_looked_at(step, self._every) and pl_module.learned_in_step:
            self._record.gradients(step, gradient_norms(self._parts))


class Layers(L.Callback):
    """Writes what becomes of the binary layers at the end of every epoch and of the stage.

    Looked at are images of every `every`th step, and of the step that ends the epoch; of the first
    process alone.
    """

    def __init__(self, every: int, layers: BinaryLayers, record: Record) -> None:
        self._every, self._layers, self._record = every, layers, record
        self._step = 0  # the last one that was looked at

    def state_dict(self) -> dict[str, Any]:
        return self._layers.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._layers.load_state_dict(state_dict)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch,
        batch_idx: int,
    ) -> None:  # fmt: skip
        assert isinstance(pl_module, PretrainModule)
        step = trainer.global_step
        if step == self._step:
            return  # a part of a batch
        self._step = step
        # Not when Lightning ends the epoch: a resume file of its last step is written before that.
        ends = pl_module.ends_epoch
        if (ends or step % self._every == 0) and len(batch.indices):
            self._layers.look(batch.views[0], trainer.precision_plugin.forward_context())
        if not ends:
            return
        rows = self._layers.close()
        self._record.layers(step, trainer.current_epoch, rows)
        numbers = {"memory": memory(pl_module.device)}
        flips = self._layers.share_of_flips(rows)
        if flips is not None:
            numbers["weight_flips"] = flips
        self._record.metrics(step, trainer.current_epoch, numbers)


def memory(device: torch.device) -> float:
    """In MB (10⁶ bytes): on CUDA the most that the stage's tensors held at once since the start
    or the resuming; else what this process holds now (on macOS: its peak)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return resident_bytes() / 1e6


def unreadable_images(source: Source, positions: Collection[int]) -> str:
    """How many images of a source cannot be read, and the names of the first five."""
    first = sorted(positions)
    names = ", ".join(printable(source.describe(position)) for position in first[:5])
    more = f" and {len(first) - 5} more" if len(first) > 5 else ""
    return f"unreadable images, left out: {len(first)}: {names}{more}"


def collapse_message(step: int, numbers: Mapping[str, float] | None = None) -> str:
    """What a collapse is, for the log, with the step's numbers, and for the exit summary."""
    seen = (
        f" (entropy of mean p1 {numbers['target_entropy']:.2f} of log C, alarm below {ALARM}; "
        f"largest class {numbers['target_peak']:.2f})"
        if numbers
        else ""
    )
    return (
        f"collapsed target at step {step}: the teacher's classifier gives nearly the same output "
        f"for every image{seen}; KL teaches nothing from here on"
    )


def features_message(step: int, numbers: Mapping[str, float] | None = None) -> str:
    """The same of the backbone's features."""
    seen = (
        f" (its features less their mean have rank {numbers['feature_rank']:.1f}, alarm below "
        f"{RANK_ALARM:g}; their spread is {numbers['feature_spread']:.4f}, alarm below "
        f"{SPREAD_ALARM:g})"
        if numbers
        else ""
    )
    return (
        f"collapsed features at step {step}: the backbone hardly tells images apart any more{seen}"
        "; lower --optim.lr, or look at the loss"
    )


class OnlineKnn(L.Callback):
    """After every epoch: kNN accuracy on a fixed fifth of up to 1,000 training images with labels.

    A monitor only: labels never reach the loss. Cut short where the run is to stop.
    """

    def __init__(
        self, source: Source, monitor: Monitor, record: Record, stop: StopRequest
    ) -> None:  # fmt: skip
        self._monitor, self._record, self._stop = monitor, record, stop
        # Single images of shards are slow to reach: some that lie together are read once.
        sharded = isinstance(source, ShardedImages)
        self._source = source.sample(_KNN_IMAGES) if sharded else source
        random = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(self._source), generator=random)[:_KNN_IMAGES]
        self._indices = chosen.tolist()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, PretrainModule)
        # An epoch whose last step was the last before a stop was not judged when it ended.
        if pl_module.ends_epoch and not self._record.has(trainer.global_step, "knn"):
            self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, PretrainModule)
        if self._stop.requested:
            return

        def go_on(_: int) -> None:
            if self._stop.requested:
                raise _Stopped

        try:
            features = extract_features(
                pl_module.method.backbone, self._source, pl_module.recipe.views,
                indices=self._indices, advance=go_on,
            )  # fmt: skip
        except _Stopped:
            return
        labels = features.labels
        assert labels is not None
        cut = len(labels) // 5
        accuracy = knn_accuracy(
            features.values[cut:], labels[cut:], features.values[:cut], labels[:cut]
        )
        self._monitor.knn = accuracy
        # Not Lightning's number of the epoch: after a resume that is the next one's.
        step = trainer.global_step
        self._record.metrics(step, (step - 1) // pl_module.steps_per_epoch, {"knn": accuracy})


class _Stopped(Exception):
    """Leaves the extraction of features between two batches."""


def _fixed(text: str) -> Column:
    """A column as wide as a text, on any terminal."""
    return Column(no_wrap=True, min_width=len(text))


class ProgressBar(L.Callback):
    """One bar a stage with images/s and the time left; plain lines where there is no terminal.

    later: optimizer steps of the stages after this one, which the time left includes.
    """

    def __init__(
        self, title: str, later: int, steps: StageSteps, monitor: Monitor, console: Console
    ) -> None:  # fmt: skip
        self._title, self._later, self._steps = title, later, steps
        self._monitor, self._console = monitor, console
        self._pace = Pace()
        self._bar: Progress | None = None
        self._task: Any = None
        self._started = 0.0
        self._due = 0.0  # when to show something again

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._started = time.monotonic()
        self._due = self._started + 10
        if self._console.is_terminal:
            self._due = self._started
            total = self._steps.total
            # Where the terminal is narrow the bar gives way, then the end of the numbers.
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
                self._title, total=self._steps.total, completed=trainer.global_step,
                speed="starting",
            )  # fmt: skip
            self._bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch,
        batch_idx: int,
    ) -> None:  # fmt: skip
        assert isinstance(pl_module, PretrainModule)
        now = time.monotonic()
        self._pace.batch(len(batch.indices) * trainer.world_size, now)
        step, total = trainer.global_step, self._steps.total
        if now < self._due and step != total:
            return  # the numbers are on a GPU, and to look at them is to wait for it
        parts = [*self._speed(step), self._numbers(pl_module)]
        text = " · ".join(part for part in parts if part)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, speed=text)
            self._due = now + 0.2
        else:
            line = f"{self._title} · {step}/{total} steps · {text}"
            self._console.print(line, highlight=False)
            self._due = now + max(10, (now - self._started) / 10)

    def _speed(self, step: int) -> list[str]:
        """Images a second, and the time that is left of this stage and those after it."""
        seconds, images_per_second = self._pace.seconds, self._pace.images_per_second
        if seconds is None or images_per_second is None:
            return []
        steps = self._steps.total - step + self._later
        if not steps:
            return [rate(images_per_second)]
        left = f"{time_left(seconds * self._steps.passes_per_step * steps)} left"
        if self._later:
            left += " in all stages"
        return [rate(images_per_second), left]

    def _numbers(self, module: PretrainModule) -> str:
        if module.output is None:
            return ""
        shown = {k: v for k, v in module.output.terms.items() if k != "lambda"}
        names = {"feature_similarity": "FS", "kl": "KL"}
        text = " ".join(f"{names.get(k, k)} {float(v):.3f}" for k, v in shown.items())
        return text if self._monitor.knn is None else f"{text} kNN {100 * self._monitor.knn:.1f} %"

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self._close()
