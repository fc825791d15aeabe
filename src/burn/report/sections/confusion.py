"""Confusion matrices."""

from __future__ import annotations

from typing import Any

from burn.report.load.contents import Confusion
from burn.report.load.values import short_path
from burn.report.render.cells import Cell, Table, cell, filled, joined, percent
from burn.report.render.charts import Dot, dots
from burn.report.render.tables import number_name

_MOST_CLASSES_IN_TABLE = 20


def confusion_part(confusion: Confusion, key: str) -> dict[str, Any]:
    """Return a confusion matrix, with a table of the pairs that are confused most often.

    For many classes it is a chart of each one's accuracy; for few it has rows (true class, number
    of its images, (count, share in percent) of each class), and the largest share.
    """
    counts, classes = confusion.counts, confusion.classes
    total = sum(map(sum, counts))
    right = sum(counts[i][i] for i in range(len(classes)))
    rows = []
    for name, row in zip(classes, counts, strict=True):
        whole = sum(row)
        shares = [(c, 100 * c / whole if whole else 0.0) for c in row]
        rows.append((name, whole, shares))
    largest = max(share for _, _, shares in rows for _, share in shares) or 1.0
    pairs = sorted(
        (
            (counts[i][j], i, j)
            for i in range(len(classes))
            for j in range(len(classes))
            if i != j and counts[i][j]
        ),
        key=lambda pair: (-pair[0], *pair[1:]),
    )
    worst = Table(
        "Most often confused",
        ("true class", "taken for", "images", "of class, %"),
        [
            [Cell(classes[i]), Cell(classes[j]), cell(c, "{:,}"), cell(100 * c / sum(counts[i]))]
            for c, i, j in pairs[:8]
        ],
        frozenset({2, 3}),
    )
    chart = None
    if len(classes) > _MOST_CLASSES_IN_TABLE:
        recall = [rows[i][2][i][1] for i in range(len(classes))]
        ordered = sorted(range(len(classes)), key=lambda i: -recall[i])
        ordered = ordered[:12] + ordered[12:][-12:]
        bars = [Dot(classes[i], "burn", [recall[i]]) for i in ordered]
        chart = dots("Accuracy of each class, %", bars, key)
    protocol = number_name(confusion.protocol, "").strip()
    names = joined(confusion.model, protocol)
    where = filled(" on {}", short_path(confusion.test))
    accuracy = "no image"
    if total:
        accuracy = f"{percent(100 * right / total)} % of {total:,} images right"
    return {
        "title": f"{names}{where}",
        "accuracy": accuracy,
        "classes": classes,
        "rows": rows if chart is None else [],
        "largest": largest,
        "chart": chart,
        "worst": worst,
    }
