"""Functions that the pictures and texts of `burn analyze` share.

Both are made only from the rows of the CSV files. The numbers decide what a text claims, so that it
is true for every outcome.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from burn.report.render.plots import STYLE

Row = Mapping[str, Any]

# Also distinct for colour-blind readers: the two blues differ in lightness.
INK, ORANGE, BLUE, SKY, SOFT = "#20242b", "#e4572e", "#2e6fb7", "#79b4e3", "#646c77"
WIDTH = 7.3  # inches: 700 pixels


@dataclass(frozen=True)
class Report:
    """The report on one analysis.

    Attributes:
        title: Heading.
        text: One or more paragraphs.
        table: Tables in Markdown, or an empty string.
        draw: Function that writes the picture, SVG or PNG by the file's suffix.
    """

    title: str
    text: str
    table: str
    draw: Callable[[Path], None]


def save(make: Callable[..., Figure], file: Path, *given: Any) -> None:
    """Write a figure as SVG or PNG; the same rows give the same bytes.

    Args:
        make: Function that draws the figure.
        file: File to write; its suffix decides the format.
        given: Arguments of `make`.
    """
    with plt.rc_context(STYLE):
        figure = make(*given)
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, dpi=150, metadata=metadata)
        plt.close(figure)


def label_ends(panel: Axes) -> None:
    """Write each labelled line's name beside its end, moved apart where names would overlap."""
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
            label,
            (1, place / height),
            (4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
            fontsize=7.5,
            color=legible(colour),
            annotation_clip=False,
        )


def legible(colour: Any) -> tuple[float, ...]:
    """Return a line's colour, made so dark that small text in it can be read on white.

    Args:
        colour: Any colour of Matplotlib's.

    Returns:
        Red, green and blue in [0, 1], whose contrast to white is at least 4.5 (WCAG 2.2, 1.4.3).
    """
    rgb = to_rgb(colour)
    while 1.05 / (_luminance(rgb) + 0.05) < 4.5:
        rgb = tuple(0.97 * part for part in rgb)
    return rgb


def _luminance(rgb: Sequence[float]) -> float:
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _apart(places: Sequence[float], gap: float, top: float) -> list[float]:
    """Move places apart to lie at least `gap` from each other between 0 and `top`.

    Places that are too close are spread evenly about their mean.
    """
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
    """Return a ratio with two digits, such as ×2.4."""
    return f"×{digits(ratio)}"


def digits(number: float) -> str:
    """Return a number with two significant digits, without an exponent if that is short."""
    if number >= 100:
        return f"{float(f'{number:.2g}'):,.0f}"
    return f"{number:.2g}"


def listed(words: Iterable[str]) -> str:
    """Join words as in "one, two and three"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def range_of(numbers: Sequence[float]) -> str:
    """Return the least and the largest number, as in "0.1 to 0.3"."""
    low, high = f"{min(numbers):.3g}", f"{max(numbers):.3g}"
    return low if low == high else f"{low} to {high}"


def counted(steps: Sequence[int]) -> str:
    """Return a range of steps, as in "step 20" or "steps 19 to 22"."""
    low, high = min(steps), max(steps)
    return f"step {low}" if low == high else f"steps {low} to {high}"
