"""Pictures and paragraphs of `burn analyze`, made of the rows of its CSV files alone.

What a paragraph claims is decided by the numbers, so that it is true of whatever came out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from burn.report.plots import STYLE

Row = Mapping[str, Any]

# Apart for colour-blind eyes too: the two blues differ in lightness.
_INK, _ORANGE, _BLUE, _SKY, _SOFT = "#20242b", "#e4572e", "#2e6fb7", "#79b4e3", "#8a919c"
_WIDTH = 7.3  # inches: 700 pixels


@dataclass(frozen=True)
class Report:
    """What is told of one analysis.

    text: a paragraph. table: more in Markdown, or nothing. draw: writes the picture, SVG or
    PNG by the file's suffix.
    """

    title: str
    text: str
    table: str
    draw: Callable[[Path], None]


# --- gradients -----------------------------------------------------------------------------------

_SIMILARITIES = {
    "none": ("KL alone", _INK), "cosine": ("cosine", _ORANGE), "l1": ("L1", _BLUE),
    "l2": ("L2", _SKY),
}  # fmt: skip
_TARGETS = ("joint", "frozen")
_EARLY, _LATE = 10, 25  # steps at the start, and at the end, that are averaged


def gradients(rows: Sequence[Row], about: Mapping[str, Any], alarm: float) -> Report:
    """Gradients of the classifier l and the extractor k, as `burn.analysis.gradients` gives them.

    rows: with teacher_classifier, similarity and seed. about: recipe, data and teacher as plain
    values. alarm: the share of log C below which the entropy of mean p1 counts as collapsed.
    """
    runs = _Runs(rows, alarm)
    return Report(
        title="Gradients over the first steps",
        text=_gradients_text(runs, about),
        table=f"{_gradients_table(runs)}\n\n{' '.join([*_other_distances(runs), *_peaks(runs)])}",
        draw=lambda file: _save(_gradients_figure, file, runs, about),
    )


class _Runs:
    """The rows by setting and seed."""

    def __init__(self, rows: Sequence[Row], alarm: float) -> None:
        self.alarm = alarm
        self._runs: dict[tuple[str, str], dict[int, list[Row]]] = {}
        for row in rows:
            setting = (str(row["teacher_classifier"]), str(row["similarity"]))
            self._runs.setdefault(setting, {}).setdefault(int(row["seed"]), []).append(row)
        self.steps = max(int(row["step"]) for row in rows)

    def seeds(self) -> list[int]:
        return sorted({seed for runs in self._runs.values() for seed in runs})

    def of(self, target: str, similarity: str) -> list[list[Row]]:
        """A setting's runs, by seed."""
        return [run for _, run in sorted(self._runs[target, similarity].items())]

    def curve(self, target: str, similarity: str, name: str) -> tuple[list[int], list[float]]:
        """Steps, and the geometric mean over the seeds of a number there that is above 0."""
        found: dict[int, list[float]] = {}
        for run in self.of(target, similarity):
            for row in run:
                if _positive(row[name]):
                    found.setdefault(int(row["step"]), []).append(row[name])
        steps = sorted(found)
        return steps, [statistics.geometric_mean(found[step]) for step in steps]

    def mean(self, target: str, similarity: str, name: str, first: int, last: int) -> float:
        """Geometric mean over the steps first … last and the seeds; 0 where nothing is above 0."""
        values = [
            row[name]
            for run in self.of(target, similarity)
            for row in run
            if first <= row["step"] <= last and _positive(row[name])
        ]
        return statistics.geometric_mean(values) if values else 0.0

    def first(self, target: str, similarity: str, name: str) -> float:
        return self.mean(target, similarity, name, 1, 1)

    def early(self, target: str, similarity: str, name: str) -> float:
        return self.mean(target, similarity, name, 1, min(_EARLY, self.steps))

    def late(self, target: str, similarity: str, name: str) -> float:
        return self.mean(target, similarity, name, max(1, self.steps - _LATE + 1), self.steps)

    def collapses(self, target: str, similarity: str | None = None) -> list[int | None]:
        """Of each run, the first step at which the target counts as collapsed, or None."""
        chosen = _SIMILARITIES if similarity is None else (similarity,)
        return [
            next((int(row["step"]) for row in run if row["target_entropy"] < self.alarm), None)
            for name in chosen
            for run in self.of(target, name)
        ]

    def peak(self, target: str, similarity: str, name: str) -> tuple[float, int]:
        """Largest value after the first ten steps, as a multiple of step 1's, and its step.

        The multiple does not depend on a constant weight. (0, 0) where there are no later steps.
        """
        steps, values = self.curve(target, similarity, name)
        later = [
            (value / values[0], step)
            for step, value in zip(steps, values, strict=True)
            if step > _EARLY
        ]
        return max(later, default=(0.0, 0))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _gradients_text(runs: _Runs, about: Mapping[str, Any]) -> str:
    recipe = about["recipe"]
    seeds = runs.seeds()
    told = [
        f"{recipe['name']}, the first {runs.steps} steps of stage 1 on "
        f"{'/'.join(Path(about['data']['name']).parts[-2:])} "
        f"(batch {recipe['batch_size']}, "
        + (
            f"seeds {_listed(map(str, seeds))}, geometric means over them)."
            if len(seeds) > 1
            else f"seed {seeds[0]})."
        ),
        *_at_step_one(runs, recipe["optim"]["name"]),
        *_collapse(runs),
        *_of_extractor(runs),
        *_later(runs),
    ]
    return " ".join(told)


