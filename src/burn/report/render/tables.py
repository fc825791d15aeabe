"""Results as tables for a terminal and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from burn.core.errors import printable
from burn.core.results import Result, majority_accuracy
from burn.core.seeds import OverSeeds


def results_table(results: Sequence[Result]) -> RenderableType:
    """Return a table with a row for each model, or for each number of a single model."""
    models = list(dict.fromkeys(r.model for r in results))
    shares = _majority_accuracies(results)
    if len(models) == 1:
        rows = []
        for r in results:
            spread = "" if r.spread is None else f" ± {r.spread:.1f}"
            rows.append((number_name(r.protocol, r.metric), f"{r.value:.1f}{spread}"))
        rows += [(_LARGEST, f"{share:.1f}") for share in dict.fromkeys(shares.values())]
        first = results[0]
        about = f"{first.model}: labels of {first.train}, evaluated on {first.test}"
        return Group(about, terminal_table(("number", "%"), *rows))
    columns = list(dict.fromkeys((r.protocol, r.metric) for r in results))
    named = [
        (model, {(r.protocol, r.metric): r.value for r in results if r.model == model})
        for model in models
    ]
    rows = [
        (name, *(f"{values[c]:.1f} %" if c in values else "" for c in columns))
        for name, values in (*named, *([(_LARGEST, shares)] if shares else []))
    ]
    return terminal_table(("model", *(number_name(*c) for c in columns)), *rows)


_LARGEST = "always the largest class"


def _majority_accuracies(results: Sequence[Result]) -> dict[tuple[str, str], float]:
    """Return the accuracies of always predicting the largest class, where that is a floor."""
    return {  # by protocol, which may have test images of its own, as transfer has
        (r.protocol, r.metric): share
        for r in results
        if (share := majority_accuracy(r)) is not None
    }


@dataclass(frozen=True)
class ComparedRow:
    """A method over its seeds, or a reference, which was not trained for the comparison."""

    model: str
    numbers: dict[str, list[float]]  # percentages of each seed, by the titles of their columns
    epochs: float | None  # of all stages; None for a reference
    training_seconds: float | None  # the mean; None for a reference

    @property
    def seeds(self) -> int:
        return max((len(values) for values in self.numbers.values()), default=0)


def compared_rows(results: Sequence[Result]) -> list[ComparedRow]:
    """Return the rows of a comparison, the best by kNN first, from the results of all its runs."""
    rows = []
    columns = _columns(results)
    for model in dict.fromkeys(r.model for r in results):
        of_model = [r for r in results if r.model == model]
        numbers: dict[str, list[float]] = {}
        for result in of_model:
            if title := columns.get((result.protocol, result.metric)):
                numbers.setdefault(title, []).append(result.value)
        knn = [r.settings for r in of_model if (r.protocol, r.metric) == ("knn", "top1")]
        trained = [settings["pretraining"] for settings in knn if "pretraining" in settings]
        seconds = OverSeeds.of(about["seconds"] for about in trained)
        rows.append(
            ComparedRow(
                model,
                numbers,
                epochs=trained[0]["epochs"] if trained else None,
                training_seconds=seconds.mean if trained else None,
            )
        )
    return sorted(rows, key=lambda row: -OverSeeds.of(row.numbers.get("kNN", [0.0])).mean)


def _columns(results: Sequence[Result]) -> dict[tuple[str, str], str]:
    """Return the titles of the numbers that a comparison shows, by protocol and metric."""
    titles = {("knn", "top1"): "kNN", ("linear", "top1"): "linear"}
    columns = list(dict.fromkeys((r.protocol, r.metric) for r in results))
    more = [column for column in columns if column not in titles and column[1].endswith("top1")]
    # Of few-shot SVMs, which give two numbers for each number of shots, the last is shown.
    few = [column for column in columns if column[0] == "svm" and column[1].endswith("mAP cv")]
    for protocol, metric in [*more, *few[-1:]]:
        what = metric.removesuffix("top1").removesuffix(" cv").strip()
        titles[protocol, metric] = f"{protocol_name(protocol)} {what}".strip()
    return titles


def _compared_cells(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Return the header and the rows of a comparison's table as text."""
    columns = list(_columns(results).values())
    table = [("", *columns, "seeds", "epochs", "training")]
    for row in compared_rows(results):
        trained = row.epochs is not None and row.training_seconds is not None
        table.append(
            (
                row.model,
                *(mean_and_spread(row.numbers.get(title, [])) for title in columns),
                str(row.seeds) if trained else "",
                f"{row.epochs:g}" if trained else "",
                f"{row.training_seconds:.0f} s" if trained else "",
            )
        )
    if shares := _majority_accuracies(results):
        floors = [f"{shares[c]:.1f}" if c in shares else "" for c in _columns(results)]
        table.append((_LARGEST, *floors, "", "", ""))
    return table


