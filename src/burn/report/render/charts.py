"""Charts as SVG that takes its colours and its font from the page around it.

Matplotlib draws with placeholder colours, one for each role. They become CSS variables, so that one
drawing serves light and dark mode and paper. The `key` of each drawing is a prefix that makes its
names unique in the page. Where there is nothing to draw, there is no chart.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from burn.core.errors import printable
from burn.report.render.plots import STYLE

# A role is the name of a colour in the page's style sheet; `colour` below is always a role.
_ROLES = (
    "ink", "muted", "line", "burn", "blue", "pale", "grey", "alarm", "green", "violet", "teal",
)  # fmt: skip
COLOURS = {role: f"#{0x5A0000 + number:06x}" for number, role in enumerate(_ROLES, start=1)}
_WIDTH, _HEIGHT = 3.15, 1.95  # inches; at this width 8 points are 11 pixels on a phone
_MOST_POINTS = 300
_STEPS = (1, 2, 2.5, 5, 10)  # distances between the ticks of an axis
_STYLE = STYLE | {
    "svg.fonttype": "none",
    "font.size": 8,
    "text.color": COLOURS["muted"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["line"],
    "axes.linewidth": 0.8,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 2.5,
    "ytick.major.size": 0,
    "xtick.major.width": 0.8,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.max_open_warning": 0,
    "text.parse_math": False,
}


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    with plt.rc_context(_STYLE), warnings.catch_warnings():
        # The page's font has the glyphs that matplotlib's lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


@dataclass(frozen=True)
class Line:
    """A curve."""

    name: str
    colour: str
    parts: Sequence[Sequence[tuple[float, float]]]  # (step, value) of each stage, not joined
    dashed: bool = False

    @property
    def points(self) -> list[tuple[float, float]]:
        return [point for part in self.parts for point in part]


@dataclass(frozen=True)
class Chart:
    """A chart as it goes into the page."""

    title: str
    svg: str
    about: str  # in words, for readers who cannot see the drawing
    legend: tuple[tuple[str, str], ...] = ()  # name and colour of each line
    note: str = ""  # small print


def curves(
    title: str,
    lines: Sequence[Line],
    key: str,
    *,
    log: bool = False,
    alarm: float | None = None,  # below this line something is wrong
    stages: Sequence[float] = (),  # steps at which another stage begins
    end: float = 0,  # last step, so that all charts of a run have the same axis
    percent: bool = False,  # whether values are shares
    note: str = "",
    bottom: float | None = None,
    top: float | None = None,
) -> Chart | None:
    """Draw values over optimizer steps."""
    lines = [
        line for line in lines if line.points and (not log or max(y for _, y in line.points) > 0)
    ]
    if not lines:
        return None
    with _drawing():
        figure, axes = plt.subplots(figsize=(_WIDTH, _HEIGHT))
        for line in lines:
            for part in filter(None, line.parts):
                x, y = zip(*_thinned(part), strict=True)
                marker = "o" if len(x) < 5 else None
                colour, ls = COLOURS[line.colour], "--" if line.dashed else "-"
                axes.plot(x, y, color=colour, ls=ls, marker=marker, ms=3.5)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(axis="y", which="minor", left=False)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
            axes.margins(y=0.08)
        if top is None and bottom is not None and not log:
            # Room above, or a line at the top would be cut in half.
            highest = max(axes.dataLim.intervaly[1], alarm or bottom)
            top = highest + 0.06 * (highest - bottom) if highest > bottom else None
        if bottom is not None or top is not None:
            axes.set_ylim(bottom, top)
        axes.yaxis.set_major_formatter(FuncFormatter(_percents if percent else _plain))
        if alarm is not None:
            axes.axhline(alarm, color=COLOURS["alarm"], lw=1, ls=(0, (4, 3)))
            place = {"xycoords": ("axes fraction", "data"), "ha": "right"}
            _note(axes, "alarm", (1, alarm), (-1, 2), "alarm", **place)
        for number, step in enumerate(stages, start=2):
            axes.axvline(step, color=COLOURS["muted"], lw=0.8, ls=(0, (1, 2)))
            place = {"xycoords": ("data", "axes fraction"), "ha": "center"}
            _note(axes, f"stage {number}", (step, 1), (0, 1), "muted", **place)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=_STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.grid(visible=False, axis="x")
        end = max(end, *(x for line in lines for x, _ in line.points))
        axes.set_xlim(-0.01 * end, 1.01 * end)
        axes.set_xlabel("optimizer steps")
        svg = _svg(figure, key)
    about = "; ".join(
        f"{line.name}: from {_say(line.points[0][1], percent)} to "
        f"{_say(line.points[-1][1], percent)}"
        for line in lines
    )
    legend = tuple((line.name, line.colour) for line in lines) if len(lines) > 1 else ()
    return Chart(title, svg, f"{title} over optimizer steps. {about}.", legend, note)


def small(parts: Sequence[Sequence[tuple[float, float]]], colour: str, key: str) -> str:
    """Draw a curve, of parts as in `Line`, on its own scale without text, as one of many."""
    with _drawing():
        figure, axes = plt.subplots(figsize=(2.2, 0.72))
        for part in filter(None, parts):
            x, y = zip(*_thinned(part), strict=True)
            marker = "o" if len(x) == 1 else None
            axes.plot(x, y, color=COLOURS[colour], lw=1.4, marker=marker, ms=2.5)
        axes.set_axis_off()
        axes.margins(x=0.01, y=0.08)
        return _svg(figure, key)


@dataclass(frozen=True)
class Dot:
    """A row of a dot plot."""

    name: str
    colour: str
    values: Sequence[float]  # of each seed

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


def dots(
    title: str,
    rows: Sequence[Dot],
    key: str,
    floor: float | None = None,
    note: str = "",
    *,
    above: bool = False,  # names above their dots, where there is room for long ones
) -> Chart | None:
    """Draw means as dots on lines from `floor`, and seeds as ticks, the first row at the top."""
    rows = [row for row in rows if row.values]
    if not rows:
        return None
    with _drawing():
        figure, axes = plt.subplots(figsize=(_WIDTH, 0.55 + (0.4 if above else 0.235) * len(rows)))
        for place, row in enumerate(rows):
            mean, colour = row.mean, COLOURS[row.colour]
            axes.plot([floor or 0, mean], [place, place], color=colour, lw=1.1, alpha=0.45)
            if len(row.values) > 1:
                ends = [min(row.values), max(row.values)]
                axes.plot(ends, [place, place], color=colour, lw=3.2, alpha=0.45)
                axes.plot(row.values, [place] * len(row.values), "|", color=colour, ms=8)
            axes.plot([mean], [place], "o", color=colour, ms=5.5)
            _note(axes, f"{mean:.1f}", (max(row.values), place), (6, 0), va="center")
        if above:
            axes.set_yticks([])
            for place, row in enumerate(rows):
                where: Any = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
                _note(axes, _clipped(row.name, 48), (0, place), (0, 5), **where)
        else:
            names = [_clipped(row.name) for row in rows]
            axes.set_yticks(range(len(rows)), names, color=COLOURS["ink"])
        axes.grid(visible=False, axis="y")
        axes.set_ylim(len(rows) - 0.4, -0.95 if above else -0.6)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        low, high = axes.get_xlim()
        axes.set_xlim(low, high + 0.09 * (high - low))
        svg = _svg(figure, key)
    about = ", ".join(f"{row.name} {row.mean:.1f}" for row in rows)
    return Chart(title, svg, f"{title}, in percent: {about}.", note=note)


def scatter(
    title: str, points: Sequence[tuple[str, str, float, float]], key: str, across: str, up: str
) -> Chart | None:
    """Draw two or more points (name, colour, x, y) with their names beside them."""
    if len(points) < 2:
        return None
    with _drawing():
        figure, axes = plt.subplots(figsize=(_WIDTH, 2.75))
        for _, colour, x, y in points:
            axes.plot([x], [y], "o", color=COLOURS[colour], ms=5.5)
        axes.margins(x=0.12, y=0.12)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        _name_points(axes, points)
        svg = _svg(figure, key)
    about = "; ".join(f"{name}: {x:,.0f} and {y:.1f}" for name, _, x, y in points)
    return Chart(title, svg, f"{title}. {about}.")


def _name_points(axes: Axes, points: Sequence[tuple[str, str, float, float]]) -> None:
    """Write each name beside its point, at the first place where it covers nothing."""
    figure = axes.figure
    figure.canvas.draw()
    frame = axes.get_window_extent()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    taken = []  # the points come first, with a margin, so that a name is nearest to its own point
    for _, _, x, y in points:
        px, py = axes.transData.transform((x, y))
        taken.append((px - 9, py - 9, px + 9, py + 9))
    for place, (name, _, x, y) in enumerate(points):
        best = None
        for dx, dy in ((6, 0), (-6, 0), (0, 6), (0, -6), (5, 6), (5, -6), (-5, 6), (-5, -6)):
            ha = "left" if dx > 0 else "right" if dx < 0 else "center"
            va = "bottom" if dy > 0 else "top" if dy < 0 else "center"
            text = _note(axes, _clipped(name), (x, y), (dx, dy), ha=ha, va=va)
            box = text.get_window_extent(renderer)
            extent = (box.x0, box.y0, box.x1, box.y1)
            clashes = sum(_overlap(extent, other) for i, other in enumerate(taken) if i != place)
            clashes += 5 * (extent[0] < frame.x0 - 8 or extent[2] > frame.x1 + 10)
            if best is None or clashes < best[0]:
                if best is not None:
                    best[1].remove()
                best = (clashes, text, extent)
            else:
                text.remove()
            if clashes == 0:
                break
        assert best is not None
        taken.append(best[2])


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@dataclass(frozen=True)
class Scale:
    """The colours of values from low to high, by opacity, for light and dark backgrounds.

    With a colour for values `below` it, the middle of the scale is neutral.
    """

    low: float
    high: float
    colour: str
    below: str = ""

    LEVELS: ClassVar[int] = 8  # shades on each side

    def level(self, value: float) -> int:
        """Return a value's level in 0 … LEVELS, or in -LEVELS … LEVELS around a middle."""
        share = (value - self.low) / max(self.high - self.low, 1e-12)
        share = min(max(share, 0.0), 1.0)
        return round((2 * share - 1 if self.below else share) * self.LEVELS)

    def look(self, level: int) -> dict[str, Any]:
        """Return matplotlib's colour and opacity of a level; level 0 is neutral."""
        if level == 0:
            return {"color": COLOURS["line"], "alpha": 0.6}
        colour = self.below if level < 0 else self.colour
        return {"color": COLOURS[colour], "alpha": abs(level) / self.LEVELS}

    def draw(self, axes: Axes) -> None:
        """Draw a colour bar with percentages at its ends and, if it has one, at its middle."""
        levels = range(-self.LEVELS if self.below else 0, self.LEVELS + 1)
        for place, level in enumerate(levels):
            axes.barh(0, 1, 1, left=place, lw=0, **self.look(level))
        ends: list[tuple[float, float]] = [(0, self.low), (len(levels), self.high)]
        if self.below:
            ends.insert(1, (len(levels) / 2, (self.low + self.high) / 2))
        axes.set_xlim(0, len(levels))
        axes.set_ylim(-0.5, 0.5)
        axes.set_yticks([])
        axes.set_xticks([x for x, _ in ends], [f"{100 * value:.3g} %" for _, value in ends])
        labels = axes.get_xticklabels()
        labels[0].set_horizontalalignment("left")
        labels[-1].set_horizontalalignment("right")
        axes.tick_params(axis="x", length=0, labeltop=True, labelbottom=False, pad=1.5)
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)


