"""What was trained, and how: facts of each run, its stages, its settings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burn.report.cells import DASH, Cell, Table, duration, percent, setting
from burn.report.gather import (
    Run,
    dig,
    number,
    short_path,
    words,
)


def facts(run: Run) -> list[tuple[str, str, str]]:
    """(what, value, smaller print) of a run."""
    recipe, last = run.recipe, run.stages[-1].meta if run.stages else {}
    machine = next((dig(s.meta, "machine") for s in reversed(run.stages) if s.meta), None)
    machine = machine if isinstance(machine, Mapping) else {}
    views, optim = dig(recipe, "views"), dig(recipe, "optim")
    pixels, width = number(views, "size"), number(recipe, "backbone", "width")
    network = words(recipe, "backbone", "name") or DASH
    if width not in (None, 1.0):
        network += f", {width:g} × its width"
    count = f"{run.images:,} images" if run.images is not None else ""
    told = dig(run.about, "teacher")
    teacher, teacher_small = "none", ""
    if isinstance(told, Mapping):
        teacher = short_path(words(told, "spec")) or DASH
        parts = [words(told, "architecture"), words(told, "sha256")[:12]]
        teacher_small = ", SHA-256 ".join(part for part in parts if part)
    seen, epochs = run.images_seen, ""
    if seen is not None and run.images:
        epochs = f"{seen / run.images:.3g} epochs in all stages"
    seed = number(run.about, "plan", "seed")
    method = [f"method {run.method}"] if run.method else []
    method += [f"seed {seed:.0f}"] if seed is not None else []
    batch, lr = number(recipe, "batch_size"), number(optim, "lr")
    optimizer = words(optim, "name")
    commit = words(machine, "commit")
    versions = [f"burn {words(last, 'burn') or words(run.about, 'burn')}".strip()]
    torch = words(machine, "torch") or words(last, "torch") or words(run.about, "torch")
    versions += [f"torch {torch}"] if torch else []
    hardware = words(machine, "processor")
    device = words(machine, "device")
    counts = [
        f"{value:g} {one if value == 1 else many}"
        for one, many in (("core", "cores"), ("thread", "threads"), ("process", "processes"))
        if (value := number(machine, many)) is not None
    ]
    return [
        ("recipe", run.recipe_name or DASH, ", ".join(method)),
        ("network", network, f"{pixels:g} × {pixels:g} pixels" if pixels else ""),
        ("learned from", short_path(words(run.about, "data", "name")) or DASH, count),
        ("teacher", teacher, teacher_small),
        (
            "optimizer",
            f"{optimizer}, learning rate {lr:g}" if lr is not None else optimizer or DASH,
            f"batch {batch:g}" if batch else "",
        ),
        ("images seen", f"{seen:,}" if seen is not None else DASH, epochs),
        ("training time", duration(run.seconds), ""),
        ("hardware", hardware or "not recorded",
         ", ".join([device, *counts] if device else counts)),
        ("software", ", ".join(versions), f"commit {commit}" if commit else "commit not recorded"),
    ]  # fmt: skip


def stage_table(run: Run) -> Table:
    """A row a stage."""
    rows = []
    for stage in run.stages:
        knn = number(stage.meta, "monitor", "knn")
        speed = number(stage.meta, "monitor", "images_per_second")
        steps, seconds = stage.steps, number(stage.meta, "monitor", "seconds")
        state = "" if stage.finished else "under way, or stopped"
        if stage.collapsed_at is not None:
            state = f"target collapsed at step {stage.collapsed_at:,}"
        elif stage.features_collapsed_at is not None:
            state = f"features collapsed at step {stage.features_collapsed_at:,}"
        rows.append(
            [
                Cell(str(stage.number), stage.number, small=state,
                     style="bad" if stage.collapsed else ""),
                Cell(stage.precision or DASH),
                Cell(f"{steps:,}" if steps is not None else DASH, steps),
                Cell(duration(seconds), seconds),
                Cell(f"{speed:,.0f}" if speed is not None else DASH, speed),
                Cell(percent(100 * knn) if knn is not None else DASH, knn),
            ]
        )  # fmt: skip
    return Table(
        "Stages", ("stage", "precision", "steps", "time", "images/s", "kNN while training, %"),
        rows, frozenset({2, 3, 4, 5}),
    )  # fmt: skip


def runs_table(runs: Sequence[Run]) -> Table:
    """A row a run."""
    rows = []
    for run in runs:
        speed = [
            s for stage in run.stages
            if (s := number(stage.meta, "monitor", "images_per_second")) is not None
        ]  # fmt: skip
        state, style = ("done", "") if run.finished else ("not finished", "warn")
        if any(s.collapsed for s in run.stages):
            state, style = "collapsed", "bad"
        seen = run.images_seen
        rows.append(
            [
                Cell(run.name, small=run.recipe_name),
                Cell(short_path(words(run.about, "data", "name")) or DASH),
                Cell(short_path(words(run.about, "teacher", "spec")) or DASH),
                Cell(f"{seen:,}" if seen is not None else DASH, seen),
                Cell(duration(run.seconds), run.seconds),
                Cell(f"{statistics.fmean(speed):,.0f}" if speed else DASH,
                     statistics.fmean(speed) if speed else None),
                Cell(state, style=style),
            ]
        )  # fmt: skip
    return Table(
        "Runs",
        ("run", "learned from", "teacher", "images seen", "training", "images/s", "state"),
        rows, frozenset({3, 4, 5}),
    )  # fmt: skip


def settings_list(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every setting of a recipe, as `--name value`."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from settings_list(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name.replace("_", "-"), setting(value)
