"""The search for a better method: reproduction/results/search.csv as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from burn.core.results import Result
from burn.core.seeds import OverSeeds
from burn.report.render.plots import STYLE

_TITLES = {
    "losses": "Losses, 25,600 images",
    "features": "Losses of the features themselves, 25,600 images",
    "losses on BNext": "Losses on BNext's network, 25,600 images",
    "depth": "Depth, 25,600 images",
    "settings": "Settings, 105,000 images",
    "training": "Training of binary weights, 51,200 images",
    "long": "Longer, 280,000 images",
    "photographs": "Photographs of clothes, 12,288 images",
    "long on photographs": "Photographs of clothes, 122,880 images",
}
_GREY, _ORANGE, _BLUE, _GREEN = "#b8bec7", "#e4572e", "#2e6fb7", "#3a8f5c"
_PALE = "#a5d1b5"

Row = dict[str, Any]
Point = tuple[int, float]  # images seen, linear accuracy in %


def table(rows: Sequence[Row]) -> str:
    """Return the searched changes as a table in Markdown, by study, over the seeds."""
    lines = ["| change | network | kNN | linear | seeds |", "|---|---|---:|---:|---:|"]
    for study, title in _TITLES.items():
        lines.append(f"| **{title}** | | | | |")
        study_rows = [row for row in rows if row["study"] == study]
        for network, change in dict.fromkeys((row["network"], row["change"]) for row in study_rows):
            runs = [
                row for row in study_rows if (row["network"], row["change"]) == (network, change)
            ]
            knn, linear = (OverSeeds.of([run[name] for run in runs]) for name in ("knn", "linear"))
            lines.append(f"| {change} | {network} | {knn} | {linear} | {len(runs)} |")
    return "\n".join(lines)


def draw(
    rows: Sequence[Row], compared: Sequence[Result], default: Sequence[Result], file: Path
) -> None:
    """Draw linear accuracy on CIFAR-10 against the images seen.

    Args:
        rows: Rows of search.csv.
        compared: Results of `burn compare`.
        default: Results of whole recipes, each of 1,000,000 images.
        file: The picture to write.
    """
    rows = [row for row in rows if "photographs" not in row["study"]]
    first = [row for row in rows if row["study"] == "losses" and row["change"] == "default"]
    best = max((r for r in rows if r["study"] == "settings"), key=lambda row: row["linear"])
    longer, alone, *_ = (row for row in rows if row["study"] == "long")
    on_bnext = "losses on BNext"
    bnext = next(r for r in rows if r["study"] == on_bnext and r["change"] == "default")
    ours = [
        (25_600, _mean([row["linear"] for row in first])),
        *_of(compared, "burn", 51_200),
        (105_000, best["linear"]),
        (longer["images"], longer["linear"]),
        *_of(default, "burn_small, binary, taught by lite0", 1_000_000),
    ]
    wider = [
        (25_600, bnext["linear"]),
        *_of(default, "bnext_small, binary, taught by lite0", 1_000_000),
    ]
    tried = [row for row in rows if row not in (*first, best, bnext, longer, alone)]
    of_bnext = [(row["images"], row["linear"]) for row in tried if row["study"] == on_bnext]
    others = [(row["images"], row["linear"]) for row in tried if row["study"] != on_bnext]
    rivals = [
        *_of(compared, "feature_only", 51_200),
        *_of(compared, "s2bnn", 51_200),
        (alone["images"], alone["linear"]),
    ]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 3.6))
        for points, colour, name in (
            (others, _GREY, "burn_small"),
            (of_bnext, _PALE, "bnext_small"),
        ):
            label = f"a change of {name}"
            axes.scatter(*_columns(points), s=16, color=colour, label=label, zorder=2)
        axes.scatter(
            *_columns(rivals), s=30, marker="s", color=_BLUE, zorder=3,
            label="the paper's feature similarity alone; S2-BNN",
        )  # fmt: skip
        axes.plot(*_columns(ours), color=_ORANGE, marker="o", lw=1.4, label="burn_small")
        axes.plot(*_columns(wider), color=_GREEN, marker="o", lw=1.4, label="bnext_small")
        axes.set_xscale("log")
        ticks = sorted({images for images, _ in (*ours, *others)})
        axes.set_xticks(ticks, [f"{images:,}" for images in ticks])
        axes.minorticks_off()
        axes.set_xlabel("images seen in training")
        axes.set_ylabel("linear accuracy, %")
        axes.legend(frameon=False, loc="upper left", fontsize=8)
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None})
        plt.close(figure)


def _of(results: Sequence[Result], model: str, images: int) -> list[Point]:
    wanted = (model, "linear", "top1")
    values = [r.value for r in results if (r.model, r.protocol, r.metric) == wanted]
    return [(images, _mean(values))] if values else []


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _columns(points: Sequence[Point]) -> tuple[list[int], list[float]]:
    return [images for images, _ in points], [value for _, value in points]
