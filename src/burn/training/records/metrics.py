"""The numbers of a stage as CSV files, kept whole across resumed runs.

metrics.csv: of the run, one row a moment. gradients.csv: of the parts that learn, one row a part at
each step looked at. layers.csv: of the binary layers, one row a layer at the end of each epoch.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from burn.core.files import write_text

COLUMNS: tuple[str, ...] = (
    "step",
    "epoch",
    "loss",
    "kl",
    "feature_similarity",
    "lambda",
    "distillation",
    "contrastive",
    "accuracy",
    "learning_rate",
    "target_entropy",
    "target_mean_entropy",
    "target_peak",
    "feature_std",
    "effective_rank",
    "feature_rank",
    "feature_spread",
    "knn",
    "weight_flips",
    "images_per_second",
    "memory",
)
GRADIENT_COLUMNS: tuple[str, ...] = ("step", "part", "norm")
LAYER_COLUMNS: tuple[str, ...] = (
    "step",
    "epoch",
    "layer",
    "weight_flips",
    "weight_balance",
    "activation_balance",
    "dead_channels",
)
_NAMES = {"part", "layer"}  # columns of text; all others are numbers

Row = Mapping[str, str | int | float]


class StepFile:
    """Appends rows, each of an optimizer step, to a CSV file; what a row does not have stays empty.

    columns: "step" among them.
    """

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._path, self._columns = path, columns

    def start(self, step: int) -> None:
        """Begin, or go on after `step` of an earlier run, dropping what that run wrote later."""
        rows = _read(self._path, self._columns) if step else []
        kept = [row for row in rows if int(row["step"]) <= step]
        write_text(self._path, self._text(kept, header=True))

    def append(self, rows: Iterable[Row]) -> None:
        """Unknown names are a mistake of ours."""
        plain = [
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows
        ]
        with self._path.open("a", newline="", encoding="utf-8") as file:
            file.write(self._text(plain))

    def _text(self, rows: Iterable[Mapping[str, str | int]], *, header: bool = False) -> str:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, self._columns)
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return buffer.getvalue()


class MetricsFile:
    """metrics.csv."""

    def __init__(self, path: Path) -> None:
        self._file = StepFile(path, COLUMNS)

    def start(self, step: int) -> None:
        """As `StepFile.start`."""
        self._file.start(step)

    def append(self, step: int, epoch: int, numbers: Mapping[str, float]) -> None:
        """One row. Unknown names are a mistake of ours."""
        self._file.append([{"step": step, "epoch": epoch, **numbers}])


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics.csv, with only the numbers that each has; [] without a file."""
    rows = _read(path, COLUMNS)
    return [{name: float(value) for name, value in row.items() if value} for row in rows]


def read_gradients(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Read gradients.csv: part -> its steps with the gradient's norm; {} without a file."""
    parts: dict[str, list[tuple[int, float]]] = {}
    for row in _read(path, GRADIENT_COLUMNS):
        if row["norm"]:  # empty where the file's last row is torn
            parts.setdefault(row["part"], []).append((int(row["step"]), float(row["norm"])))
    return parts


def read_layers(path: Path) -> dict[str, list[dict[str, float]]]:
    """Read layers.csv: layer -> its rows, with only the numbers that each has; {} without a file.

    In the order of the network.
    """
    layers: dict[str, list[dict[str, float]]] = {}
    for row in _read(path, LAYER_COLUMNS):
        numbers = {k: float(v) for k, v in row.items() if v and k not in _NAMES}
        layers.setdefault(row["layer"], []).append(numbers)
    return layers


def _whole(row: dict[str, str], columns: tuple[str, ...]) -> bool:
    """Not one that a full disk or a power cut has torn. An earlier burn wrote fewer columns."""
    if not row.keys() <= set(columns) or None in row.values() or len(row.get("step", "")) > 15:
        return False
    try:
        _ = int(row["step"]), [float(v) for k, v in row.items() if v and k not in _NAMES]
    except (KeyError, ValueError):
        return False
    return True


def _read(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The whole rows, up to what is no CSV at all; [] without a file."""
    rows: list[dict[str, str]] = []
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        with contextlib.suppress(csv.Error):
            rows.extend(row for row in csv.DictReader(text.splitlines()) if _whole(row, columns))
    return rows
