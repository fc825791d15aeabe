"""Binary and float networks that were taught alike: accuracy, time and file, as table and picture.

What is measured is the file of benchmarks/rivals.py --out, whose rows have network, runtime,
file_bytes, milliseconds by burn-engine's instruction set ("" for other runtimes) and top1: of each
set and protocol the accuracy of every seed, in percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from burn.core.seeds import OverSeeds
from burn.report.render.plots import STYLE

Row = Mapping[str, Any]

_ENGINE, _FLOAT, _INT8 = "burn-engine", "ONNX Runtime fp32", "ONNX Runtime int8"
_LOOKS = {  # label, colour, marker
    _ENGINE: ("binary, burn-engine", "#e4572e", "o"),
    _INT8: ("8 bits, ONNX Runtime", "#2e6fb7", "s"),
    _FLOAT: ("float32, ONNX Runtime", "#7b8494", "^"),
}
_SETS = {"clothes": "clothes, `val`", "flowers": "flowers"}


def table(measured: Mapping[str, Any], teacher: str) -> str:
    """Return time, file and accuracies of each network as a table in Markdown, fastest first.

    Args:
        measured: What benchmarks/rivals.py wrote.
        teacher: Name of the network that taught the others.
    """
    lines = [
        "| network | runtime | file | ms | " + " | ".join(_SETS.values()) + " |",
        "|---|---|---:|---:|" + "---:|" * len(_SETS),
    ]
    for row in sorted(measured["rows"], key=_milliseconds):
        accuracies = " | ".join(
            " / ".join(_said(row["top1"][each][protocol]) for protocol in ("knn", "linear"))
            for each in _SETS
        )
        role = ", the teacher" if row["network"] == teacher else ""
        lines.append(
            f"| `{row['network']}`{role} | {row['runtime']} | {row['file_bytes'] / 1e6:.2f} MB "
            f"| {_milliseconds(row):.2f} | {accuracies} |"
        )
    return "\n".join(lines)


def draw(measured: Mapping[str, Any], teacher: str, file: Path) -> None:
    """Draw linear accuracy on the clothes against time, and against the file's size.

    Args:
        measured: What benchmarks/rivals.py wrote.
        teacher: Name of the network that taught the others.
        file: The picture to write.
    """
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), sharey=True)
        rows = measured["rows"]
        _panel(left, rows, [_milliseconds(row) for row in rows], teacher)
        _panel(right, rows, [row["file_bytes"] / 1e6 for row in rows], teacher)
        left.set_xlabel("milliseconds an image, one thread")
        right.set_xlabel("file, MB")
        left.set_ylabel("linear accuracy on the clothes, %")
        left.legend(frameon=False, loc="lower right", fontsize=8)
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)


def _panel(axes: Axes, rows: Sequence[Row], x: Sequence[float], teacher: str) -> None:
    for runtime, (label, colour, marker) in _LOOKS.items():
        points = [
            (place, OverSeeds.of(row["top1"]["clothes"]["linear"]), row["network"])
            for row, place in zip(rows, x, strict=True)
            if row["runtime"] == runtime
        ]
        for place, accuracy, name in points:
            filled = colour if name != teacher else "none"
            axes.errorbar(place, accuracy.mean, accuracy.error, color=colour, marker=marker,
                          markerfacecolor=filled, markersize=5, lw=0.8)  # fmt: skip
            if runtime != _FLOAT:
                axes.annotate(
                    _short(name), (place, accuracy.mean), xytext=(5, 3),
                    textcoords="offset points", fontsize=6.5, color=colour,
                )  # fmt: skip
        axes.plot([], [], color=colour, marker=marker, lw=0, label=label)
    axes.set_xscale("log")
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10) if min(x) / 1.5 < tick < 1.5 * max(x)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _short(name: str) -> str:
    """Return a name that fits beside its point."""
    long = {
        "mobilenetv2_": "V2 ",
        "mobilenetv3_small_": "V3-small ",
        "reactnet_": "",
        "bnext_t": "bnext_t",
    }
    for beginning, short in long.items():
        if name.startswith(beginning):
            return short + name.removeprefix(beginning)
    return name


def _milliseconds(row: Row) -> float:
    return next(iter(row["milliseconds"].values()))  # of the best instruction set


def _said(values: Sequence[float]) -> str:
    """Say the mean over seeds, ± its standard error if there are several."""
    over = OverSeeds.of(values)
    return f"{over.mean:.1f}" if over.error is None else f"{over.mean:.1f} ± {over.error:.1f}"