def _at_step_one(runs: _Runs, optimizer: str) -> list[str]:
    alone = runs.first("joint", "none", "classifier")
    with_fs = runs.first("joint", "cosine", "classifier")
    weight = 1 - runs.first("joint", "cosine", "lambda")
    told = [
        f"At step 1 the gradient of the student's classifier l was {alone:.3g} with KL alone and "
        f"{with_fs:.3g} with the cosine similarity, a factor {with_fs / alone:.4f}; 1 − λ(0) is "
        f"{weight:.4f}."
    ]
    per_weight = [runs.first("joint", name, "classifier_per_weight") for name in _SIMILARITIES]
    spread = max(per_weight) / min(per_weight) - 1
    if spread < 0.01:
        told.append(
            "L_FS never reaches l, so this factor is the smaller weight of KL and nothing else: "
            f"divided by it all four curves start at {_range(per_weight)}. (One of l that starts "
            "higher with L1 or L2, as the paper's figure has it, cannot come of its Eq. 4.)"
        )
    else:
        told.append(
            f"Divided by KL's weight the four curves still start {100 * spread:.1f} % apart, "
            "which the weight does not explain."
        )
    told.append(
        f"{optimizer.capitalize()} makes its steps smaller by it, as a lower learning rate would."
        if optimizer == "sgd"
        else f"{_OPTIMIZERS[optimizer]} divides a gradient by its own size, so the factor does not "
        "make l's steps smaller."
    )
    return told


_OPTIMIZERS = {"adam": "Adam", "lars": "LARS"}


def _collapse(runs: _Runs) -> list[str]:
    told = []
    for target in _TARGETS:
        steps = runs.collapses(target)
        seen = [step for step in steps if step is not None]
        who = "jointly trained" if target == "joint" else "frozen"
        lowest = min(
            row["target_entropy"]
            for name in _SIMILARITIES
            for run in runs.of(target, name)
            for row in run
        )
        if not seen:
            told.append(
                f"With the {who} teacher's classifier no run collapsed: the entropy of mean p1 "
                f"stayed above {lowest:.2f} of log C."
            )
            continue
        told.append(
            f"The {who} teacher's classifier collapsed (entropy of mean p1 below {runs.alarm:g} of "
            f"log C) in {len(seen)} of {len(steps)} runs, at "
            f"{_counted(seen)}."
        )
        for name in ("none", "cosine"):
            if None not in runs.collapses(target, name):
                told += _silence(runs, target, name)
    return told


