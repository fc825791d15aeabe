"""metrics.csv: the numbers of a stage, one row a moment, kept whole across resumed runs."""

from __future__ import annotations

import csv
from pathlib import Path

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
            with self._path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        with self._path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)

    def append(self, step: int, epoch: int, numbers: dict[str, float]) -> None:
        """One row. Unknown names are a mistake of ours."""
        row = {"step": step, "epoch": epoch}
        row |= {name: f"{value:.6g}" for name, value in numbers.items()}
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS).writerow(row)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics.csv, with only the numbers that each has; [] without a file."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
