"""metrics.csv: the numbers of a stage, one row a moment, kept whole across resumed runs."""

from __future__ import annotations

import contextlib
import csv
import io
from pathlib import Path

from burn.files import write_text

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
    "knn",
    "images_per_second",
)


class MetricsFile:
    """Appends rows to a CSV file; a number that a row does not have stays empty."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self, step: int) -> None:
        """Begin, or go on after `step` of an earlier run, dropping what that run wrote later."""
        rows: list[dict[str, str]] = []
        if step and self._path.is_file():
            rows = _read(self._path)
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS)
        writer.writeheader()
        writer.writerows(row for row in rows if int(row["step"]) <= step)
        write_text(self._path, buffer.getvalue())

    def append(self, step: int, epoch: int, numbers: dict[str, float]) -> None:
        """One row. Unknown names are a mistake of ours."""
        row = {"step": step, "epoch": epoch}
        row |= {name: f"{value:.6g}" for name, value in numbers.items()}
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)


def _whole(row: dict[str, str]) -> bool:
    """Not one that a full disk or a power cut has torn."""
    if row.keys() != set(COLUMNS) or None in row.values() or len(row["step"]) > 15:
        return False
    try:
        _ = int(row["step"]), [float(value) for value in row.values() if value]
    except ValueError:
        return False
    return True


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics.csv, with only the numbers that each has; [] without a file."""
    if not path.is_file():
        return []
    return [{name: float(value) for name, value in row.items() if value} for row in _read(path)]


def _read(path: Path) -> list[dict[str, str]]:
    """The whole rows, up to what is no CSV at all."""
    rows: list[dict[str, str]] = []
    with contextlib.suppress(csv.Error):
        for row in csv.DictReader(path.read_text(errors="replace").splitlines()):
            if _whole(row):
                rows.append(row)
    return rows
