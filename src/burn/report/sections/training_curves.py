"""The measurements of a run's monitors, as curves over optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burn.core.thresholds import RANK_ALARM, TARGET_ALARM
from burn.report.load.contents import Run
from burn.report.render.charts import Chart, Line, Scale, curves, strip


def by_stage(run: Run, name: str) -> list[list[tuple[float, float]]]:
    """Return a column of the monitors as points of each stage, with steps over all stages."""
    return [
        [(start + step, value) for step, value in stage.metrics.points(name)]
        for stage, start in zip(run.stages, _starts(run), strict=True)
    ]


def _starts(run: Run) -> list[float]:
    starts, at = [], 0.0
    for stage in run.stages:
        starts.append(at)
        last = stage.metrics.rows[-1]["step"] if stage.metrics.rows else 0
        at += stage.steps or last
    return starts


_LOSSES = (
    ("loss", "whole loss", "ink"),
    ("kl", "KL divergence", "grey"),
    ("feature_similarity", "feature similarity", "burn"),
    ("distillation", "distillation", "violet"),
    ("contrastive", "contrastive", "blue"),
)


def curve_charts(run: Run, key: str) -> list[Chart]:
    borders = _starts(run)[1:]
    end = _starts(run)[-1] + (run.stages[-1].steps or 0) if run.stages else 0
    columns = {name for s in run.stages for row in s.metrics.rows for name in row}

    def lines(*wanted: tuple[str, str, str]) -> list[Line]:
        return [
            Line(label, colour, by_stage(run, name))
            for name, label, colour in wanted
            if name in columns
        ]

    losses = lines(*_LOSSES)
    if len(losses) == 2 and losses[0].parts == losses[1].parts:
        losses = losses[1:]
    positive = all(value > 0 for line in losses for _, value in line.points)
    spread = [v for line in losses for _, v in line.points if v > 0]
    log = positive and bool(spread) and max(spread) > 8 * min(spread)

    def drawn(title: str, name: str, *wanted: tuple[str, str, str], **look: Any) -> Chart | None:
        return curves(title, lines(*wanted), key + name, stages=borders, end=end, **look)

    log_note = "logarithmic scale" if log else ""
    charts = [
        curves("Losses", losses, f"{key}loss", log=log, stages=borders, end=end, note=log_note),
        drawn("Balance λ", "lam", ("lambda", "λ", "blue"),
              note="share of the feature similarity in the loss"),
        drawn("Does the target tell images apart?", "target",
              ("target_entropy", "entropy of the mean", "burn"),
              ("target_mean_entropy", "mean entropy", "grey"),
              alarm=TARGET_ALARM, bottom=0, top=1.03,
              note="share of log C; below the line the target has collapsed"),
        drawn("Effective rank of the features", "rank",
              ("effective_rank", "effective rank", "blue"),
              bottom=0, note="how many dimensions they use"),
        drawn("Directions in which images differ", "frank", ("feature_rank", "rank", "burn"),
              alarm=RANK_ALARM, bottom=0,
              note="rank of the features minus their mean; below the line they have collapsed"),
        drawn("Spread of the features", "std", ("feature_std", "standard deviation", "blue"),
              bottom=0, note="standard deviation, mean over dimensions"),
        drawn("Spread of their directions", "fspread", ("feature_spread", "spread", "blue"),
              bottom=0, note="of features of length 1, from their mean"),
        drawn("kNN while training", "knn", ("knn", "kNN", "burn"), percent=True,
              note="on a few of the training images"),
        drawn("Accuracy while training", "acc", ("accuracy", "accuracy", "pale"), percent=True,
              note="on augmented training images"),
        drawn("Learning rate", "lr", ("learning_rate", "learning rate", "grey")),
        _gradients(run, key, borders, end),
        drawn("Weights that change sign", "flips", ("weight_flips", "flips", "burn"),
              percent=_is_share(by_stage(run, "weight_flips"))),
        *_layers(run, key),
        drawn("Images a second", "speed", ("images_per_second", "images/s", "green"), bottom=0),
        drawn("Memory", "memory", ("memory", "memory", "violet"), bottom=0, note="MB"),
    ]  # fmt: skip
    return [chart for chart in charts if chart]


def _is_share(parts: Sequence[Sequence[tuple[float, float]]]) -> bool:
    values = [value for part in parts for _, value in part]
    return bool(values) and all(0 <= value <= 1 for value in values)


def _gradients(run: Run, key: str, borders: Sequence[float], end: float) -> Chart | None:
    parts: dict[str, list[list[tuple[float, float]]]] = {}
    for place, (stage, start) in enumerate(zip(run.stages, _starts(run), strict=True)):
        for row in stage.gradients.rows:
            if row.get("norm", 0) > 0:
                stages = parts.setdefault(row["part"], [[] for _ in run.stages])
                stages[place].append((start + row["step"], row["norm"]))
    roles = ("burn", "blue", "grey", "violet", "green", "teal", "ink")
    lines = [
        Line(name, roles[i % len(roles)], stages, dashed=i >= len(roles))
        for i, (name, stages) in enumerate(list(parts.items())[:14])
    ]
    title, note = "Size of the gradients, by part", "norm, logarithmic scale"
    return curves(title, lines, f"{key}grad", log=True, stages=borders, end=end, note=note)


# Column, title, colour and, for scales that diverge from a half, the colour below it.
_LAYER_COLUMNS = (
    ("weight_flips", "Weights that change sign, by layer", "burn", ""),
    ("dead_channels", "Dead channels, by layer", "alarm", ""),
    ("weight_balance", "Weights that are +1, by layer", "burn", "blue"),
    ("activation_balance", "Activations that are +1, by layer", "burn", "blue"),
)


def _layers(run: Run, key: str) -> list[Chart]:
    rows = [
        (row, start)
        for stage, start in zip(run.stages, _starts(run), strict=True)
        for row in stage.layers.rows
    ]
    names = list(dict.fromkeys(row["layer"] for row, _ in rows))[:60]
    steps = sorted({start + row["step"] for row, start in rows})
    if len(steps) > 80:
        steps = steps[:: -(-len(steps) // 80)]
    charts = []
    for name, title, colour, below in _LAYER_COLUMNS:
        values = {
            (row["layer"], start + row["step"]): row[name]
            for row, start in rows
            if name in row and row["layer"] in names and start + row["step"] in steps
        }
        if not values:
            continue
        if below:
            most = max(0.01, *(abs(value - 0.5) for value in values.values()))
            scale = Scale(0.5 - most, 0.5 + most, colour, below)
        else:
            scale = Scale(0.0, max(values.values()) or 0.01, colour)
        note = "at 50 % both signs are equally frequent" if below else ""
        charts.append(strip(title, names, steps, values, f"{key}{name}", scale, note))
    return charts