def _silence(runs: _Runs, target: str, name: str) -> list[str]:
    """What became of the classifier's gradient where the target collapsed."""
    start = runs.first(target, name, "classifier_per_weight")
    end = runs.late(target, name, "classifier_per_weight")
    if end >= start / 10:
        return []
    told = (
        f"With {_loss(name)}, over the last {min(_LATE, runs.steps)} steps KL was "
        f"{runs.late(target, name, 'kl'):.1e} and its gradient in l "
        + (f"{_digits(start / end)} times less than at step 1: " if end else "0: ")
        + "nothing is left to learn, and so small a gradient is not stability."
    )
    peak, step = runs.peak(target, name, "classifier_per_weight")
    if name == "none" and peak > 1.5:
        told += (
            f" Before that it rose to {peak:.1f} times step 1's (step {step}): a surge and then "
            "next to nothing, as the paper's curve of KL alone has it, is here the collapse."
        )
    return [told]


def _of_extractor(runs: _Runs) -> list[str]:
    alone = runs.first("joint", "none", "extractor")
    with_fs = runs.first("joint", "cosine", "extractor")
    kl = runs.first("joint", "cosine", "extractor_kl")
    similarity = runs.first("joint", "cosine", "extractor_fs")
    lam = runs.first("joint", "cosine", "lambda")
    parts = ((1 - lam) * kl, lam * similarity)
    told = (
        f"The extractor k: {alone:.3g} at step 1 with KL alone, {with_fs:.3g} with the cosine "
        f"similarity ({_times(with_fs / alone)}). By terms, before their weights: KL {kl:.3g}, "
        f"L_FS {similarity:.3g}; "
    )
    if parts[0] > parts[1]:
        told += (
            f"even at a weight of {1 - lam:.2g} KL gives more of k's gradient "
            f"({parts[0]:.2g}) than L_FS does ({parts[1]:.2g})."
        )
    else:
        told += f"weighted, L_FS gives more ({parts[1]:.2g}) than KL does ({parts[0]:.2g})."
    return [told]


def _later(runs: _Runs) -> list[str]:
    """KL's own gradient after some training: the only place where L_FS could calm it."""
    told = []
    whole = [t for t in _TARGETS if not any(runs.collapses(t))]
    for target in whole:
        for name, what in (("classifier_per_weight", "l"), ("extractor_kl", "k")):
            alone = runs.late(target, "none", name)
            with_fs = runs.late(target, "cosine", name)
            if not alone or not with_fs:
                continue
            told.append(
                f"{what} {alone:.3g} with KL alone and {with_fs:.3g} with the cosine similarity "
                f"({_times(with_fs / alone)})"
            )
    if not told:
        return []
    return [
        f"Where no target collapsed ({_listed(whole)}), KL's own gradient over the last "
        f"{min(_LATE, runs.steps)} steps was in {'; in '.join(told)}."
    ]


def _other_distances(runs: _Runs) -> list[str]:
    told = []
    for name in ("cosine", "l1", "l2"):
        start = runs.first("frozen", name, "extractor_fs")
        told.append(f"{_label(name)} {start:.3g}")
    text = [f"Gradient of L_FS itself in k at step 1: {', '.join(told)}."]
    grown, fallen = [], []
    for target in _TARGETS:
        for name in ("cosine", "l1", "l2"):
            growth = runs.late(target, name, "extractor") / runs.early(target, name, "extractor")
            said = f"{_label(name)} {target} {_times(growth)}"
            (grown if growth > 1.1 else fallen).append(said)
    scope = f"the last {min(_LATE, runs.steps)} steps against the first {min(_EARLY, runs.steps)}"
    if grown:
        text.append(f"k's whole gradient grew, {scope}, with {', '.join(grown)}.")
    if fallen:
        who = "It fell or stayed" if grown else f"k's whole gradient fell or stayed, {scope}"
        text.append(f"{who}: {', '.join(fallen)}.")
    unfinished = [
        f"{_label(name)} {target} at step {run[-1]['step']}"
        for target in _TARGETS
        for name in _SIMILARITIES
        for run in runs.of(target, name)
        if run[-1]["step"] < runs.steps
    ]
    if unfinished:
        text.append(f"Not finite, and so ended: {', '.join(unfinished)}.")
    elif not any(_explodes(runs, target, name) for target in _TARGETS for name in ("l1", "l2")):
        text.append("Nothing exploded: no extractor's gradient grew tenfold.")
    return text


