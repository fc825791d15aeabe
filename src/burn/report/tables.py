"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from burn.results import Result


def results_table(results: Sequence[Result], title: str | None = None) -> Table:
    """One row a model, one column a number: "kNN top-1", "linear top-1", ..."""
    columns = list(dict.fromkeys((r.protocol, r.metric) for r in results))
    table = Table(title=title)
    table.add_column("model")
    for protocol, metric in columns:
        table.add_column(
            f"{protocol_name(protocol)} {metric.replace('top', 'top-')}", justify="right"
        )
    for model in dict.fromkeys(r.model for r in results):
        numbers = {(r.protocol, r.metric): r.value for r in results if r.model == model}
        cells = [f"{numbers[c]:.1f} %" if c in numbers else "" for c in columns]
        table.add_row(model, *cells)
    return table


def protocol_name(protocol: str) -> str:
    """As people write it."""
    return {"knn": "kNN"}.get(protocol, protocol)
