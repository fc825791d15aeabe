"""The training: the stages of each run, and its settings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burn.core.errors import listed
from burn.report.load.contents import Run, Stage
from burn.report.load.values import dig, number, short_path, words
from burn.report.render.cells import (
    DASH,
    Cell,
    Table,
    cell,
    duration,
    filled,
    joined,
    percent,
    setting,
)


def stage_table(run: Run) -> Table:
    rows = []
    for stage in run.stages:
        knn, seconds = stage.monitored("knn"), stage.monitored("seconds")
        state = "" if stage.finished else "under way, or stopped"
        if stage.finished and isinstance(extended := dig(stage.meta, "replanned_at"), list):
            state = f"extended after {listed(extended, 3)} steps, schedules planned anew"
        if stage.collapsed_at is not None:
            state = f"target collapsed at step {stage.collapsed_at:,}"
        elif stage.features_collapsed_at is not None:
            state = f"features collapsed at step {stage.features_collapsed_at:,}"
        machine = dig(stage.meta, "machine")
        unknown = "not recorded" if stage.finished else DASH
        rows.append(
            [
                cell(stage.number, "{}", "bad" if stage.collapsed else "", state),
                Cell(stage.precision or DASH),
                cell(stage.steps, "{:,}"),
                Cell(duration(seconds), seconds),
                cell(stage.monitored("images_per_second"), "{:,.0f}"),
                Cell(percent(100 * knn) if knn is not None else DASH, knn, small=_watched(stage)),
                Cell(words(machine, "processor") or unknown, small=_extent(machine)),
                Cell(words(machine, "commit") or unknown),
            ]
        )
    return Table(
        "Stages",
        ("stage", "precision", "steps", "time", "images/s", "kNN, %", "hardware", "burn’s commit"),
        rows,
        frozenset({2, 3, 4, 5}),
        "kNN is the monitor’s, on a few of the training images.",
    )


def _watched(stage: Stage) -> str:
    """Return of how many images the monitor's kNN is, and what chance is: "of 200, chance 30"."""
    chance = stage.monitored("knn_chance")
    share = None if chance is None else 100 * chance
    of = filled("of {:,.0f}", stage.monitored("knn_images"))
    return joined(of, filled("chance {:.0f}", share))


def _extent(machine: Any) -> str:
    """Return device and numbers of cores, threads and processes: "cuda, 16 cores"."""
    counts = [
        f"{value:g} {singular if value == 1 else plural}"
        for singular, plural in (("core", "cores"), ("thread", "threads"), ("process", "processes"))
        if (value := number(machine, plural)) is not None
    ]
    return joined(words(machine, "device"), *counts)


def runs_table(runs: Sequence[Run]) -> Table:
    rows = []
    for run in runs:
        speeds = [stage.monitored("images_per_second") for stage in run.stages]
        speed = [images for images in speeds if images is not None]
        state, style = ("done", "") if run.finished else ("not finished", "warn")
        if any(s.collapsed for s in run.stages):
            state, style = "collapsed", "bad"
        rows.append(
            [
                Cell(run.name, small=run.recipe_name),
                Cell(short_path(words(run.about, "data", "name")) or DASH),
                Cell(short_path(words(run.about, "teacher", "spec")) or DASH),
                cell(run.images_seen, "{:,}"),
                Cell(duration(run.seconds), run.seconds),
                cell(statistics.fmean(speed) if speed else None, "{:,.0f}"),
                Cell(state, style=style),
            ]
        )
    return Table(
        "Runs",
        ("run", "learned from", "teacher", "images seen", "training", "images/s", "state"),
        rows,
        frozenset({3, 4, 5}),
    )


def settings_list(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting of a recipe as a name, such as burn.lam-start, and a value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from settings_list(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name.replace("_", "-"), setting(value)
