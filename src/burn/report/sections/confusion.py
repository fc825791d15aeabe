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
    places = range(len(classes))
    total = sum(map(sum, counts))
    right = sum(counts[i][i] for i in places)
    rows = []
    for name, row in zip(classes, counts, strict=True):
        whole = sum(row)
        shares = [(c, 100 * c / whole if whole else 0.0) for c in row]
        rows.append((name, whole, shares))
    largest = max(share for _, _, shares in rows for _, share in shares) or 1.0
    pairs = [(i, j) for i in places for j in places if i != j and counts[i][j]]
    pairs.sort(key=lambda pair: -counts[pair[0]][pair[1]])
    worst = []
    for i, j in pairs[:8]:
        count, share = rows[i][2][j]
        worst.append([Cell(classes[i]), Cell(classes[j]), cell(count, "{:,}"), cell(share)])
    columns = ("true class", "taken for", "images", "of class, %")
    chart = None
    if len(classes) > _MOST_CLASSES_IN_TABLE:
        recall = [rows[i][2][i][1] for i in places]
        ordered = sorted(places, key=lambda i: -recall[i])
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
        "worst": Table("Most often confused", columns, worst, frozenset({2, 3})),
    }
