"""The numbers of a stage as CSV files, which stay consistent when a run is resumed.

metrics.csv has a row for each measurement of the run, gradients.csv a row for each trained part at
each measured step, and layers.csv a row for each binary layer at the end of each epoch. terms.csv
has the terms of a plugin's method that have no column in metrics.csv.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from burn.core.files import write_text
from burn.core.inputs import read_text

COLUMNS: tuple[str, ...] = (
    "step", "epoch", "loss", "kl", "feature_similarity", "lambda", "distillation", "contrastive",
    "accuracy", "learning_rate", "target_entropy", "target_mean_entropy", "target_peak",
    "feature_std", "effective_rank", "feature_rank", "feature_spread", "knn", "weight_flips",
    "images_per_second", "memory",
)  # fmt: skip
# The columns that a method's terms fill; other terms are written to terms.csv.
TERMS = frozenset(
    ("loss", "kl", "feature_similarity", "lambda", "distillation", "contrastive", "accuracy")
)
TERM_COLUMNS: tuple[str, ...] = ("step", "term", "value")
GRADIENT_COLUMNS: tuple[str, ...] = ("step", "part", "norm")
LAYER_COLUMNS: tuple[str, ...] = (
    "step", "epoch", "layer", "weight_flips", "weight_balance", "activation_balance",
    "dead_channels",
)  # fmt: skip
_NAMES = {"part", "layer", "term"}  # columns of text; all others are numbers


class StepFile:
    """Appends rows, each of an optimizer step, to a CSV file; missing values stay empty."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._path, self._columns = path, columns

    def start(self, step: int) -> None:
        """Start the file at step 0, or continue after a later one, without the rows behind it."""
        rows = _read(self._path, self._columns) if step else []
        kept = [row for row in rows if int(row["step"]) <= step]
        write_text(self._path, self._text(kept, header=True))

    def append(self, rows: Iterable[Mapping[str, str | int | float]]) -> None:
        """Append rows; a name that is not a column raises ValueError."""
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


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the rows of metrics.csv, each with only the numbers that it has; [] without a file."""
    rows = _read(path, COLUMNS)
    return [{name: float(value) for name, value in row.items() if value} for row in rows]


def _whole(row: dict[str, str], columns: tuple[str, ...]) -> bool:
    """Return whether a row is complete; a full disk or a power cut may leave an incomplete one.

    A row may lack columns, since earlier versions of burn wrote fewer.
    """
    if not row.keys() <= set(columns) or None in row.values() or len(row.get("step", "")) > 15:
        return False
    try:
        _ = int(row["step"]), [float(v) for k, v in row.items() if v and k not in _NAMES]
    except (KeyError, ValueError):
        return False
    return True


def _read(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Read the complete rows, up to the first text that is not CSV; [] without a file."""
    rows: list[dict[str, str]] = []
    if path.is_file():
        text = read_text(path, errors="replace")
        with contextlib.suppress(csv.Error):
            rows.extend(row for row in csv.DictReader(text.splitlines()) if _whole(row, columns))
    return rows
