"""Picture and paragraph of `burn analyze schedules` (Figure 9)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from reproduction.analyses.figure import (
    BLUE,
    INK,
    ORANGE,
    SOFT,
    WIDTH,
    Report,
    Row,
    label_ends,
    save,
)

_SHAPES = {
    "cosine": ("cosine, Eq. 3", ORANGE),
    "constant": ("constant", BLUE),
    "heaviside": ("Heaviside", INK),
}


def schedules(rows: Sequence[Row]) -> Report:
    """Return the report on λ(t) in its three shapes.

    Args:
        rows: Rows of `reproduction.analyses.schedules.compute`.
    """
    return Report(
        title="λ(t), the weight of the feature similarity",
        text=_schedules_text(rows),
        table="",
        draw=lambda file: save(_schedules_figure, file, rows),
    )


def _schedules_text(rows: Sequence[Row]) -> str:
    stage = [row for row in rows if row["stage"] == 1]
    after = next((row for row in rows if row["stage"] == 2), None)
    start, end = stage[0], stage[-1]
    middle = min(stage, key=lambda row: abs(row["progress"] - 0.5))
    told = []
    for shape, (label, _) in _SHAPES.items():
        # the mean over the steps, by the trapezoid rule
        values = [float(row[shape]) for row in stage]
        mean = (sum(values) - (values[0] + values[-1]) / 2) / (len(values) - 1)
        first, half, last = (f"{row[shape]:.3g}" for row in (start, middle, end))
        course = f"λ is {first} at the start, {half} half way, {last} at the end"
        if len(set(values)) == 1:
            course = f"λ is {first} throughout"
        told.append(f"{label}: {course}, {mean:.2g} on average, so that KL weighs {1 - mean:.2g}")
    text = f"Over a stage, {'; '.join(told)}."
    if start["cosine"] < 1:
        growth = (1 - end["cosine"]) / (1 - start["cosine"])
        text += f" By the cosine KL's weight grows {growth:.2g} times within a stage."
    off = [row["progress"] for row in stage if row["heaviside"] == 1]
    if off:
        text += (
            f" By Heaviside's function KL is off up to {100 * max(off):.0f} % of the stage, and "
            "no classifier learns until then."
        )
    if after is not None:
        jumps = [
            f"{label} from {end[shape]:.3g} to {after[shape]:.3g}"
            for shape, (label, _) in _SHAPES.items()
            if end[shape] != after[shape]
        ]
        text += (
            f" Stage 2 begins anew: {'; '.join(jumps)}."
            if jumps
            else " Stage 2 goes on where stage 1 ended."
        )
    return text


def _schedules_figure(rows: Sequence[Row]) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.9), sharex=True, sharey=True)
    stages = sorted({int(row["stage"]) for row in rows})
    for panel, of_kl in zip(axes, (False, True), strict=True):
        for shape, (label, colour) in _SHAPES.items():
            for stage in stages:
                chosen = [row for row in rows if row["stage"] == stage]
                x = [stage - 1 + row["progress"] for row in chosen]
                y = [1 - row[shape] if of_kl else row[shape] for row in chosen]
                last = label if stage == stages[-1] else None
                panel.plot(x, y, color=colour, lw=1.8, label=last, solid_capstyle="butt")
        panel.set_title("1 − λ(t), the weight of KL" if of_kl else "λ(t), the weight of L_FS")
        panel.set_xticks([*(s - 1 for s in stages), stages[-1]], ["0", *(f"{s}" for s in stages)])
        panel.set_xlabel("stages done")
        panel.set_xlim(0, stages[-1])
        panel.set_ylim(-0.03, 1.03)
        for stage in stages[1:]:
            panel.axvline(stage - 1, color=SOFT, lw=0.8, ls=":", zorder=0)
            panel.annotate(
                f"stage {stage}",
                (stage - 1, 0.47),
                (4, 0),
                textcoords="offset points",
                fontsize=7.5,
                color=SOFT,
            )
    figure.tight_layout(rect=(0, 0, 0.91, 1), w_pad=7)
    for panel in axes:
        label_ends(panel)
    return figure
