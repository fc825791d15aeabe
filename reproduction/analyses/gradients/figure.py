"""Picture and paragraph of `burn analyze gradients` (Figures 3 and 6)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproduction.analyses.figure import (
    BLUE,
    INK,
    ORANGE,
    SKY,
    SOFT,
    WIDTH,
    Report,
    Row,
    counted,
    digits,
    label_ends,
    listed,
    range_of,
    save,
    times,
)

_SIMILARITIES = {
    "none": ("KL alone", INK),
    "cosine": ("cosine", ORANGE),
    "l1": ("L1", BLUE),
    "l2": ("L2", SKY),
}
_TARGETS = ("joint", "frozen")
_EARLY, _LATE = 10, 25  # numbers of steps at the start and at the end that are averaged


def gradients(rows: Sequence[Row], about: Mapping[str, Any], alarm: float) -> Report:
    """Return the report on the gradients of the classifier l and the extractor k.

    Args:
        rows: Rows of `compute`, with teacher_classifier, similarity and seed.
        about: Recipe, data and teacher as plain values.
        alarm: Share of log C below which the entropy of mean p1 counts as collapsed.
    """
    runs = _Runs(rows, alarm)
    return Report(
        title="Gradients over the first steps",
        text=_gradients_text(runs, about),
        table=f"{_gradients_table(runs)}\n\n{' '.join([*_other_distances(runs), *_peaks(runs)])}",
        draw=lambda file: save(_gradients_figure, file, runs, about),
    )


class _Runs:
    """The rows by setting and seed.

    Args:
        rows: Rows of all runs.
        alarm: Share of log C below which the entropy of mean p1 counts as collapsed.
    """

    def __init__(self, rows: Sequence[Row], alarm: float) -> None:
        self.alarm = alarm
        self._runs: dict[tuple[str, str], dict[int, list[Row]]] = {}
        for row in rows:
            setting = (str(row["teacher_classifier"]), str(row["similarity"]))
            self._runs.setdefault(setting, {}).setdefault(int(row["seed"]), []).append(row)
        self.steps = max(int(row["step"]) for row in rows)
        # otherwise early and late steps would overlap
        self.long = self.steps >= _EARLY + _LATE

    def seeds(self) -> list[int]:
        return sorted({seed for runs in self._runs.values() for seed in runs})

    def of(self, target: str, similarity: str) -> list[list[Row]]:
        """Return a setting's runs, by seed."""
        return [run for _, run in sorted(self._runs[target, similarity].items())]

    def curve(self, target: str, similarity: str, name: str) -> tuple[list[int], list[float]]:
        """Return a column's steps and the geometric means over the seeds of values above 0."""
        values: dict[int, list[float]] = {}
        for run in self.of(target, similarity):
            for row in run:
                if _positive(row[name]):
                    values.setdefault(int(row["step"]), []).append(row[name])
        steps = sorted(values)
        return steps, [statistics.geometric_mean(values[step]) for step in steps]

    def mean(self, target: str, similarity: str, name: str, first: int, last: int) -> float:
        """Return the geometric mean of a column's values above 0 over steps and seeds.

        Args:
            target: joint or frozen.
            similarity: Name of the similarity.
            name: Name of the column.
            first: First step.
            last: Last step.

        Returns:
            The mean; 0 if no value is above 0; not a number if there are no values, or if one is
            not finite, because the others would have another mean.
        """
        values = [
            row[name]
            for run in self.of(target, similarity)
            for row in run
            if first <= row["step"] <= last and row[name] is not None
        ]
        if not values or not all(map(math.isfinite, values)):
            return math.nan
        above = [value for value in values if value > 0]
        return statistics.geometric_mean(above) if above else 0.0

    def ended(self, target: str, similarity: str) -> list[list[Row]]:
        """Return the setting's runs that ended at a step that was not finite."""
        return [run for run in self.of(target, similarity) if not _finite(run[-1])]

    def first(self, target: str, similarity: str, name: str) -> float:
        return self.mean(target, similarity, name, 1, 1)

    def early(self, target: str, similarity: str, name: str) -> float:
        return self.mean(target, similarity, name, 1, min(_EARLY, self.steps))

    def late(self, target: str, similarity: str, name: str) -> float:
        """Return the mean over the last steps; not a number if a run did not get there."""
        if self.ended(target, similarity):
            return math.nan
        return self.mean(target, similarity, name, max(1, self.steps - _LATE + 1), self.steps)

    def collapses(self, target: str, similarity: str | None = None) -> list[int | None]:
        """Return the first step of each run at which the target counts as collapsed, or None."""
        chosen = _SIMILARITIES if similarity is None else (similarity,)
        return [
            next((int(row["step"]) for row in run if row["target_entropy"] < self.alarm), None)
            for name in chosen
            for run in self.of(target, name)
        ]

    def peak(self, target: str, similarity: str, name: str) -> tuple[float, int] | None:
        """Return the largest value after step 10, as a multiple of that of step 1, and its step.

        The multiple does not depend on a constant weight. None if either value is missing.
        """
        steps, values = self.curve(target, similarity, name)
        if steps[:1] != [1] or self.ended(target, similarity):
            return None
        later = [
            (value / values[0], step)
            for step, value in zip(steps, values, strict=True)
            if step > _EARLY
        ]
        return max(later, default=None)


