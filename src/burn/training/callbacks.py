"""What happens around the steps of a stage: guard, monitor, online kNN, progress."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from burn.data.shards import ShardedImages
from burn.data.sources import Source
from burn.errors import SaidByFirst, UserError, printable
from burn.features import extract_features
from burn.knn import knn_accuracy
from burn.processes import Processes
from burn.stop import StopRequest
from burn.training.metrics import MetricsFile
from burn.training.module import PretrainModule
from burn.training.monitor import ALARM, GradientFlowGuard, TargetMonitor, effective_rank
from burn.types import Batch

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

    Of several processes the first one's share of the images is looked at, but unreadable images
    are everyone's: more than `max_bad` of the source's, in [0, 1], end the run with a UserError.
    """

    def __init__(
        self, every: int, max_bad: float, source: Source, folder: Path, processes: Processes,
        console: Console,
    ) -> None:  # fmt: skip
        self._every, self._max_bad, self._source = every, max_bad, source
        self._processes, self._console = processes, console
        self._metrics = MetricsFile(folder / "metrics.csv")
        self._folder = folder
        self._board: SummaryWriter | None = None
        self._silent = False
        self._target = TargetMonitor()
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
    def seconds(self) -> float:
        """Time in training, that of the interrupted parts of a resumed stage included."""
        return self._seconds_before + time.perf_counter() - self._began

    def state_dict(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "target": self._target.state_dict(),
            "unreadable": sorted(self.all_unreadable()),
            "last": self.last,
            "knn": self.knn,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seconds_before = state_dict["seconds"]
        self._target.load_state_dict(state_dict["target"])
        self.unreadable = set(state_dict["unreadable"])
        self.last, self.knn = state_dict["last"], state_dict["knn"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._processes.first:
            with self._complaint():
                self._metrics.start(trainer.global_step)
                self._board = SummaryWriter(str(self._folder), purge_step=trainer.global_step + 1)
        self._since, self._images = time.perf_counter(), 0
        self._began, self._step = self._since, trainer.global_step

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        with self._complaint():
            if self._board is not None:
                self._board.close()
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

    @contextlib.contextmanager
    def _complaint(self) -> Iterator[None]:
        """Numbers that cannot be written do not end a run; the first time, it is said."""
        try:
            yield
        except OSError as error:
            if not self._silent:
                self._console.print(
                    f"numbers cannot be written to {self._folder}: {error.strerror or error}; "
                    "going on without",
                    style="bold red",
                )
            self._silent = True

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
        if step == self._step or step % self._every:
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
        collapsed_before = self.collapsed_at is not None
        numbers |= self._target.close(step)
        numbers["images_per_second"] = self._images / seconds
        self.last = numbers
        self.write(trainer, step, numbers)
        if self.collapsed_at is not None and not collapsed_before:
            self._console.print(collapse_message(self.collapsed_at, numbers), style="bold red")
        self._since, self._images = time.perf_counter(), 0

    def write(self, trainer: L.Trainer, step: int, numbers: dict[str, float]) -> None:
        """To metrics.csv and TensorBoard."""
        with self._complaint():
            self._metrics.append(step, trainer.current_epoch, numbers)
            if self._board is not None:
                for name, value in numbers.items():
                    self._board.add_scalar(name, value, step)


def unreadable_images(source: Source, positions: Collection[int]) -> str:
    """How many images of a source cannot be read, and the names of the first five."""
    first = sorted(positions)
    names = ", ".join(printable(source.describe(position)) for position in first[:5])
    more = f" and {len(first) - 5} more" if len(first) > 5 else ""
    return f"unreadable images, left out: {len(first)}: {names}{more}"


def collapse_message(step: int, numbers: dict[str, float]) -> str:
    """What a collapse is, for the log and the exit summary."""
    return (
        f"collapsed target at step {step}: the teacher's classifier gives nearly the same output "
        f"for every image (entropy of mean p1 {numbers.get('target_entropy', 0):.2f} of log C, "
        f"alarm below {ALARM}; largest class {numbers.get('target_peak', 0):.2f}); "
        "KL teaches nothing from here on"
    )


class OnlineKnn(L.Callback):
    """After every epoch: kNN accuracy on a fixed fifth of up to 1,000 training images with labels.

    A monitor only: labels never reach the loss. Cut short where the run is to stop.
    """

    def __init__(self, source: Source, monitor: Monitor, stop: StopRequest) -> None:
        self._monitor, self._stop = monitor, stop
        # Single images of shards are slow to reach: some that lie together are read once.
        sharded = isinstance(source, ShardedImages)
        self._source = source.sample(_KNN_IMAGES) if sharded else source
        random = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(self._source), generator=random)[:_KNN_IMAGES]
        self._indices = chosen.tolist()

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
        self._monitor.write(trainer, trainer.global_step, {"knn": accuracy})


class _Stopped(Exception):
    """Leaves the extraction of features between two batches."""


class ProgressBar(L.Callback):
    """One bar a stage with images/s and time left; plain lines where there is no terminal."""

    def __init__(self, title: str, monitor: Monitor, console: Console) -> None:
        self._title, self._monitor, self._console = title, monitor, console
        self._bar: Progress | None = None
        self._task: Any = None
        self._started = 0.0
        self._first = self._images = 0
        self._due = 0.0  # when to show something again

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, PretrainModule)
        self._started, self._first, self._images = time.monotonic(), trainer.global_step, 0
        self._due = self._started + 10
        if self._console.is_terminal:
            self._due = self._started
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total} steps"),
                TextColumn("{task.fields[rate]:.0f} images/s"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[numbers]}"),
                console=self._console,
            )
            self._task = self._bar.add_task(
                self._title, total=pl_module.num_steps, completed=self._first, rate=0, numbers=""
            )
            self._bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch,
        batch_idx: int,
    ) -> None:  # fmt: skip
        assert isinstance(pl_module, PretrainModule)
        self._images += len(batch.indices) * trainer.world_size
        now = time.monotonic()
        step, total = trainer.global_step, pl_module.num_steps
        if now < self._due and step != total:
            return  # the numbers are on a GPU, and to look at them is to wait for it
        rate = self._images / max(now - self._started, 1e-9)
        numbers = self._numbers(pl_module)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, rate=rate, numbers=numbers)
            self._due = now + 0.2
        else:
            seconds = (now - self._started) / max(step - self._first, 1) * (total - step)
            left = f"{int(seconds // 60)}:{int(seconds % 60):02d} left"
            line = (
                f"{self._title} · {step}/{total} steps · {rate:.0f} images/s · {left} · {numbers}"
            )
            self._console.print(line, highlight=False)
            self._due = now + max(10, (now - self._started) / 10)

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
