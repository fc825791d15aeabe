"""The gradients of every setting and random seed; finished runs are kept in the folder."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from burn.campaigns.settings import seeds_in
from burn.core.errors import Interrupted, UserError
from burn.core.files import remove_unfinished
from burn.core.inputs import read_json, read_text
from burn.recipes.schema import Recipe
from burn.runtime.compute import uses_bfloat16
from burn.runtime.signals import StopRequest
from burn.training.plan import stage_steps
from reproduction.analyses.folder import require_folder, save
from reproduction.analyses.options import GradientOptions
from reproduction.analyses.rows import Row, from_csv, to_csv

if TYPE_CHECKING:
    from burn.data.base import Source
    from reproduction.analyses.gradients.compute import Setting

_PARTS, _ABOUT = "gradients-parts", "about.json"


def measure_gradients(
    recipe: Recipe, recipe_name: str, options: GradientOptions, out: Path, console: Console
) -> tuple[list[Row], dict[str, Any]]:
    """Measure the gradients of every setting and random seed.

    Args:
        recipe: The recipe whose loss is varied.
        recipe_name: Its name.
        options: Data, teacher, steps and seeds.
        out: Folder in which finished runs are kept.
        console: Console for progress.

    Returns:
        The rows of all runs, and a description of what they were measured with.

    Raises:
        UserError: Data, teacher or recipe cannot be used, or the folder has runs of other settings.
        Interrupted: After a signal, between two steps. Finished runs are kept.
    """
    from burn.checkpoints.foreign.named import require_network
    from burn.data.checks import require_readable
    from burn.data.open import open_source

    recipe.check()
    require_network(options.teacher)
    source = open_source(options.data)
    require_readable(source, at_least=2)
    # From here on torch is imported, which takes seconds.
    from burn.checkpoints.foreign.weights import load_teacher
    from reproduction.analyses.gradients.compute import SETTINGS

    for setting in SETTINGS:
        setting.of(recipe).check()
    teacher = load_teacher(options.teacher)
    about = {
        "recipe": {"name": recipe_name, **recipe.to_json()},
        "data": {"name": options.data, "images": len(source), "fingerprint": source.fingerprint},
        "teacher": {"name": options.teacher, "sha256": teacher.origin["sha256"]},
        "steps": options.steps,
        "bfloat16": uses_bfloat16(recipe.compute, options.device),
    }
    parts = out / _PARTS
    require_folder(parts, out)
    remove_unfinished(parts)
    _check_about(out, about)
    steps = min(options.steps, stage_steps(recipe, len(source)).total)
    jobs = [
        (seed, setting, parts / f"{setting.name}-seed{seed}.csv")
        for seed in seeds_in(options.seeds)
        for setting in SETTINGS
    ]
    kept = {file: _read_part(file, steps) for _, _, file in jobs if file.exists()}
    stop = StopRequest()
    rows: list[Row] = []
    with stop.installed():
        for number, (seed, setting, file) in enumerate(jobs, start=1):
            title = f"{setting.name}, seed {seed} ({number} of {len(jobs)})"
            if file not in kept:
                started = time.monotonic()
                found = _measure(recipe, setting, seed, source, options, title, stop, console)
                save(out, file, lambda to, found=found: to.write_text(to_csv(found)))
                kept[file] = _read_part(file, steps)
                console.print(f"{title}: {len(found)} steps, {time.monotonic() - started:.0f} s")
            else:
                console.print(f"{title}: kept")
            run = {"teacher_classifier": setting.classifier, "similarity": setting.similarity}
            rows += [{**run, "seed": seed, **row} for row in kept[file]]
    return rows, about


def _read_part(file: Path, steps: int) -> list[Row]:
    """Return a finished run's rows, or raise UserError if they cannot be what was written."""
    from reproduction.analyses.gradients.compute import are_first_steps

    text = read_text(file, errors="replace")
    rows = from_csv(text.splitlines(), str(file))
    if not are_first_steps(rows, steps):
        raise UserError(f"{file} is damaged: remove it to measure again")
    return rows


def _measure(
    recipe: Recipe,
    setting: Setting,
    seed: int,
    source: Source,
    options: GradientOptions,
    title: str,
    stop: StopRequest,
    console: Console,
) -> list[Row]:
    """Measure one run's first steps, with a teacher of its own, because training may change it."""
    from burn.checkpoints.foreign.weights import load_teacher
    from burn.evaluation.progress import progress_bar
    from burn.runtime.compute import default_workers
    from reproduction.analyses.gradients.compute import FirstSteps, is_finite

    workers = default_workers(options.device) if options.workers is None else options.workers
    training = FirstSteps(
        setting.of(recipe), source, load_teacher(options.teacher), seed, options.device, workers
    )
    rows: list[Row] = []
    with progress_bar(console) as bar:
        task = bar.add_task(title, total=min(options.steps, training.num_steps))
        for row in islice(training.rows(), options.steps):
            rows.append(row)
            bar.advance(task)
            if stop.requested and len(rows) < options.steps:
                raise Interrupted(
                    f"stopped at step {len(rows)} of {title}; finished runs are kept, and the same "
                    "command continues",
                    stop.number,
                )
    last = rows[-1]
    if not is_finite(last):
        console.print(f"{title}: loss or gradient not finite at step {last['step']}", style="red")
    return rows


def _check_about(out: Path, about: dict[str, Any]) -> None:
    """Raise UserError, naming the first difference, if kept runs are of other settings."""
    file = out / _PARTS / _ABOUT
    text = json.dumps(about, indent=2) + "\n"
    if not file.exists() and not any(file.parent.glob("*.csv")):
        save(out, file, lambda to: to.write_text(text, encoding="utf-8"))
        return
    now = _flat(json.loads(text))
    default = _flat(json.loads(json.dumps({"recipe": Recipe().to_json()})))
    try:
        stored = _flat(read_json(file))
        # A field that recipes did not have then counts as having its default now.
        stored = {name: stored[name] if name in stored else default[name] for name in now} | stored
        whole = all(
            type(stored[name]) is type(now[name]) for name in now if not name.startswith("recipe.")
        )
    except (ValueError, KeyError, TypeError, RecursionError):  # UserError is a ValueError
        whole = False
    if not whole:
        raise UserError(f"{file} is damaged: remove {file.parent} to measure again")
    for name, old in stored.items():
        if old != now.get(name):
            raise UserError(f"{out} {_difference(name, old, now.get(name))}: give another --out")


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested values, with names joined by dots."""
    if not isinstance(value, dict):
        return {name: value}
    parts = (_flat(part, f"{name}.{key}" if name else key) for key, part in value.items())
    return {key: part for flat in parts for key, part in flat.items()}


def _difference(name: str, old: Any, new: Any) -> str:
    """Say what has changed since a folder was begun."""
    part, _, rest = name.partition(".")
    if name in ("data.images", "data.fingerprint", "teacher.sha256"):
        return f"was begun with another content of --{part}"
    if name == "bfloat16":
        kinds = ("float32", "bfloat16")
        return f"was begun in {kinds[bool(old)]}, not {kinds[bool(new)]}"
    what = f"a recipe's {rest}" if part == "recipe" and rest != "name" else f"--{part}"
    return f"was begun with {what} {old}, not {new}"
