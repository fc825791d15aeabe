"""`burn analyze cost`: training time and accuracy of each compared method (Figure 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burn.campaigns.settings import is_taught, is_taught_classes
from burn.core.errors import UserError
from burn.core.inputs import read_json
from burn.core.paths import expand
from burn.methods.entries import METHODS, MODELS
from reproduction.analyses.rows import Row


@dataclass(frozen=True)
class CostOptions:
    """Settings of the analysis.

    Attributes:
        compared: folder of `burn compare`.
    """

    compared: str

    def check(self) -> None:
        """Check the settings.

        Raises:
            UserError: The folder is not one of burn compare.
        """
        if not (expand(self.compared) / "comparison.json").is_file():
            raise UserError(f"--compared {self.compared} is not a folder of burn compare")


def training_costs(options: CostOptions) -> list[Row]:
    """Read training times and accuracies from a comparison.

    Returns:
        A row for each run, with the seconds of its training, and of its teacher's if the teacher is
        a run of burn's.

    Raises:
        UserError: The folder is damaged, or has fewer than two evaluated methods.
    """
    from burn.campaigns.folder import read_campaign

    folder = expand(options.compared)
    try:
        shared = read_json(folder / "comparison.json")
        teachers = {
            method: shared["labelled_teacher" if is_taught_classes(method) else "teacher"]
            for method in (*METHODS, *MODELS)
            if is_taught(method)
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{folder / 'comparison.json'} is damaged: {error}") from error
    seconds = {method: _seconds_of(spec) for method, spec in teachers.items()}
    results = read_campaign(folder)
    linear = {
        (r.model, r.seed): r.value for r in results if (r.protocol, r.metric) == ("linear", "top1")
    }
    rows: list[Row] = [
        {
            "method": r.model,
            "seed": r.seed,
            "seconds": float(r.settings["pretraining"]["seconds"]),
            "teacher_seconds": seconds.get(r.model),
            "knn": r.value,
            "linear": linear[r.model, r.seed],
        }
        for r in results
        if r.protocol == "knn" and "pretraining" in r.settings
    ]
    if len({row["method"] for row in rows}) < 2:
        raise UserError(f"{folder} has fewer than two methods that are evaluated")
    return rows


def _seconds_of(teacher: Any) -> float | None:
    """Return the training time of a teacher that is a run of burn's, else None."""
    if not isinstance(teacher, str):
        return None
    try:
        stages = [
            read_json(file)["monitor"]["seconds"]
            for file in sorted(expand(teacher).glob("stage?.json"))
        ]
        return float(sum(stages)) if stages and all(0 <= s < 1e9 for s in stages) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