def _explodes(runs: _Runs, target: str, name: str) -> bool:
    """Tenfold growth, where what the paper's figure calls explosion would have to show."""
    return runs.late(target, name, "extractor") > 10 * runs.early(target, name, "extractor")


def _peaks(runs: _Runs) -> list[str]:
    if runs.steps <= _EARLY:
        return []
    told = []
    for target in _TARGETS:
        for name, what in (("classifier", "l"), ("extractor", "k")):
            found = [runs.peak(target, similarity, name) for similarity in ("none", "cosine")]
            told.append(
                f"{what} {target} {_times(found[0][0])} with KL alone (step {found[0][1]}), "
                f"{_times(found[1][0])} with the cosine (step {found[1][1]})"
            )
    return [f"Largest gradient after step {_EARLY} by that of step 1: {'; '.join(told)}."]


def _gradients_table(runs: _Runs) -> str:
    late = f"last {min(_LATE, runs.steps)}"
    lines = [
        f"| teacher's classifier | L_FS | l, step 1 | l, {late} | l ÷ weight, step 1 | "
        f"l ÷ weight, {late} | k, step 1 | k, {late} | KL, {late} | collapsed at |",
        "|---|---|" + "---:|" * 8,
    ]
    for target in _TARGETS:
        for name in _SIMILARITIES:
            numbers = [
                number
                for column in ("classifier", "classifier_per_weight", "extractor")
                for number in (runs.first(target, name, column), runs.late(target, name, column))
            ]
            cells = [f"{number:.3g}" for number in [*numbers, runs.late(target, name, "kl")]]
            steps = [str(step or "–") for step in runs.collapses(target, name)]
            lines.append(
                f"| {target} | {_label(name)} | {' | '.join(cells)} | {', '.join(steps)} |"
            )
    return "\n".join(lines)


def _gradients_figure(runs: _Runs, about: Mapping[str, Any]) -> Figure:
    figure, axes = plt.subplots(
        5, 2, figsize=(_WIDTH, 9.8), sharex=True, sharey="row",
        height_ratios=(0.5, 1, 1, 1, 1.15),
    )  # fmt: skip
    names = ("target_entropy", "classifier", "classifier_per_weight", "extractor")
    titles = (
        "target: entropy of mean p1, share of log C", "classifier l: gradient",
        "classifier l: gradient ÷ KL's weight", "extractor k: gradient",
        "extractor k: each term's own gradient",
    )  # fmt: skip
    for column, target in enumerate(_TARGETS):
        for panel, name in zip(axes[:, column], names, strict=False):
            _gradient_panel(panel, runs, target, name)
        _term_panel(axes[-1, column], runs, target)
        seen = [step for step in runs.collapses(target) if step is not None]
        if seen:
            middle = statistics.median(seen)
            for panel in axes[:, column]:
                panel.axvline(middle, color=_SOFT, lw=0.8, ls=":", zorder=0)
            axes[0, column].annotate(
                "collapsed", (middle, runs.alarm), (4, 4), textcoords="offset points",
                fontsize=8, color=_SOFT,
            )  # fmt: skip
        axes[0, column].axhline(runs.alarm, color=_SOFT, lw=0.8, ls=":", zorder=0)
        axes[-1, column].set_xlabel("optimizer step of stage 1")
    for row, title in enumerate(titles):
        axes[row, 0].set_title(title, fontsize=9)
    axes[0, 0].set_ylim(0, 1.05)
    axes[0, 0].set_yticks([0, 1])
    for panel in axes[1:, 0]:
        panel.set_yscale("log")
        low, high = panel.get_ylim()
        panel.set_ylim(max(low, high / _DECADES), high)
        panel.minorticks_off()
    # the same scale, so that what the weight makes of the gradient is seen as a shift
    limits = [limit for panel in axes[1:3, 0] for limit in panel.get_ylim()]
    for panel in axes[1:3, 0]:
        panel.set_ylim(min(limits), max(limits))
    axes[0, 0].set_xlim(1, runs.steps)
    _say_of_step_one(axes[1:3, 1], runs)
    figure.tight_layout(rect=(0, 0, 0.93, 0.975), h_pad=1.0, w_pad=5.5)
    for column, head in enumerate(("teacher's classifier trained (paper)", "frozen")):
        left = axes[0, column].get_position().x0
        figure.text(left, 0.982, head, fontsize=11, fontweight="bold")
    for panel in axes[1:].flat:
        _label_ends(panel)
    return figure


