"""Accuracy of the binary networks on photographs against their time, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from burn.core.results import Result
from burn.core.seeds import OverSeeds
from burn.report.render.plots import STYLE

_ENGINE = "burn-engine"
_ORANGE, _BLUE, _GREY = "#e4572e", "#2e6fb7", "#7b8494"

Row = dict[str, Any]


def table(rows: Sequence[Row], results: Sequence[Result]) -> str:
    """Return file, time and accuracy of each network as a table in Markdown.

    Args:
        rows: Rows of family/members.csv: the name of a network's results, its name in the table,
            the runtime, the images seen, milliseconds an image and the file's size.
        results: Top-1 on the photographs of clothes.
    """
    lines = [
        "| network | images seen | file | milliseconds | kNN | linear | runs |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        knn, linear = (_accuracies(results, row["model"], name) for name in ("knn", "linear"))
        images = f"{row['images']:,}" if row["images"] else "–"
        lines.append(
            f"| {row['network']} | {images} | {row['megabytes']:.2f} MB "
            f"| {row['milliseconds']:.2f} | {OverSeeds.of(knn)} | {OverSeeds.of(linear)} "
            f"| {len(linear)} |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[Row], results: Sequence[Result], file: Path) -> None:
    """Draw linear accuracy against milliseconds an image.

    Args:
        rows: Rows of family/members.csv.
        results: Top-1 on the photographs of clothes.
        file: The picture to write.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 3.4))
        budgets = sorted({row["images"] for row in rows if row["runtime"] == _ENGINE})
        for images, colour in zip(budgets, (_BLUE, _ORANGE), strict=True):
            points = [
                (row["milliseconds"], _linear(results, row), row)
                for row in rows
                if row["images"] == images and row["runtime"] == _ENGINE
            ]
            label = f"binary, burn-engine, {images:,} images seen"
            axes.plot(*zip(*[p[:2] for p in points], strict=True), color=colour, marker="o", lw=1.2,
                      label=label)  # fmt: skip
            for index, (milliseconds, accuracy, row) in enumerate(points):
                axes.annotate(
                    row["network"].replace("`", ""),
                    (milliseconds, accuracy),
                    xytext=(0, -14 if index % 2 else 7),  # neighbours' names do not meet
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
        axes.margins(y=0.15)
        for row in rows:
            if row["runtime"] != _ENGINE:
                point = [row["milliseconds"]], [_linear(results, row)]
                label = f"{row['network']}, {row['runtime']}".replace("`", "")
                axes.scatter(*point, s=30, color=_GREY, marker="s", label=label)
        axes.set_xscale("log")
        ticks = (0.2, 0.5, 1, 2, 5, 10, 20)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("milliseconds an image, one thread")
        axes.set_ylabel("linear accuracy, %")
        axes.legend(frameon=False, loc="lower right", fontsize=8)
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)


def _accuracies(results: Sequence[Result], model: str, protocol: str) -> list[float]:
    wanted = (model, protocol, "top1")
    return [r.value for r in results if (r.model, r.protocol, r.metric) == wanted]


def _linear(results: Sequence[Result], row: Row) -> float:
    return OverSeeds.of(_accuracies(results, row["model"], "linear")).mean
