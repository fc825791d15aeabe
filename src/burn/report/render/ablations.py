"""Ablations as tables: each group's variants and the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Lines
from rich.console import RenderableType

from burn.core.results import Result
from burn.paper.ablations import AblationRow, ablation_rows
from burn.report.render.tables import (
    markdown_lines,
    mean_and_spread,
    rate_text,
    taught_text,
    terminal_table,
)

_COLUMNS = ("", "kNN", "linear", "seeds", "training", "the paper's linear")


def _cells(row: AblationRow) -> tuple[str, ...]:
    collapsed = f" (collapsed in {row.collapsed} of {len(row.knn)})" if row.collapsed else ""
    return (
        row.row.label + collapsed,
        mean_and_spread(row.knn),
        mean_and_spread(row.linear),
        str(len(row.knn)),
        f"{row.seconds:.0f} s",
        "" if row.paper is None else f"{row.paper:.1f}",
    )


def ablation_table(results: Sequence[Result]) -> RenderableType:
    """Return a table for each group, top-1 in %, for a terminal."""
    tables = (
        terminal_table(_COLUMNS, *map(_cells, rows), title=group.title)
        for group, rows in ablation_rows(results)
    )
    return Lines(*tables)


def ablation_markdown(results: Sequence[Result]) -> str:
    """Return the same as one table in Markdown, with a description of the data below it."""
    cells = []
    for group, rows in ablation_rows(results):
        cells.append((f"**{group.title}**", *("",) * (len(_COLUMNS) - 1)))
        cells += map(_cells, rows)
    linear = next(r.settings for r in results if r.protocol == "linear")
    about = (
        f"Top-1 in %, ± the standard deviation over seeds. Learned on {results[0].train}, "
        f"evaluated on {results[0].test}. Linear: {rate_text(linear)}, "
        f"{linear['epochs']} epochs, augmentation {linear['augment']}.{taught_text(results)}"
    )
    return "\n".join([*markdown_lines(_COLUMNS, *cells), "", about, ""])