_DECADES = 1e8  # what is further below the largest value is off the picture


def _say_of_step_one(panels: Sequence[Axes], runs: _Runs) -> None:
    """Where the weight is all that sets the curves apart at step 1, in both panels of l."""
    starts = [runs.first("frozen", name, "classifier_per_weight") for name in _SIMILARITIES]
    if max(starts) / min(starts) > 1.01:
        return
    weight = 1 - runs.first("frozen", "cosine", "lambda")
    texts = (f"step 1: with L_FS × {weight:.3g} = 1 − λ(0)", "step 1: all equal")
    for panel, text in zip(panels, texts, strict=True):
        panel.text(0.03, 0.06, text, transform=panel.transAxes, fontsize=7.5, color=_SOFT)


def _gradient_panel(panel: Axes, runs: _Runs, target: str, name: str) -> None:
    for similarity, (label, colour) in _SIMILARITIES.items():
        if len(runs.seeds()) > 1:
            for run in runs.of(target, similarity):
                points = [(row["step"], row[name]) for row in run if _positive(row[name])]
                if points:
                    panel.plot(*zip(*points, strict=True), color=colour, lw=0.5, alpha=0.35)
        steps, values = runs.curve(target, similarity, name)
        panel.plot(steps, values, color=colour, lw=1.5, label=label)


def _term_panel(panel: Axes, runs: _Runs, target: str) -> None:
    """KL in each setting as a line, L_FS where there is one as dashes."""
    for similarity, (label, colour) in _SIMILARITIES.items():
        for name, dashes, prefix in (("extractor_kl", "-", "KL"), ("extractor_fs", "--", "L_FS")):
            steps, values = runs.curve(target, similarity, name)
            if steps:
                text = label if similarity == "none" else f"{label}: {prefix}"
                panel.plot(
                    steps, values, dashes, color=colour, lw=1.5, label=text, marker="o", ms=2
                )


# --- EMA toy -------------------------------------------------------------------------------------


def ema_toy(rows: Sequence[Row]) -> Report:
    """Distances of backbone and target, as `burn.analysis.ema_toy` gives them."""
    readings: dict[str, list[Row]] = {}
    for row in rows:
        readings.setdefault(str(row["reading"]), []).append(row)
    judged = [_Judged(name, course) for name, course in readings.items()]
    return Report(
        title="A target that follows by EMA, float and binarised",
        text=_ema_text(judged),
        table=_ema_table(judged),
        draw=lambda file: _save(_ema_figure, file, judged),
    )


