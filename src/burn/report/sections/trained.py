"""The training: facts of each run, its stages, its settings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from burn.core.errors import listed
from burn.report.load.found import Run, Stage
from burn.report.load.values import dig, number, short_path, words
from burn.report.render.cells import DASH, Cell, Table, duration, percent, setting


def facts(run: Run) -> list[tuple[str, str, str]]:
    """Return (name, value, small print) of each fact of a run."""
    recipe, last = run.recipe, run.stages[-1].meta if run.stages else {}
    optim = dig(recipe, "optim")
    network = words(recipe, "backbone", "name") or DASH
    if (width := number(recipe, "backbone", "width")) not in (None, 1.0):
        network += f", {width:g} × its width"
    pixels = number(recipe, "views", "size")
    count = f"{run.images:,} images" if run.images is not None else ""
    data = _and_mark(count, "fingerprint", words(run.about, "data", "fingerprint"))
    told = dig(run.about, "teacher")
    teacher, teacher_small = "none", ""
    if isinstance(told, Mapping):
        teacher = short_path(words(told, "spec")) or DASH
        digest = words(told, "sha256")[:12]
        architecture = words(told, "architecture")
        if labels := words(told, "labels"):
            architecture += f", trained with {labels} labels"
        teacher_small = _and_mark(architecture, "SHA-256", digest)
    seen, epochs = run.images_seen, ""
    if seen is not None and run.images:
        epochs = f"{seen / run.images:.3g} epochs in all stages"
    seed = number(run.about, "plan", "seed")
    method = [f"method {run.method}"] if run.method else []
    method += [f"seed {seed:.0f}"] if seed is not None else []
    lr, warmup = number(optim, "lr"), number(optim, "warmup_epochs")
    optimizer = words(optim, "name") or DASH
    if lr is not None:
        optimizer += f", learning rate {lr:g}"
    steps = [
        f"batch {batch:g}" if (batch := number(recipe, "batch_size")) else "",
        f"{schedule} schedule" if (schedule := words(optim, "schedule")) else "",
        f"{warmup:g} epochs of warm-up" if warmup else "",
    ]
    versions = [f"burn {words(last, 'burn') or words(run.about, 'burn')}".strip()]
    torch = words(last, "machine", "torch") or words(last, "torch") or words(run.about, "torch")
    versions += [f"torch {torch}"] if torch else []
    return [
        ("recipe", run.recipe_name or DASH, ", ".join(method)),
        ("network", network, f"{pixels:g} × {pixels:g} pixels" if pixels else ""),
        ("learned from", short_path(words(run.about, "data", "name")) or DASH, data),
        ("teacher", teacher, teacher_small),
        *_objective(run),
        ("optimizer", optimizer, ", ".join(part for part in steps if part)),
        ("images seen", f"{seen:,}" if seen is not None else DASH, epochs),
        ("training time", duration(run.seconds), ""),
        ("software", ", ".join(versions), ""),
    ]


def _and_mark(text: str, name: str, mark: str) -> str:
    return ", ".join(part for part in (text, f"{name} {mark}" if mark else "") if part)


def _objective(run: Run) -> list[tuple[str, str, str]]:
    """Return BURN's objective: the origin of the teacher's classifier, and the losses' weights."""
    burn = dig(run.recipe, "burn")
    if run.method != "burn" or not isinstance(burn, Mapping):
        return []
    shape, start, end = words(burn, "lam"), number(burn, "lam_start"), number(burn, "lam_end")
    lam = f"λ {shape}"
    if start is not None and end is not None:
        lam += f" {end:g}" if start == end or shape == "constant" else f", {start:g} to {end:g}"
    more = [
        f"similarity {similarity}" if (similarity := words(burn, "similarity")) else "",
        lam if shape else "",
        f"{classes:,.0f} classes" if (classes := number(burn, "num_classes")) else "",
    ]
    classifier = words(burn, "classifier") or DASH
    return [("classifier", classifier, ", ".join(part for part in more if part))]


def stage_table(run: Run) -> Table:
    """Return a row for each stage, with the machine and the commit that it ran on."""
    rows = []
    for stage in run.stages:
        knn = number(stage.meta, "monitor", "knn")
        speed = number(stage.meta, "monitor", "images_per_second")
        steps, seconds = stage.steps, number(stage.meta, "monitor", "seconds")
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
                Cell(
                    str(stage.number),
                    stage.number,
                    small=state,
                    style="bad" if stage.collapsed else "",
                ),
                Cell(stage.precision or DASH),
                Cell(f"{steps:,}" if steps is not None else DASH, steps),
                Cell(duration(seconds), seconds),
                Cell(f"{speed:,.0f}" if speed is not None else DASH, speed),
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
    images = number(stage.meta, "monitor", "knn_images")
    chance = number(stage.meta, "monitor", "knn_chance")
    parts = [
        "" if images is None else f"of {images:,.0f}",
        "" if chance is None else f"chance {100 * chance:.0f}",
    ]
    return ", ".join(filter(None, parts))


def _extent(machine: Any) -> str:
    """Return device and numbers of cores, threads and processes: "cuda, 16 cores"."""
    counts = [
        f"{value:g} {one if value == 1 else many}"
        for one, many in (("core", "cores"), ("thread", "threads"), ("process", "processes"))
        if (value := number(machine, many)) is not None
    ]
    device = words(machine, "device")
    return ", ".join([device, *counts] if device else counts)


def runs_table(runs: Sequence[Run]) -> Table:
    """Return a row for each run."""
    rows = []
    for run in runs:
        speed = [
            s
            for stage in run.stages
            if (s := number(stage.meta, "monitor", "images_per_second")) is not None
        ]
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
                Cell(
                    f"{statistics.fmean(speed):,.0f}" if speed else DASH,
                    statistics.fmean(speed) if speed else None,
                ),
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
