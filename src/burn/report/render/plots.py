"""Pictures from results and metrics files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from burn.core.results import Result
from burn.core.seeds import OverSeeds
from burn.report.render.tables import (
    ComparedRow,
    compared_rows,
    labels_text,
    mean_and_spread,
    protocol_name,
)
from burn.training.records.metrics import read_metrics

_GREY, _ORANGE, _BLUE, _PALE, _INK = "#b8bec7", "#e4572e", "#2e6fb7", "#8fb8de", "#20242b"
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": "#8a919c",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.hashsalt": "burn",
}


def demo_picture(
    results: Sequence[Result], teacher: Path, student: Path, files: Sequence[Path]
) -> None:
    """Draw, into each file, the accuracies of the demo and the losses of the runs' folders."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), width_ratios=(1.5, 0.9, 1.2))
        _accuracy(axes[0], results)
        _losses(axes[1], [teacher / "stage1"], {"loss": ("contrastive loss", _BLUE)})
        axes[1].set_title("Teacher: SimCLR")
        stages = [folder for n in (1, 2) if (folder := student / f"stage{n}").is_dir()]
        _losses(
            axes[2],
            stages,
            {"kl": ("KL divergence", _GREY), "feature_similarity": ("feature similarity", _ORANGE)},
        )
        axes[2].set_title("Student: BURN" + (", two stages" if len(stages) == 2 else ""))
        figure.tight_layout(w_pad=2.5)
        for file in files:
            # without a date, so that the same results give the same bytes
            metadata = {"Date": None} if file.suffix == ".svg" else None
            figure.savefig(file, dpi=150, metadata=metadata)
        plt.close(figure)


def comparison_picture(results: Sequence[Result], file: Path) -> None:
    """Draw the accuracy of every compared method by kNN and linear evaluation."""
    rows = compared_rows(results)
    most = max(
        value for row in rows for title in ("kNN", "linear") for value in row.numbers.get(title, [])
    )
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 1.9 + 0.32 * len(rows)), sharey=True)
        for panel, title in zip(axes, ("kNN", "linear"), strict=True):
            for place, row in enumerate(rows):
                values = row.numbers.get(title, [])
                if not values:
                    continue
                panel.barh(place, OverSeeds.of(values).mean, 0.72, color=_colour(row))
                panel.plot(values, [place] * len(values), "o", ms=3, color=_INK, alpha=0.7)
                text, right = mean_and_spread(values), max(values) + most / 50
                panel.text(right, place, text, va="center", fontsize=7.5)
            panel.set_title(title)
            panel.set_xlabel("top-1, %")
            panel.set_xlim(0, 1.2 * most)
            panel.tick_params(axis="y", length=0)
        axes[0].set_yticks(range(len(rows)), [row.model for row in rows])
        axes[0].invert_yaxis()
        kinds = {
            "BURN": _ORANGE,
            "others without labels": _BLUE,
            "learned from labels": _PALE,
            "for reference": _GREY,
        }
        figure.legend(
            [Patch(color=colour) for colour in kinds.values()],
            list(kinds),
            ncols=len(kinds),
            loc="lower center",
            frameon=False,
            fontsize=8,
        )
        heading = figure.suptitle(_heading(results, rows), x=0.01, ha="left", fontsize=9)
        heading.set_parse_math(False)  # a folder may be called $
        figure.tight_layout(rect=(0, 0.05, 1, 1))
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
        plt.close(figure)


def _heading(results: Sequence[Result], rows: Sequence[ComparedRow]) -> str:
    train, test = ("/".join(Path(name).parts[-2:]) for name in (results[0].train, results[0].test))
    seeds = max(row.seeds for row in rows)
    bars = "One seed."
    if seeds > 1:
        bars = f"Mean of {seeds} seeds ± their standard deviation; a dot is one seed."
    taught = labels_text(results).strip()
    return f"Trained on {train}, evaluated on {test}. {bars}" + (f"\n{taught}" if taught else "")


def _colour(row: ComparedRow) -> str:
    if row.epochs is None:
        return _GREY
    if row.model.startswith("supervised"):
        return _PALE
    return _ORANGE if row.model == "burn" else _BLUE


def _accuracy(axes: Axes, results: Sequence[Result]) -> None:
    """Draw horizontal bars, two for each model, the worst at the top as in the table."""
    shown = [r for r in results if r.metric == "top1"]
    models = list(dict.fromkeys(r.model for r in shown))
    protocols = list(dict.fromkeys(r.protocol for r in shown))
    height = 0.8 / len(protocols)
    for offset, protocol in enumerate(protocols):
        for row, model in enumerate(models):
            value = next(r.value for r in shown if (r.model, r.protocol) == (model, protocol))
            colour = _GREY if "random" in model else _BLUE if "teacher" in model else _ORANGE
            place = row + (offset - (len(protocols) - 1) / 2) * height
            axes.barh(place, value, height * 0.88, color=colour, alpha=1 - 0.35 * offset)
            label = f"{value:.1f} {protocol_name(protocol)}"
            axes.text(value + 1, place, label, va="center", fontsize=7.5)
    axes.set_yticks(range(len(models)), models)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 118)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.set_xlabel("top-1 on held-out images, %")
    axes.set_title("Accuracy")


def _losses(axes: Axes, stages: Sequence[Path], names: dict[str, tuple[str, str]]) -> None:
    """Draw several metrics on a logarithmic scale, one stage after the other."""
    start = 0.0
    for number, stage in enumerate(stages):
        rows = [row for row in read_metrics(stage / "metrics.csv") if "learning_rate" in row]
        for name, (label, colour) in names.items():
            points = [(start + row["step"], row[name]) for row in rows if name in row]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(x, y, color=colour, lw=1.6, label=label if number == 0 else None)
        start += max((row["step"] for row in rows), default=0)
        if number + 1 < len(stages):
            axes.axvline(start, color="#8a919c", lw=0.8, ls=":")
            axes.annotate(
                "weights become bits",
                (start, 1),
                (3, -2),
                textcoords="offset points",
                xycoords=("data", "axes fraction"),
                va="top",
                fontsize=7,
            )
    if names.keys() != {"loss"}:
        axes.set_yscale("log")
        axes.legend(
            frameon=False,
            fontsize=7.5,
            handlelength=1.2,
            loc="upper right",
            bbox_to_anchor=(1.04, 0.95),
        )
    axes.set_xlabel("optimizer steps")
    axes.set_ylabel("contrastive loss" if names.keys() == {"loss"} else "loss, logarithmic scale")