def strip(
    title: str,
    rows: Sequence[str],
    columns: Sequence[float],
    values: Mapping[tuple[str, float], float],
    key: str,
    scale: Scale,
    note: str = "",
) -> Chart:
    """Draw a strip of shares over optimizer steps for each row, below a bar of their colours."""
    levels: dict[str, list[int | None]] = {row: [None] * len(columns) for row in rows}
    place_of = {column: place for place, column in enumerate(columns)}
    for (row, column), value in values.items():
        levels[row][place_of[column]] = scale.level(value)
    height = max(1.1, 0.55 + 0.125 * len(rows))
    with _drawing():
        figure, (bar, axes) = plt.subplots(
            2, figsize=(_WIDTH, height + 0.34), height_ratios=(0.1, height - 0.5)
        )
        scale.draw(bar)
        bars: list[list[tuple[float, float]]] = []
        fills: list[tuple[float, ...]] = []
        for i, line in enumerate(levels.values()):
            left = 0
            for level, run in itertools.groupby(line):  # join neighbours of the same shade
                right = left + len(list(run))
                if level is not None:
                    low, high = i - 0.43, i + 0.43
                    look = scale.look(level)
                    bars.append([(left, low), (right, low), (right, high), (left, high)])
                    fills.append(to_rgba(look["color"], look["alpha"]))
                left = right
        # One collection: as many bars, each with an artist of its own, would take a second.
        axes.add_collection(PolyCollection(bars, facecolors=fills, lw=0), autolim=False)
        every = max(1, -(-len(rows) // 30))
        axes.set_yticks(range(0, len(rows), every), [_clipped(r, 20) for r in rows[::every]])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(0, len(columns))
        spaced = np.linspace(0, len(columns) - 1, min(4, len(columns)))
        shown = np.unique(spaced.round().astype(int))
        axes.set_xticks([i + 0.5 for i in shown], [_plain(columns[i], 0) for i in shown])
        axes.set_xlabel("optimizer steps")
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        svg = _svg(figure, key)
    numbers = list(values.values())
    about = (
        f"{title}: {len(rows)} rows, from {_say(min(numbers), True)} to {_say(max(numbers), True)}."
    )
    return Chart(title, svg, about, note=note)


def _note(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    away: tuple[float, float],  # in points
    colour: str = "ink",
    **look: Any,
) -> Annotation:
    look |= {"textcoords": "offset points", "color": COLOURS[colour]}
    return axes.annotate(text, at, away, **look)


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Keep the least and the largest value of each stretch of points, in their order."""
    if len(points) <= _MOST_POINTS:
        return points
    size = -(-2 * len(points) // _MOST_POINTS)
    kept: list[tuple[float, float]] = [points[0]]
    for start in range(0, len(points), size):
        part = range(start, min(start + size, len(points)))
        ends = {min(part, key=lambda i: points[i][1]), max(part, key=lambda i: points[i][1])}
        kept += [points[i] for i in sorted(ends)]
    return [*kept, points[-1]]


def _plain(value: float, _: object) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        for size, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:g}{sign}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _percents(value: float, _: object) -> str:
    return f"{100 * value:g} %"


def _say(value: float, percent: bool = False) -> str:
    return f"{100 * value:.1f} %" if percent else f"{value:.3g}"


def _clipped(name: str, most: int = 22) -> str:
    name = printable(name)
    return name if len(name) <= most else name[: most - 1] + "…"


def _svg(figure: Figure, key: str) -> str:
    """Return the figure as inline SVG without needless parts; its names begin with `key`."""
    figure.tight_layout(pad=0.3)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{key}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"font-family: [^;\"]*;?", "", text)
    for role, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{role})")
    text = re.sub(r"\n\s*", "\n", text)
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1).strip()
