"""Results as tables for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Column, Table

from burn.results import Result


def results_table(results: Sequence[Result]) -> RenderableType:
    """A row a model and a column a number, "kNN top-1"; or, of one model, a row a number."""
    models = list(dict.fromkeys(r.model for r in results))
    if len(models) == 1:
        table = Table("number", Column("%", justify="right"))
        for r in results:
            spread = "" if r.spread is None else f" ± {r.spread:.1f}"
            table.add_row(number_name(r.protocol, r.metric), f"{r.value:.1f}{spread}")
        first = results[0]
        return Group(f"{first.model}: learned on {first.train}, judged on {first.test}", table)
    columns = list(dict.fromkeys((r.protocol, r.metric) for r in results))
    table = Table()
    table.add_column("model")
    for protocol, metric in columns:
        table.add_column(number_name(protocol, metric), justify="right")
    for model in models:
        numbers = {(r.protocol, r.metric): r.value for r in results if r.model == model}
        cells = [f"{numbers[c]:.1f} %" if c in numbers else "" for c in columns]
        table.add_row(model, *cells)
    return table


def number_name(protocol: str, metric: str) -> str:
    """As people write it: "kNN top-1"."""
    top = re.fullmatch(r"(.*\b)?top(\d)", metric)
    name = f"{top[1] or ''}top-{top[2]}" if top else metric
    return f"{protocol_name(protocol)} {name}"


def protocol_name(protocol: str) -> str:
    """As people write it."""
    return {"knn": "kNN"}.get(protocol, protocol)
