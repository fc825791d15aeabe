"""Writes the numbers of a stage to its folder, as CSV files and TensorBoard's events."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
from torch.utils.tensorboard import SummaryWriter

from burn.core.inputs import open_regular
from burn.training.records.metrics import (
    COLUMNS,
    GRADIENT_COLUMNS,
    LAYER_COLUMNS,
    TERM_COLUMNS,
    StepFile,
    read_metrics,
)


class Record:
    """Writes the numbers of a stage; only the main process uses it.

    A failure to write does not end the run; the first one is reported. `views` is a JPEG that
    TensorBoard shows beside the numbers.
    """

    def __init__(self, folder: Path, console: Console, views: Path | None = None) -> None:
        self._folder, self._console, self._views = folder, console, views
        self._metrics = StepFile(folder / "metrics.csv", COLUMNS)
        self._gradients = StepFile(folder / "gradients.csv", GRADIENT_COLUMNS)
        self._layers = StepFile(folder / "layers.csv", LAYER_COLUMNS)
        self._terms = StepFile(folder / "terms.csv", TERM_COLUMNS)
        self._board: SummaryWriter | None = None
        self._silent = False
        self._excepthook: Any = None

    def start(self, step: int) -> None:
        """Start the files at step 0, or continue after a later one, without the rows behind it."""
        with self._complaint():
            for file in (self._metrics, self._gradients, self._layers):
                file.start(step)
            if (self._folder / "terms.csv").is_file():
                self._terms.start(step)
            self._silence_writer()
            self._board = SummaryWriter(str(self._folder), purge_step=step + 1)
            if not step and self._views is not None and self._views.is_file():
                with open_regular(self._views) as file:
                    self._show("views", file.read())

    def close(self) -> None:
        """Write TensorBoard's remaining events and close their file, unless it is closed."""
        board, self._board = self._board, None
        with self._complaint():
            if board is not None:
                board.close()
        if self._excepthook is not None:
            threading.excepthook, self._excepthook = self._excepthook, None

    def _show(self, tag: str, jpeg: bytes) -> None:
        """Give TensorBoard a JPEG as it is; `add_image` takes pixels and encodes them as a PNG."""
        assert self._board is not None
        with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as picture:
            image = Summary.Image(
                encoded_image_string=jpeg,
                width=picture.width,
                height=picture.height,
                colorspace=len(picture.getbands()),
            )
        summary = Summary(value=[Summary.Value(tag=tag, image=image)])
        self._board._get_file_writer().add_summary(summary, 0)

    def _silence_writer(self) -> None:
        """Suppress tracebacks of TensorBoard's writing thread until `close`.

        The thread's exception is also raised by the next call from this one, which reports it.
        """
        before = self._excepthook = threading.excepthook

        def hook(failure: Any) -> None:
            writer = type(failure.thread).__module__.startswith("tensorboard.")
            if not (writer and isinstance(failure.exc_value, OSError)):
                before(failure)

        threading.excepthook = hook

    def metrics(self, step: int, epoch: int, numbers: Mapping[str, float]) -> None:
        with self._complaint():
            self._metrics.append([{"step": step, "epoch": epoch, **numbers}])
            self._draw(step, numbers)

    def terms(self, step: int, terms: Mapping[str, float]) -> None:
        """Write rows of terms.csv, which exists only if there are such terms."""
        if not terms:
            return
        with self._complaint():
            if not (self._folder / "terms.csv").is_file():
                self._terms.start(0)
            self._terms.append(
                {"step": step, "term": name, "value": value} for name, value in terms.items()
            )
            self._draw(step, {f"term/{name}": value for name, value in terms.items()})

    def has(self, step: int, name: str) -> bool:
        """Return whether metrics.csv holds a number of this name for a step."""
        rows = read_metrics(self._folder / "metrics.csv")
        return any(row["step"] == step and name in row for row in rows)

    def gradients(self, step: int, norms: Mapping[str, float]) -> None:
        """Write rows of gradients.csv, from the L2 norm of each part's gradient."""
        with self._complaint():
            rows = [{"step": step, "part": part, "norm": norm} for part, norm in norms.items()]
            self._gradients.append(rows)
            self._draw(step, {f"gradient/{part}": norm for part, norm in norms.items()})

    def layers(self, step: int, epoch: int, rows: Mapping[str, Mapping[str, float]]) -> None:
        """Write rows of layers.csv, from the numbers of each layer by its name."""
        with self._complaint():
            where = {"step": step, "epoch": epoch}
            self._layers.append({**where, "layer": name, **row} for name, row in rows.items())
            for layer, row in rows.items():
                self._draw(step, {f"{name}/{layer}": value for name, value in row.items()})

    def _draw(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name.replace(" ", "_"), value, step)

    @contextlib.contextmanager
    def _complaint(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._silent:
                self._console.print(
                    f"numbers cannot be written to {self._folder}: {error.strerror or error}; "
                    "training continues without them",
                    style="bold red",
                )
            self._silent = True