class _Judged:
    """One reading of the toy, and which of the paper's three statements hold in it.

    Judged by the many runs: of ten, signs that flip seldom leave a mean that chance decides.
    """

    def __init__(self, name: str, course: Sequence[Row]) -> None:
        self.name, self.title = name, str(course[0]["title"])
        self.course = course

    def numbers(self, name: str) -> list[float]:
        return [float(row[name]) for row in self.course]

    def ends(self, name: str) -> tuple[float, float]:
        """The first and the last step's."""
        values = self.numbers(name if name == "differing" else f"{name}_many")
        return values[0], values[-1]

    @property
    def larger(self) -> float:
        """Share of the steps at which the binary distance is the larger one."""
        return self._share("_many")

    @property
    def wider(self) -> float:
        """Share of the steps at which its standard deviation is."""
        return self._share("_std_many")

    def _share(self, suffix: str) -> float:
        pairs = zip(self.numbers(f"binary{suffix}"), self.numbers(f"float{suffix}"), strict=True)
        return statistics.mean(binary > real for binary, real in pairs)

    def course_of(self, name: str) -> float:
        """The mean over the last quarter of the steps by that over the first."""
        values = self.numbers(f"{name}_many")
        quarter = max(1, len(values) // 4)
        return statistics.mean(values[-quarter:]) / statistics.mean(values[:quarter])

    @property
    def verdicts(self) -> tuple[bool, bool, bool]:
        """Larger, with more variance, not decreasing: what the paper says of the binary case."""
        return self.larger > 0.9, self.wider > 0.9, self.course_of("binary") >= 1

    @property
    def factor(self) -> float:
        """Binary over float distance, averaged over the steps."""
        binary, real = self.numbers("binary_many"), self.numbers("float_many")
        return statistics.mean(binary) / statistics.mean(real)


_STATEMENTS = ("larger", "of higher variance", "not decreasing")


def _ema_text(judged: Sequence[_Judged]) -> str:
    literal = judged[0]
    real, binary = literal.ends("float"), literal.ends("binary")
    flipped = literal.ends("differing")
    told = [
        f"Over {literal.course[0]['many']:,} runs: literally, the float distance goes from "
        f"{real[0]:.3g} to {real[1]:.3g} and the binary one from {binary[0]:.3g} to "
        f"{binary[1]:.3g}, as the share of signs that differ goes from {100 * flipped[0]:.0f} to "
        f"{100 * flipped[1]:.0f} %. The paper says that the binary distance is larger, of higher "
        f"variance, and does not decrease: of this {_holding(literal.verdicts)} here."
    ]
    if literal.factor < 1:
        told.append(
            "The two have different units. Between vectors of ±1 the distance is 2·√(signs that "
            "differ), 20 at most; between float vectors it grows with η. So their comparison says "
            "more about η than about binarisation."
        )
    told.append("Other readings:")
    for one in judged[1:]:
        told.append(
            f"“{one.title}”, binary {_times(one.factor)} the float distance on average, its "
            f"standard deviation the larger at {100 * one.wider:.0f} % of the steps, its last "
            f"quarter {_times(one.course_of('binary'))} its first (float "
            f"{_times(one.course_of('float'))}): {_holding(one.verdicts)}."
        )
    whole = [f"“{one.title}”" for one in judged if all(one.verdicts)]
    told.append(
        f"All three hold in {len(whole)} of {len(judged)} readings"
        + (f": {_listed(whole)}." if whole else ".")
    )
    return " ".join(told)


def _holding(verdicts: Sequence[bool]) -> str:
    """Which of the statements hold, as a clause."""
    yes = [name for name, holds in zip(_STATEMENTS, verdicts, strict=True) if holds]
    if not yes:
        return "nothing holds"
    if len(yes) == len(verdicts):
        return "all three hold"
    return f"“{'” and “'.join(yes)}” hold{'s' if len(yes) == 1 else ''}"


def _ema_table(judged: Sequence[_Judged]) -> str:
    steps = f"step 1 → {judged[0].course[-1]['step']}"
    lines = [
        f"| reading | float, {steps} | binary, {steps} | binary larger, of the steps | its std "
        "larger | binary, last ÷ first quarter | float, last ÷ first quarter |",
        "|---|" + "---:|" * 6,
    ]
    for one in judged:
        cells = [
            *(f"{first:.3g} → {last:.3g}" for first, last in map(one.ends, ("float", "binary"))),
            *(f"{100 * share:.0f} %" for share in (one.larger, one.wider)),
            *(f"{one.course_of(name):.2f}" for name in ("binary", "float")),
        ]
        lines.append(f"| {one.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ema_figure(judged: Sequence[_Judged]) -> Figure:
    columns = 3
    figure, axes = plt.subplots(
        -(-len(judged) // columns), columns, figsize=(_WIDTH, 4.6), sharex=True
    )
    for panel, one in zip(axes.flat, judged, strict=False):
        steps = [int(row["step"]) for row in one.course]
        for name, colour in (("float", _BLUE), ("binary", _ORANGE)):
            mean, std = one.numbers(name), one.numbers(f"{name}_std")
            low = [m - s for m, s in zip(mean, std, strict=True)]
            high = [m + s for m, s in zip(mean, std, strict=True)]
            panel.fill_between(steps, low, high, color=colour, alpha=0.2, lw=0)
            panel.plot(steps, mean, color=colour, lw=1.6, label=name)
            panel.plot(steps, one.numbers(f"{name}_many"), "--", color=colour, lw=0.8)
        panel.set_title(one.title, fontsize=9)
        panel.set_ylim(bottom=0)
        panel.set_xlim(1, steps[-1])
    for panel in axes[-1]:
        panel.set_xlabel("step")
    for panel in axes[:, 0]:
        panel.set_ylabel("L2 distance")
    figure.tight_layout(rect=(0, 0.04, 0.95, 1), w_pad=3.8, h_pad=1.5)
    many = judged[0].course[0]["many"]
    note = f"line and band: mean ± standard deviation of 10 runs; dashes: mean of {many:,}"
    figure.text(0.01, 0.012, note, fontsize=7.5, color=_SOFT)
    for panel in axes.flat:
        _label_ends(panel)
    return figure


# --- schedules -----------------------------------------------------------------------------------

_SHAPES = {
    "cosine": ("cosine, Eq. 3", _ORANGE), "constant": ("constant", _BLUE),
    "heaviside": ("Heaviside", _INK),
}  # fmt: skip


def schedules(rows: Sequence[Row]) -> Report:
    """λ(t) in its three shapes, as `burn.analysis.schedules` gives them."""
    return Report(
        title="λ(t), the weight of the feature similarity",
        text=_schedules_text(rows),
        table="",
        draw=lambda file: _save(_schedules_figure, file, rows),
    )


def _schedules_text(rows: Sequence[Row]) -> str:
    stage = [row for row in rows if row["stage"] == 1]
    after = next((row for row in rows if row["stage"] == 2), None)
    start, end = stage[0], stage[-1]
    middle = min(stage, key=lambda row: abs(row["progress"] - 0.5))
    told = []
    for shape, (label, _) in _SHAPES.items():
        # by the trapezoid rule: a mean over the steps
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
    figure, axes = plt.subplots(1, 2, figsize=(_WIDTH, 2.9), sharex=True, sharey=True)
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
            panel.axvline(stage - 1, color=_SOFT, lw=0.8, ls=":", zorder=0)
            panel.annotate(
                f"stage {stage}", (stage - 1, 0.47), (4, 0), textcoords="offset points",
                fontsize=7.5, color=_SOFT,
            )  # fmt: skip
    figure.tight_layout(rect=(0, 0, 0.91, 1), w_pad=7)
    for panel in axes:
        _label_ends(panel)
    return figure


# --- shared --------------------------------------------------------------------------------------


def _save(make: Callable[..., Figure], file: Path, *given: Any) -> None:
    with plt.rc_context(STYLE):
        figure = make(*given)
        # no date: the same rows give the same bytes
        metadata = {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, dpi=150, metadata=metadata)
        plt.close(figure)


def _label_ends(panel: Axes) -> None:
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


def _loss(similarity: str) -> str:
    return "KL alone" if similarity == "none" else f"L_FS {_label(similarity)}"


def _label(similarity: str) -> str:
    return _SIMILARITIES[similarity][0]


def _times(ratio: float) -> str:
    return f"×{_digits(ratio)}"


def _digits(number: float) -> str:
    """Two digits, without an exponent where that is short."""
    if number >= 100:
        return f"{float(f'{number:.2g}'):,.0f}"
    return f"{number:.2g}"


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _range(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):.3g}", f"{max(numbers):.3g}"
    return low if low == high else f"{low} to {high}"


def _counted(steps: Sequence[int]) -> str:
    low, high = min(steps), max(steps)
    return f"step {low}" if low == high else f"steps {low} to {high}"