def mean_and_spread(values: Sequence[float]) -> str:
    """Return the mean and the spread over seeds as text; "" without values."""
    return str(OverSeeds.of(values)) if values else ""


def comparison_table(results: Sequence[Result]) -> RenderableType:
    """Return a table with a row for each method, in %, for a terminal."""
    return terminal_table(*_compared_cells(results))


def comparison_markdown(results: Sequence[Result]) -> str:
    """Return the same table in Markdown, with a description of the data below it."""
    lines = markdown_lines(*_compared_cells(results))
    linear = next(r.settings for r in results if r.protocol == "linear")
    several = any(row.seeds > 1 for row in compared_rows(results))
    spread = ", ± the standard deviation over seeds" if several else ""
    about = (
        f"In %, top-1 unless the column says otherwise{spread}. Learned on "
        f"{_escaped(results[0].train)}, evaluated on {_escaped(results[0].test)}. Linear: "
        f"{rate_text(linear)}, {linear['epochs']} epochs, "
        f"augmentation {linear['augment']}. Epochs are of all stages together."
        + taught_text(results)
    )
    return "\n".join([*lines, "", about, ""])


def terminal_table(header: Sequence[str], *rows: Sequence[str], title: str | None = None) -> Table:
    """Return a table for a terminal, in which all columns but the first are numbers."""
    table = Table(header[0], title=title, title_justify="left")
    for name in header[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def markdown_lines(header: Sequence[str], *rows: Sequence[str]) -> list[str]:
    """Return the lines of such a table in Markdown."""
    rule = ("---", *("---:",) * (len(header) - 1))
    return ["| " + " | ".join(map(_escaped, row)) + " |" for row in (header, rule, *rows)]


def _escaped(text: str) -> str:
    """Return a name as it can stand in a cell of Markdown."""
    return printable(text).replace("|", "\\|").replace("<", "&lt;")


def rate_text(linear: Mapping[str, Any]) -> str:
    if linear["lr"] == "auto":
        return "learning rate chosen for each network on held-out training images"
    return f"learning rate {linear['lr']:g}"


def labels_text(results: Sequence[Result]) -> str:
    """Name the models whose teacher or start learned from labels; "" if there are none."""
    text = ""
    for key, way in (
        ("teacher_labels", "Taught by a teacher that was trained with"),
        ("start_labels", "Started from a network behind which are"),
    ):
        taught: dict[str, list[str]] = {}
        for r in results:
            labels = (r.training or {}).get(key)
            if isinstance(labels, str) and r.model not in taught.setdefault(labels, []):
                taught[labels].append(r.model)
        for labels, models in taught.items():
            text += f" {way} {labels} labels: {', '.join(models)}."
    return text


def taught_text(results: Sequence[Result]) -> str:
    """Describe teachers trained with labels, and training times without the teacher; "" if none."""
    cached = []
    for r in results:
        about = r.settings.get("pretraining")
        if isinstance(about, Mapping) and about.get("teacher_cached") and r.model not in cached:
            cached.append(r.model)
    text = labels_text(results)
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
    return {"knn": "kNN", "finetune": "fine-tuned"}.get(protocol, protocol)