def _all_positive(values: Sequence[float]) -> bool:
    return all(map(_positive, values))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _finite(row: Row) -> bool:
    """Return whether the run continued after this step."""
    return math.isfinite(row["loss"] + row["classifier"] + row["extractor"])


def _gradients_text(runs: _Runs, about: Mapping[str, Any]) -> str:
    recipe = about["recipe"]
    seeds = runs.seeds()
    setting = (
        f"{recipe['name']}, {f'the first {runs.steps} steps' if runs.steps > 1 else 'step 1'} of "
        f"stage 1 on {'/'.join(Path(about['data']['name']).parts[-2:])} "
        f"(batch {min(recipe['batch_size'], about['data']['images'])}, "
        f"seed{'s' if len(seeds) > 1 else ''} {listed(map(str, seeds))}; means are geometric, of "
        "what is above 0)."
    )
    paragraphs = (
        [setting, *_unfinished(runs), *_at_step_one(runs, recipe["optim"]["name"])],
        _collapse(runs),
        [*_of_extractor(runs), *_later(runs)],
    )
    return "\n\n".join(" ".join(told) for told in paragraphs if told)


def _unfinished(runs: _Runs) -> list[str]:
    names = [
        f"{_label(name)} {target} at step {run[-1]['step']}"
        + (f" (seed {run[-1]['seed']})" if len(runs.seeds()) > 1 else "")
        for target in _TARGETS
        for name in _SIMILARITIES
        for run in runs.ended(target, name)
    ]
    return [f"Not finite, and so ended: {', '.join(names)}."] if names else []


