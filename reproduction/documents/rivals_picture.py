"""Binary, float and 8-bit networks that were taught alike, as a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from burn.core.seeds import OverSeeds
from burn.report.render.plots import STYLE

_COLOURS = {  # by runtime
    "burn-engine": "#e4572e",
    "ONNX Runtime int8": "#2e6fb7",
    "ONNX Runtime fp32": "#b8bec7",
}
_LABELS = {
    "burn-engine": "one bit, burn-engine",
    "ONNX Runtime int8": "8 bits, ONNX Runtime",
    "ONNX Runtime fp32": "float32, ONNX Runtime",
}

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """Return file, time and top-1 of each network in each runtime as a table in Markdown.

    Args:
        rows: Rows of `benchmarks/rivals.py --out`.
    """
    sets = list(rows[0]["top1"])
    heads = "".join(f" {name}, kNN | linear |" for name in sets)
    lines = [
        f"| network | runtime | file | ms |{heads} seeds |",
        f"|---|---|---:|---:|{'---:|' * (2 * len(sets) + 1)}",
    ]
    before = None
    for row in rows:
        name = "" if row["network"] == before else f"`{row['network']}`"
        before = row["network"]
        numbers = [values for name in sets for values in row["top1"][name].values()]
        cells = "".join(f" {OverSeeds.of(values)} |" for values in numbers)
        lines.append(
            f"| {name} | {_LABELS[row['runtime']]} | {row['file_bytes'] / 1e6:.2f} MB "
            f"| {_milliseconds(row):.2f} |{cells} {len(numbers[0])} |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Draw linear accuracy against milliseconds an image and the file's size, for each set.

    Args:
        rows: Rows of `benchmarks/rivals.py --out`.
        file: The picture to write.
    """
    columns = {
        "milliseconds an image, one thread": [_milliseconds(row) for row in rows],
        "file, MB": [row["file_bytes"] / 1e6 for row in rows],
    }
    sets = list(rows[0]["top1"])
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            len(sets), len(columns), figsize=(9.6, 3.4 * len(sets)), sharex="col", sharey="row",
            squeeze=False,
        )  # fmt: skip
        for images, panels in zip(sets, grid, strict=True):
            panels[0].set_ylabel(f"linear accuracy on {images}, %")
            for axes, places in zip(panels, columns.values(), strict=True):
                _panel(axes, rows, images, places)
        for axes, what in zip(grid[-1], columns, strict=True):
            axes.set_xlabel(what)
        lines, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(lines, labels, frameon=False, loc="upper center", ncols=len(labels))
        figure.tight_layout(rect=(0, 0, 1, 0.95))
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)


def _panel(axes: Axes, rows: Sequence[Row], images: str, places: Sequence[float]) -> None:
    """Draw a point with an error bar of one standard deviation for each row at its place."""
    for runtime, colour in _COLOURS.items():
        chosen = [
            (x, row) for x, row in zip(places, rows, strict=True) if row["runtime"] == runtime
        ]
        over = [OverSeeds.of(row["top1"][images]["linear"]) for _, row in chosen]
        axes.errorbar(
            [x for x, _ in chosen], [each.mean for each in over],
            [each.deviation or 0 for each in over],
            fmt="o", ms=5, color=colour, lw=1, label=_LABELS[runtime],
        )  # fmt: skip
        if runtime == "ONNX Runtime fp32":
            continue  # the name stands at the same network's 8 bits
        for index, ((x, row), each) in enumerate(zip(chosen, over, strict=True)):
            axes.annotate(
                row["network"],
                (x, each.mean),
                xytext=(4, -10 if index % 2 else 4),  # neighbours' names do not meet
                textcoords="offset points",
                fontsize=7,
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.minorticks_off()


def _milliseconds(row: Row) -> float:
    """Return the time of the fastest instruction set, which is the first."""
    return next(iter(row["milliseconds"].values()))
