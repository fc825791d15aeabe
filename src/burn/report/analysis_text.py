"""Folders of `burn analyze`: pictures, and their texts from Markdown."""

from __future__ import annotations

from typing import Any

from burn.report.cells import Cell, Table
from burn.report.gather import Analysis
from burn.report.images import data_address


def analysis_part(found: Analysis, place: int) -> dict[str, Any]:
    figures = [
        {
            "name": name.replace("-", " ").replace("_", " "),
            # As an image: scripts in it do not run, and it reaches for nothing.
            "image": data_address(svg, "image/svg+xml") if svg is not None else "",
            **_markdown(text),
        }
        for name, svg, text in found.figures
    ]
    title = found.folder.name.replace("-", " ").replace("_", " ")
    return {"id": f"analysis{place + 1}", "title": f"Analysis: {title}", "short": title[:24],
            "figures": figures}  # fmt: skip


def _markdown(text: str) -> dict[str, Any]:
    """Title, paragraphs and table of what burn analyze writes; anything else is a paragraph."""
    title, paragraphs, table = "", [], None
    for part in text.split("\n\n"):
        lines = [line.strip() for line in part.strip().splitlines()]
        if not lines or lines[0].startswith("!["):
            continue
        if lines[0].startswith("#") and len(lines) == 1:
            title = title or lines[0].lstrip("# ")
        elif len(lines) > 2 and all(line.startswith("|") for line in lines):
            cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
            rows = [[Cell(c) for c in row] for row in cells[2:] if len(row) == len(cells[0])]
            table = Table(title or "Numbers", cells[0], rows)
        else:
            paragraphs.append(" ".join(lines))
    return {"title": title, "text": paragraphs, "table": table}
