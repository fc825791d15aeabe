"""Folders of `burn analyze`: pictures, and their texts from Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from burn.report.load.contents import Analysis
from burn.report.load.images import data_address
from burn.report.render.cells import Cell, Table

_MOST_IN_NAV = 40


def analysis_part(analysis: Analysis, place: int) -> dict[str, Any]:
    """Return a section, named after its text or, if it has several texts, after its folder."""
    figures = [
        {
            "name": _spoken(name),
            # As an image, so that no scripts in it run and it loads nothing.
            "image": data_address(svg, "image/svg+xml") if svg is not None else "",
            **_markdown(text),
        }
        for name, svg, text in analysis.figures
    ]
    titles = [figure["title"] or figure["name"] for figure in figures]
    title = titles[0] if len(titles) == 1 else f"Analyses in {_spoken(analysis.folder.name)}"
    return {
        "id": f"analysis{place + 1}",
        "title": title,
        "short": shorten(title, _MOST_IN_NAV, placeholder=" …"),
        "figures": figures,
        "alone": len(figures) == 1,
    }


def _spoken(name: str) -> str:
    return name.replace("-", " ").replace("_", " ")


def _markdown(text: str) -> dict[str, Any]:
    """Split Markdown into title, table and paragraphs, which take anything unknown."""
    title, paragraphs, table = "", [], None
    for part in text.split("\n\n"):
        lines = [line.strip() for line in part.strip().splitlines()]
        if not lines or lines[0].startswith("!["):
            continue
        if lines[0].startswith("#") and len(lines) == 1:
            title = title or lines[0].lstrip("# ")
        elif len(lines) > 2 and all(line.startswith("|") for line in lines):
            table = _table(lines)
        else:
            paragraphs.append(" ".join(lines))
    return {"title": title, "text": paragraphs, "table": table}


def _table(lines: Sequence[str]) -> Table:
    head, rule, *rows = ([c.strip() for c in line.strip("|").split("|")] for line in lines)
    numbers = frozenset(place for place, mark in enumerate(rule) if mark.endswith(":"))
    cells = [
        [Cell(c, _leading(c) if i in numbers else None) for i, c in enumerate(row)]
        for row in rows
        if len(row) == len(head)
    ]
    return Table("In numbers", head, cells, numbers)


def _leading(text: str) -> float | None:
    """Return the number at the start of a cell, to sort by: 47.5 of "47.5 → 312"."""
    match = re.match(r"-?\d[\d,]*(\.\d+)?(e-?\d+)?", text)
    return float(match[0].replace(",", "")) if match else None
