"""Confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burn.report.load.found import Confusion
from burn.report.load.values import short_path
from burn.report.render.cells import Cell, Table, cell, joined, percent, told
from burn.report.render.charts import Chart, Dot, dots
from burn.report.render.tables import number_name

_MOST_CLASSES_IN_TABLE = 20


@dataclass(frozen=True)
class ConfusionView:
    """A confusion matrix as a table of shares or, for many classes, as a picture.

    Attributes:
        title: Heading.
        accuracy: The accuracy in words.
        classes: Names of the classes.
        rows: True class, number of its images, and (count, share in percent) for each predicted
            class; empty if there is a chart.
        largest: Largest share, which gets the fullest colour.
        chart: Accuracy of each class, for many classes.
        worst: Table of the pairs of classes that are confused most often.
    """

    title: str
    accuracy: str
    classes: Sequence[str]
    rows: Sequence[tuple[str, int, Sequence[tuple[int, float]]]]
    largest: float
    chart: Chart | None
    worst: Table


def confusion_view(confusion: Confusion, key: str) -> ConfusionView:
    """Return a confusion matrix with the pairs of classes that are confused most often.

    Args:
        confusion: The confusion matrix.
        key: Prefix that makes the chart's names unique in the page.
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
        ("true class", "taken for", "images", "of its class, %"),
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
        chart = dots(
            "Accuracy of each class, %",
            [Dot(classes[i], "burn", [recall[i]]) for i in ordered],
            key,
        )
    protocol = number_name(confusion.protocol, "").strip()
    names = joined(confusion.model, protocol)
    where = told(" on {}", short_path(confusion.test))
    accuracy = "no image"
    if total:
        accuracy = f"{percent(100 * right / total)} % of {total:,} images right"
    shown = rows if chart is None else []
    return ConfusionView(f"{names}{where}", accuracy, classes, shown, largest, chart, worst)
