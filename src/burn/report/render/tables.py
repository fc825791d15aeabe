"""Results as tables for a terminal and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table

from burn.core.results import Result, largest_class
from burn.core.seeds import OverSeeds


def results_table(results: Sequence[Result]) -> RenderableType:
    """Return a table with a row for each model and a column for each number.

    For a single model it has a row for each number.
    """
    models = list(dict.fromkeys(r.model for r in results))
    if len(models) == 1:
        table = Table("number", Column("%", justify="right"))
        for r in results:
            spread = "" if r.spread is None else f" ± {r.spread:.1f}"
            table.add_row(number_name(r.protocol, r.metric), f"{r.value:.1f}{spread}")
        if (share := _largest_class(results)) is not None:
            table.add_row(_LARGEST, f"{share:.1f}")
        first = results[0]
        return Group(f"{first.model}: learned on {first.train}, evaluated on {first.test}", table)
    columns = list(dict.fromkeys((r.protocol, r.metric) for r in results))
    table = Table()
    table.add_column("model")
    for protocol, metric in columns:
        table.add_column(number_name(protocol, metric), justify="right")
    for model in models:
        numbers = {(r.protocol, r.metric): r.value for r in results if r.model == model}
        cells = [f"{numbers[c]:.1f} %" if c in numbers else "" for c in columns]
        table.add_row(model, *cells)
    if (share := _largest_class(results)) is not None:
        floors = {(r.protocol, r.metric) for r in results if largest_class(r) is not None}
        table.add_row(_LARGEST, *(f"{share:.1f} %" if c in floors else "" for c in columns))
    return table


_LARGEST = "always the largest class"


def _largest_class(results: Sequence[Result]) -> float | None:
    """Return the accuracy of always predicting the largest class, if classes are imbalanced."""
    return next((share for r in results if (share := largest_class(r)) is not None), None)


@dataclass(frozen=True)
class ComparedRow:
    """A method, or a reference that it is compared with, over its seeds.

    Attributes:
        model: Name of the method or reference.
        numbers: Top-1 in % of each seed, by protocol.
        recipe: Name of the recipe; None for a reference.
        epochs: Epochs of all stages; None for a reference.
        training_seconds: Mean training time; None for a reference.
    """

    model: str
    numbers: dict[str, list[float]]
    recipe: str | None
    epochs: float | None
    training_seconds: float | None

    @property
    def seeds(self) -> int:
        """The number of runs."""
        return max(len(values) for values in self.numbers.values())


def compared_rows(results: Sequence[Result]) -> list[ComparedRow]:
    """Return the rows of a comparison, the best by kNN first, from the results of all its runs."""
    rows = []
    for model in dict.fromkeys(r.model for r in results):
        mine = [r for r in results if r.model == model and r.metric == "top1"]
        numbers: dict[str, list[float]] = {}
        for result in mine:
            numbers.setdefault(result.protocol, []).append(result.value)
        knn = [r.settings for r in mine if r.protocol == "knn"]
        trained = [settings["pretraining"] for settings in knn if "pretraining" in settings]
        seconds = [about["seconds"] for about in trained]
        rows.append(
            ComparedRow(
                model,
                numbers,
                recipe=trained[0]["recipe"] if trained else None,
                epochs=trained[0]["epochs"] if trained else None,
                training_seconds=OverSeeds.of(seconds).mean if trained else None,
            )
        )
    return sorted(rows, key=lambda row: -OverSeeds.of(row.numbers.get("knn", [0.0])).mean)


_COMPARED = ("", "kNN", "linear", "seeds", "epochs", "training")


def _cells(row: ComparedRow) -> tuple[str, ...]:
    """Return the cells of a row, in the order of `_COMPARED`."""
    trained = row.epochs is not None and row.training_seconds is not None
    return (
        row.model,
        mean_and_spread(row.numbers.get("knn", [])),
        mean_and_spread(row.numbers.get("linear", [])),
        str(row.seeds) if trained else "",
        f"{row.epochs:g}" if trained else "",
        f"{row.training_seconds:.0f} s" if trained else "",
    )


def mean_and_spread(values: Sequence[float]) -> str:
    """Return the mean and the spread over seeds as text; "" without values."""
    return str(OverSeeds.of(values)) if values else ""


def comparison_table(results: Sequence[Result]) -> RenderableType:
    """Return a table with a row for each method, top-1 in %, for a terminal."""
    table = Table(*(Column(name, justify="right" if name else "left") for name in _COMPARED))
    for row in compared_rows(results):
        table.add_row(*_cells(row))
    if (share := _largest_class(results)) is not None:
        table.add_row(_LARGEST, f"{share:.1f}", f"{share:.1f}", "", "", "")
    return table


def comparison_markdown(results: Sequence[Result]) -> str:
    """Return the same table in Markdown, with a description of the data below it."""
    rows = [_COMPARED, ("---", *("---:",) * (len(_COMPARED) - 1))]
    rows += [_cells(row) for row in compared_rows(results)]
    if (share := _largest_class(results)) is not None:
        rows.append((_LARGEST, f"{share:.1f}", f"{share:.1f}", "", "", ""))
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    linear = next(r.settings for r in results if r.protocol == "linear")
    several = any(row.seeds > 1 for row in compared_rows(results))
    spread = ", ± the standard deviation over seeds" if several else ""
    about = (
        f"Top-1 in %{spread}. Learned on {results[0].train}, evaluated "
        f"on {results[0].test}. Linear: {rate_text(linear)}, {linear['epochs']} epochs, "
        f"augmentation {linear['augment']}. Epochs are of all stages together."
        + taught_text(results)
    )
    return "\n".join([*lines, "", about, ""])


def rate_text(linear: Mapping[str, Any]) -> str:
    """Describe the learning rate of a linear evaluation."""
    if linear["lr"] == "auto":
        return "learning rate chosen for each network on held-out training images"
    return f"learning rate {linear['lr']:g}"


def taught_text(results: Sequence[Result]) -> str:
    """Describe teachers trained with labels, and training times without the teacher; "" if none."""
    taught: dict[str, list[str]] = {}
    cached = []
    for r in results:
        labels = (r.training or {}).get("teacher_labels")
        if isinstance(labels, str) and r.model not in taught.setdefault(labels, []):
            taught[labels].append(r.model)
        about = r.settings.get("pretraining")
        if isinstance(about, Mapping) and about.get("teacher_cached") and r.model not in cached:
            cached.append(r.model)
    text = "".join(
        f" Taught by a teacher that was trained with {labels} labels: {', '.join(models)}."
        for labels, models in taught.items()
    )
    if cached:
        text += (
            " The teacher's features were kept by an earlier run, so that training times are "
            f"without it, of some seeds at least: {', '.join(cached)}."
        )
    return text


def number_name(protocol: str, metric: str) -> str:
    """Return a number's name for people: "kNN top-1"."""
    top = re.fullmatch(r"(.*\b)?top(\d)", metric)
    name = f"{top[1] or ''}top-{top[2]}" if top else metric
    return f"{protocol_name(protocol)} {name}"


def protocol_name(protocol: str) -> str:
    """Return a protocol's name for people."""
    return {"knn": "kNN"}.get(protocol, protocol)
