"""What the pictures and paragraphs of `burn analyze` share.

Both are made of the rows of its CSV files alone. What a paragraph claims is decided by the numbers,
so that it is true of whatever came out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from burn.report.render.plots import STYLE

Row = Mapping[str, Any]

# Apart for colour-blind eyes too: the two blues differ in lightness.
INK, ORANGE, BLUE, SKY, SOFT = "#20242b", "#e4572e", "#2e6fb7", "#79b4e3", "#8a919c"
WIDTH = 7.3  # inches: 700 pixels


@dataclass(frozen=True)
class Report:
    """What is told of one analysis.

    text: a paragraph, or a few. table: more in Markdown, or nothing. draw: writes the picture, SVG
    or PNG by the file's suffix.
    """

    title: str
    text: str
    table: str
    draw: Callable[[Path], None]


def save(make: Callable[..., Figure], file: Path, *given: Any) -> None:
    """The figure that `make` gives, as SVG or PNG; the same rows give the same bytes."""
    with plt.rc_context(STYLE):
        figure = make(*given)
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, dpi=150, metadata=metadata)
        plt.close(figure)


def label_ends(panel: Axes) -> None:
    """Each labelled line's name beside its end, moved apart where they would overlap."""
    height = panel.get_window_extent().height / panel.figure.dpi * 72  # points
    entries = []
    for line in panel.get_lines():
        label = str(line.get_label())
        if label.startswith("_") or not len(line.get_xdata()):  # type: ignore[arg-type]
            continue
        x, y = float(line.get_xdata()[-1]), float(line.get_ydata()[-1])  # type: ignore[index]
        place = panel.transAxes.inverted().transform(panel.transData.transform((x, y)))[1]
        entries.append((min(max(place, 0.0), 1.0) * height, label, line.get_color()))
    for place, (_, label, colour) in zip(
        _apart([entry[0] for entry in entries], 9.5, height), entries, strict=True
    ):
        panel.annotate(
            label, (1, place / height), (4, 0), xycoords="axes fraction",
            textcoords="offset points", va="center", fontsize=7.5, color=colour,
            annotation_clip=False,
        )  # fmt: skip


def _apart(places: Sequence[float], gap: float, top: float) -> list[float]:
    """The places moved to lie `gap` apart between 0 and `top`: a crowd about its own middle."""
    crowds: list[list[int]] = []

    def lowest(crowd: list[int]) -> float:
        span = gap * (len(crowd) - 1)
        start = statistics.mean(places[i] for i in crowd) - span / 2
        return max(0.0, min(start, top - span))

    for i in sorted(range(len(places)), key=lambda i: places[i]):
        crowds.append([i])
        while len(crowds) > 1:
            below, above = crowds[-2:]
            if lowest(below) + gap * len(below) <= lowest(above):
                break
            crowds[-2:] = [below + above]
    moved = [0.0] * len(places)
    for crowd in crowds:
        for place, i in enumerate(crowd):
            moved[i] = lowest(crowd) + gap * place
    return moved


def times(ratio: float) -> str:
    """×2.4"""
    return f"×{digits(ratio)}"


def digits(number: float) -> str:
    """Two digits, without an exponent where that is short."""
    if number >= 100:
        return f"{float(f'{number:.2g}'):,.0f}"
    return f"{number:.2g}"


def listed(words: Iterable[str]) -> str:
    """One, two and three."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def range_of(numbers: Sequence[float]) -> str:
    """From the least to the largest."""
    low, high = f"{min(numbers):.3g}", f"{max(numbers):.3g}"
    return low if low == high else f"{low} to {high}"


def counted(steps: Sequence[int]) -> str:
    """Step 20, or steps 19 to 22."""
    low, high = min(steps), max(steps)
    return f"step {low}" if low == high else f"steps {low} to {high}"
