"""Pictures and texts of `burn analyze cost` and `negatives`, made from their rows alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from burn.campaigns.settings import is_taught
from burn.core.seeds import OverSeeds
from burn.report.render.tables import mean_and_spread
from reproduction.analyses.figure import BLUE, INK, ORANGE, SOFT, Report, Row, listed, save

_PALE = "#8fb8de"


def cost(rows: Sequence[Row]) -> Report:
    """Return the report on training time and linear accuracy (Figure 4).

    Args:
        rows: Rows of a comparison, one for each run.
    """
    methods = _by(rows, "method")
    return Report(
        title="Training time and linear accuracy",
        text=_cost_text(methods),
        table=_cost_table(methods),
        draw=lambda file: save(_cost_figure, file, methods),
    )


def negatives(rows: Sequence[Row]) -> Report:
    """Return the report on InfoMin's accuracy by its negatives (Figures 7 and 8).

    Args:
        rows: One row for each run, of the binary and of the float network.
    """
    return Report(
        title="InfoMin with fewer negatives and weaker augmentation",
        text=_negatives_text(rows),
        table="",
        draw=lambda file: save(negatives_figure, file, rows),
    )


def _by(rows: Sequence[Row], *names: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        groups.setdefault(key[0] if len(names) == 1 else key, []).append(row)
    return groups


def _seconds(rows: Sequence[Row]) -> float:
    """Return the seconds of the fastest run, because other work of the machine only adds time."""
    return min(row["seconds"] for row in rows)


def _mean(rows: Sequence[Row], name: str) -> float:
    return OverSeeds.of(row[name] for row in rows).mean


# --- cost ----------------------------------------------------------------------------------------


def _cost_text(methods: dict[str, list[Row]]) -> str:
    """Say which methods are ahead in time and accuracy, and what a teacher adds."""
    seconds = {name: _seconds(rows) for name, rows in methods.items()}
    linear = {name: _mean(rows, "linear") for name, rows in methods.items()}
    best = max(linear, key=lambda name: linear[name])
    front = [
        name
        for name in methods
        if not any(
            seconds[o] <= seconds[name]
            and linear[o] >= linear[name]
            and (seconds[o], linear[o]) != (seconds[name], linear[name])
            for o in methods
        )
    ]
    front.sort(key=lambda name: seconds[name])
    said = [
        f"Of {len(methods)} methods none is more accurate than {best}, {linear[best]:.1f} % after "
        f"{seconds[best]:.0f} s. No method is both faster and more accurate than "
        + listed([f"{name} ({linear[name]:.1f} %, {seconds[name]:.0f} s)" for name in front])
        + "."
    ]
    if "burn" in methods:
        slower = [
            name
            for name in methods
            if name != "burn" and seconds[name] > seconds["burn"] and linear[name] < linear["burn"]
        ]
        if slower:
            said.append(f"burn takes less time and is more accurate than {listed(slower)}.")
    taught = [name for name in methods if is_taught(name)]
    if taught:
        measured = {
            name: took
            for name in taught
            if (took := methods[name][0]["teacher_seconds"]) is not None
        }
        told = [f"{name}'s took {took:.0f} s" for name, took in measured.items()]
        if unknown := [name for name in taught if name not in measured]:
            told.append(f"how long that of {listed(unknown)} took was not recorded")
        said.append(f"A teacher's own training is not in these times: {', '.join(told)}.")
        if "burn" in measured:
            total = {name: seconds[name] + measured.get(name, 0.0) for name in methods}
            place = sorted(methods, key=lambda name: total[name]).index("burn") + 1
            said.append(
                "Trained for one student alone it would make burn number "
                f"{place} of {len(methods)} in time."
            )
    said.append("Times are each method's fastest run: what else a machine does only adds to them.")
    return " ".join(said)


def _cost_table(methods: dict[str, list[Row]]) -> str:
    lines = ["| | linear | kNN | training | teacher |", "|---|---|---|---|---|"]
    for name, rows in sorted(methods.items(), key=lambda item: -_mean(item[1], "linear")):
        took = rows[0]["teacher_seconds"]
        unknown = "not recorded" if is_taught(name) else ""
        lines.append(
            f"| {name} | {mean_and_spread([row['linear'] for row in rows])} "
            f"| {mean_and_spread([row['knn'] for row in rows])} | {_seconds(rows):.0f} s "
            f"| {unknown if took is None else f'{took:.0f} s'} |"
        )
    return "\n".join(lines)


def _cost_figure(methods: dict[str, list[Row]]) -> Figure:
    figure, axes = plt.subplots(figsize=(7.3, 4.2))
    for name, rows in methods.items():
        labelled = name.startswith("supervised")
        colour = ORANGE if name == "burn" else _PALE if labelled else BLUE
        x, y = _seconds(rows), _mean(rows, "linear")
        axes.plot(
            [x] * len(rows),
            [row["linear"] for row in rows],
            "o-",
            ms=3,
            lw=0.8,
            color=colour,
            alpha=0.6,
        )
        axes.plot(x, y, "o", ms=8, color=colour)
        axes.annotate(
            name,
            (x, y),
            (7, 5),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            weight="bold" if name == "burn" else "normal",
        )
    axes.set_xlim(left=0)
    axes.margins(x=0.12, y=0.12)
    axes.set_xlabel("training of the binary network, seconds (its teacher's not included)")
    axes.set_ylabel("linear accuracy, %")
    axes.set_title("Accuracy for the time it takes")
    axes.text(
        1,
        1.02,
        "small dots: seeds   pale: learned from labels",
        transform=axes.transAxes,
        ha="right",
        fontsize=7.5,
        color=SOFT,
    )
    figure.tight_layout()
    return figure


# --- negatives -----------------------------------------------------------------------------------


def _negatives_text(rows: Sequence[Row]) -> str:
    """Describe the effect of fewer negatives and of weaker augmentation on each network."""
    said = []
    for network in ("binary", "float"):
        mine = [r for r in rows if r["network"] == network and r["augmentation"] != "weak"]
        counts = _by(mine, "negatives")
        if len(counts) < 2:
            continue
        most, fewest = max(counts), min(counts)
        gain = _mean(counts[fewest], "linear") - _mean(counts[most], "linear")
        best = max(counts, key=lambda n: _mean(counts[n], "linear"))
        told = ", ".join(
            f"{_mean(counts[n], 'linear'):.1f} % with {n:,}" for n in sorted(counts, reverse=True)
        )
        said.append(
            f"The {network} network's linear accuracy is {told}: {_points(gain)} with a "
            f"{most // fewest}th of the negatives, none better than with {best:,}."
        )
    weak = [r for r in rows if r["augmentation"] == "weak"]
    if weak:
        strong = [
            r
            for r in rows
            if r["network"] == weak[0]["network"]
            and r["negatives"] == weak[0]["negatives"]
            and r["augmentation"] != "weak"
        ]
        change = _mean(weak, "linear") - _mean(strong, "linear")
        told = f"{_points(change)} than" if round(change, 1) else "as"
        said.append(
            f"With weaker augmentation the binary network comes to {_mean(weak, 'linear'):.1f} %, "
            f"{told} with InfoMin's."
        )
    seeds = len({row["seed"] for row in rows})
    said.append(
        f"The paper: fewer negatives help a binary network and not a float one, weaker "
        f"augmentation makes the binary one worse. {seeds} seed{'s' if seeds > 1 else ''}."
    )
    return " ".join(said)


def _points(change: float) -> str:
    """Return a change as in "2.0 points more"."""
    if not round(change, 1):
        return "as much"
    return f"{abs(change):.1f} points {'more' if change > 0 else 'less'}"


def negatives_figure(rows: Sequence[Row]) -> Figure:
    """Draw accuracy against the number of negatives, with error bars, for both networks."""
    figure, panels = plt.subplots(1, 2, figsize=(7.3, 3.6), sharey=True)
    for panel, network in zip(panels, ("binary", "float"), strict=True):
        _negatives_panel(panel, [r for r in rows if r["network"] == network])
        panel.set_title(f"{network.capitalize()} network")
    panels[0].set_ylabel("linear accuracy, %")
    panels[1].tick_params(axis="y", labelleft=True)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.text(0.01, 0.012, _negatives_note(rows), fontsize=7.5, color=SOFT)
    return figure


def _negatives_note(rows: Sequence[Row]) -> str:
    """Say what the error bars show."""
    seeds = len({row["seed"] for row in rows})
    images = sorted({row["images"] for row in rows if row.get("images")})
    of = [f"{' and '.join(f'{n:,}' for n in images)} test images"] if images else []
    of += [f"{seeds} seeds"] if seeds > 1 else []
    bars = f"bars: ± two standard errors of the mean, from {listed(of)}" if of else "no error bars"
    return bars if seeds > 1 else f"{bars}; one seed, whose own spread is unknown"


def two_errors(rows: Sequence[Row]) -> float:
    """Return two standard errors of the mean linear accuracy in points; 0 if they are unknown.

    The spread over seeds includes the sampling error of the test images, but with few seeds it may
    be too small by chance, so the larger of the two estimates is taken.
    """
    linear = OverSeeds.of(row["linear"] for row in rows)
    errors = [linear.error or 0.0]
    if all(row.get("images") for row in rows):  # the same images for every seed
        images = min(row["images"] for row in rows)
        errors.append(math.sqrt(linear.mean * (100 - linear.mean) / images))
    return 2 * max(errors)


def _negatives_panel(panel: Axes, rows: Sequence[Row]) -> None:
    counts = _by([r for r in rows if r["augmentation"] != "weak"], "negatives")
    x = sorted(counts, reverse=True)
    bars = {"fmt": "none", "capsize": 3, "lw": 1.1}
    panel.plot(x, [_mean(counts[n], "linear") for n in x], "o-", color=ORANGE, ms=6, lw=1.6)
    for n in x:
        panel.errorbar(n, _mean(counts[n], "linear"), two_errors(counts[n]), color=ORANGE, **bars)
        panel.plot(
            [n] * len(counts[n]), [r["linear"] for r in counts[n]], "o", ms=3, color=INK, alpha=0.6
        )
    weak = [r for r in rows if r["augmentation"] == "weak"]
    if weak:
        n, y = weak[0]["negatives"], _mean(weak, "linear")
        panel.plot(n, y, "D", color=BLUE, ms=6)
        panel.errorbar(n, y, two_errors(weak), color=BLUE, **bars)
        panel.annotate(
            "weaker augmentation",
            (n, y),
            (8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=BLUE,
        )
    panel.set_xscale("log", base=2)
    panel.set_xticks(x, [f"{n:,}" for n in x])
    panel.minorticks_off()
    panel.invert_xaxis()
    panel.margins(x=0.25, y=0.1)
    panel.set_xlabel("negatives")