def _at_step_one(runs: _Runs, optimizer: str) -> list[str]:
    alone = runs.first("joint", "none", "classifier")
    with_fs = runs.first("joint", "cosine", "classifier")
    if not (alone > 0 and with_fs > 0):
        return []
    weight = 1 - runs.first("joint", "cosine", "lambda")
    told = [
        f"At step 1 the gradient of the student's classifier l was {alone:.3g} with KL alone and "
        f"{with_fs:.3g} with the cosine similarity, a factor {with_fs / alone:.4f}; 1 − λ(0) is "
        f"{weight:.4f}."
    ]
    per_weight = [runs.first("joint", name, "classifier_per_weight") for name in _SIMILARITIES]
    spread = max(per_weight) / min(per_weight) - 1 if _all_positive(per_weight) else None
    if spread is None:
        pass
    elif spread < 0.01:
        told.append(
            "L_FS never reaches l, so this factor is the smaller weight of KL and nothing else: "
            f"divided by it all four curves start at {range_of(per_weight)}. (One of l that starts "
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
        entropies = [
            row["target_entropy"]
            for name in _SIMILARITIES
            for run in runs.of(target, name)
            for row in run
            if math.isfinite(row["target_entropy"])
        ]
        if not seen:
            if entropies:
                lowest = math.floor(100 * min(entropies)) / 100
                told.append(
                    f"With the {who} teacher's classifier no run collapsed: the entropy of mean p1 "
                    f"stayed at or above {lowest:.2f} of log C."
                )
            continue
        told.append(
            f"The {who} teacher's classifier collapsed (entropy of mean p1 below {runs.alarm:g} of "
            f"log C) in {len(seen)} of {len(steps)} runs, at "
            f"{counted(seen)}."
        )
        for name in ("none", "cosine"):
            if runs.long and None not in runs.collapses(target, name):
                told += _silence(runs, target, name)
    return told


def _silence(runs: _Runs, target: str, name: str) -> list[str]:
    """Say what happened to the classifier's gradient after the target collapsed."""
    start = runs.first(target, name, "classifier_per_weight")
    end = runs.late(target, name, "classifier_per_weight")
    kl = runs.late(target, name, "kl")
    if not end < start / 10 or math.isnan(kl):
        return []
    told = (
        f"With {_loss(name)}, over the last {_LATE} steps KL was "
        f"{f'{kl:.1e}' if kl else '0'} and its gradient in l "
        + (f"{digits(start / end)} times less than at step 1: " if end else "0: ")
        + "nothing is left to learn, and so small a gradient is not stability."
    )
    peak = runs.peak(target, name, "classifier_per_weight")
    if name == "none" and peak is not None and peak[0] > 1.5:
        told += (
            f" Before that it rose to {peak[0]:.1f} times step 1's (step {peak[1]}): a surge and "
            "then next to nothing, as the paper's curve of KL alone has it, is here the collapse."
        )
    return [told]


def _of_extractor(runs: _Runs) -> list[str]:
    alone = runs.first("joint", "none", "extractor")
    with_fs = runs.first("joint", "cosine", "extractor")
    kl = runs.first("joint", "cosine", "extractor_kl")
    similarity = runs.first("joint", "cosine", "extractor_fs")
    lam = runs.first("joint", "cosine", "lambda")
    if not (alone > 0 and with_fs > 0):
        return []
    told = (
        f"The extractor k: {alone:.3g} at step 1 with KL alone, {with_fs:.3g} with the cosine "
        f"similarity ({times(with_fs / alone)})."
    )
    if not (kl > 0 and similarity > 0):
        return [told]
    parts = ((1 - lam) * kl, lam * similarity)
    told += f" By terms, before their weights: KL {kl:.3g}, L_FS {similarity:.3g}; "
    if parts[0] > parts[1]:
        told += (
            f"even at a weight of {1 - lam:.2g} KL gives more of k's gradient "
            f"({parts[0]:.2g}) than L_FS does ({parts[1]:.2g})."
        )
    else:
        told += f"weighted, L_FS gives more ({parts[1]:.2g}) than KL does ({parts[0]:.2g})."
    return [told]


def _later(runs: _Runs) -> list[str]:
    """Describe KL's own gradient after some training, the only place where L_FS could calm it."""
    told = []
    whole = [t for t in _TARGETS if runs.long and not any(runs.collapses(t))]
    for target in whole:
        for name, what in (("classifier_per_weight", "l"), ("extractor_kl", "k")):
            alone = runs.late(target, "none", name)
            with_fs = runs.late(target, "cosine", name)
            if not (alone > 0 and with_fs > 0):
                continue
            steps = [s for s in runs.curve(target, "none", name)[0] if s > runs.steps - _LATE]
            at = "" if len(steps) == _LATE else f" (steps {listed(map(str, steps))} alone)"
            told.append(
                f"{target}, in {what}{at}: {alone:.3g} with KL alone and {with_fs:.3g} with the "
                f"cosine similarity ({times(with_fs / alone)})"
            )
    if not told:
        return []
    return [
        f"Where no target collapsed ({listed(whole)}), KL's own gradient over the last {_LATE} "
        f"steps: {'; '.join(told)}."
    ]


def _other_distances(runs: _Runs) -> list[str]:
    told = []
    for name in ("cosine", "l1", "l2"):
        start = runs.first("frozen", name, "extractor_fs")
        if start > 0:
            told.append(f"{_label(name)} {start:.3g}")
    text = [f"Gradient of L_FS itself in k at step 1: {', '.join(told)}."] if told else []
    if not runs.long:
        return text
    grown, fallen = [], []
    for target in _TARGETS:
        for name in ("cosine", "l1", "l2"):
            early = runs.early(target, name, "extractor")
            late = runs.late(target, name, "extractor")
            if not (early > 0 and late > 0):
                continue
            growth = late / early
            said = f"{_label(name)} {target} {times(growth)}"
            (grown if growth > 1.1 else fallen).append(said)
    scope = f"the last {_LATE} steps against the first {_EARLY}"
    if grown:
        text.append(f"k's whole gradient grew, {scope}, with {', '.join(grown)}.")
    if fallen:
        who = "It fell or stayed" if grown else f"k's whole gradient fell or stayed, {scope}"
        text.append(f"{who}: {', '.join(fallen)}.")
    if not any(
        _explodes(run) for t in _TARGETS for name in _SIMILARITIES for run in runs.of(t, name)
    ):
        text.append("Nothing exploded: no extractor's gradient came to ten times that of step 1.")
    return text


def _explodes(run: Sequence[Row]) -> bool:
    """Return whether the extractor's gradient grew tenfold or the run ended as not finite.

    That is the least that the paper's figure can mean by explosion.
    """
    return not _finite(run[-1]) or not all(
        row["extractor"] < 10 * run[0]["extractor"] for row in run
    )


def _peaks(runs: _Runs) -> list[str]:
    told = []
    for target in _TARGETS:
        for name, what in (("classifier", "l"), ("extractor", "k")):
            alone = runs.peak(target, "none", name)
            with_fs = runs.peak(target, "cosine", name)
            if alone is None or with_fs is None:
                continue
            told.append(
                f"{what} {target} {times(alone[0])} with KL alone (step {alone[1]}), "
                f"{times(with_fs[0])} with the cosine (step {with_fs[1]})"
            )
    if not told:
        return []
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
            numbers.append(runs.late(target, name, "kl"))
            cells = ["–" if math.isnan(number) else f"{number:.3g}" for number in numbers]
            steps = [str(step or "–") for step in runs.collapses(target, name)]
            lines.append(
                f"| {target} | {_label(name)} | {' | '.join(cells)} | {', '.join(steps)} |"
            )
    return "\n".join(lines)


def _gradients_figure(runs: _Runs, about: Mapping[str, Any]) -> Figure:
    figure, axes = plt.subplots(
        5, 2, figsize=(WIDTH, 9.8), sharex=True, sharey="row", height_ratios=(0.5, 1, 1, 1, 1.15)
    )
    names = ("target_entropy", "classifier", "classifier_per_weight", "extractor")
    titles = (
        "target: entropy of mean p1, share of log C",
        "classifier l: gradient",
        "classifier l: gradient ÷ KL's weight",
        "extractor k: gradient",
        "extractor k: each term's own gradient",
    )
    for column, target in enumerate(_TARGETS):
        for panel, name in zip(axes[:, column], names, strict=False):
            _gradient_panel(panel, runs, target, name)
        _term_panel(axes[-1, column], runs, target)
        seen = [step for step in runs.collapses(target) if step is not None]
        if seen:
            middle = statistics.median(seen)
            for panel in axes[:, column]:
                panel.axvline(middle, color=SOFT, lw=0.8, ls=":", zorder=0)
            axes[0, column].annotate(
                "collapsed",
                (middle, runs.alarm),
                (4, 4),
                textcoords="offset points",
                fontsize=8,
                color=SOFT,
            )
        axes[0, column].axhline(runs.alarm, color=SOFT, lw=0.8, ls=":", zorder=0)
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
    # the same scale, so that the effect of the weight on the gradient is visible as a shift
    limits = [limit for panel in axes[1:3, 0] for limit in panel.get_ylim()]
    for panel in axes[1:3, 0]:
        panel.set_ylim(min(limits), max(limits))
    axes[0, 0].set_xlim(1, max(2, runs.steps))
    _say_of_step_one(axes[1:3, 1], runs)
    figure.tight_layout(rect=(0, 0, 0.93, 0.975), h_pad=1.0, w_pad=5.5)
    for column, head in enumerate(("teacher's classifier trained (paper)", "frozen")):
        left = axes[0, column].get_position().x0
        figure.text(left, 0.982, head, fontsize=11, fontweight="bold")
    for panel in axes[1:].flat:
        label_ends(panel)
    return figure


_DECADES = 1e8  # values further below the largest one are not shown


def _say_of_step_one(panels: Sequence[Axes], runs: _Runs) -> None:
    """Label both panels of l if only the weight separates the curves at step 1."""
    starts = [runs.first("frozen", name, "classifier_per_weight") for name in _SIMILARITIES]
    if not _all_positive(starts) or max(starts) / min(starts) > 1.01:
        return
    weight = 1 - runs.first("frozen", "cosine", "lambda")
    texts = (f"step 1: with L_FS × {weight:.3g} = 1 − λ(0)", "step 1: all equal")
    for panel, text in zip(panels, texts, strict=True):
        panel.text(0.03, 0.06, text, transform=panel.transAxes, fontsize=7.5, color=SOFT)


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
    """Draw KL in each setting as a line, and L_FS, if the setting has it, as dashes."""
    for similarity, (label, colour) in _SIMILARITIES.items():
        for name, dashes, prefix in (("extractor_kl", "-", "KL"), ("extractor_fs", "--", "L_FS")):
            steps, values = runs.curve(target, similarity, name)
            if steps:
                text = label if similarity == "none" else f"{label}: {prefix}"
                panel.plot(
                    steps, values, dashes, color=colour, lw=1.5, label=text, marker="o", ms=2
                )


def _loss(similarity: str) -> str:
    return "KL alone" if similarity == "none" else f"L_FS {_label(similarity)}"


def _label(similarity: str) -> str:
    return _SIMILARITIES[similarity][0]
