"""`burn analyze`: the paper's small experiments, from options to a picture, its data and a text."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from burn.campaigns.settings import seeds_in
from burn.core.errors import Interrupted, UserError
from burn.core.files import locked, remove_unfinished, write_beside
from burn.experiments.cost.training import CostOptions, training_costs
from burn.experiments.negatives import NegativesOptions, train_with_fewer_negatives
from burn.experiments.options import EmaToyOptions, GradientOptions, ScheduleOptions
from burn.experiments.rows import Row, from_csv, to_csv
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.runtime.compute import uses_bfloat16
from burn.runtime.ranks import require_alone
from burn.runtime.signals import StopRequest

if TYPE_CHECKING:
    from burn.data.base import Source
    from burn.experiments.figure import Report
    from burn.experiments.gradients.compute import Setting

_PARTS, _ABOUT = "gradients-parts", "about.json"


@dataclass(frozen=True)
class Analysis:
    """What `burn analyze` needs to know of one.

    title: for help. columns: the first ones of NAME.csv, by which it is known. options: a frozen
    dataclass with `check`. run: options, an existing folder and the console -> the text, after
    NAME.csv, NAME.svg and NAME.md were written.
    """

    title: str
    columns: str
    options: type
    run: Callable[[Any, Path, Console], str]


def analyze(name: str, options: Any, out: Path, console: Console) -> str:
    """Run an analysis into the folder `out`; returns the paragraph that NAME.md holds.

    Raises UserError for what cannot be used, Interrupted after a signal.
    """
    require_alone("analyze")
    options.check()
    anew = not out.exists()
    _require_folder(out, out)
    try:
        with locked(out):
            _require_ours(out, name)
            remove_unfinished(out)
            return ANALYSES[name].run(options, out, console)
    except UserError:
        if anew:
            with contextlib.suppress(OSError):  # what holds something stays
                out.rmdir()
        raise


def _require_folder(folder: Path, out: Path) -> None:
    """Make it, if need be, and a file in it. Raises UserError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        file = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        raise UserError(f"--out {out}: {file} is not a folder: give another --out") from error
    except OSError as error:
        raise UserError(
            f"--out {out}: nothing can be written in {folder} ({error.strerror}): give another "
            "--out"
        ) from error


def _require_ours(out: Path, name: str) -> None:
    """Raise UserError where the three files would take the place of somebody else's."""
    files = [out / f"{name}.{suffix}" for suffix in ("csv", "svg", "md")]
    there = [file for file in files if os.path.lexists(file)]
    if not there:
        return
    try:
        with files[0].open("rb") as file:
            header = file.readline(1000)
    except (FileNotFoundError, IsADirectoryError):
        header = b""
    if not header.startswith(ANALYSES[name].columns.encode()):
        raise UserError(
            f"--out {out}: {there[0]} is not of burn analyze {name} and would be replaced: move "
            "it, or give another --out"
        )


def measure_gradients(
    recipe: Recipe, recipe_name: str, options: GradientOptions, out: Path, console: Console
) -> tuple[list[Row], dict[str, Any]]:
    """The rows of every setting and seed, and what they were measured with.

    Finished runs are kept in `out`; Interrupted is raised between two steps.
    """
    from burn.checkpoints.foreign.weights import load_teacher
    from burn.data.checks import require_readable
    from burn.data.open import open_source
    from burn.experiments.gradients.compute import SETTINGS, steps_of_stage

    for setting in SETTINGS:
        setting.of(recipe).check()
    source = open_source(options.data)
    require_readable(source, at_least=2)
    teacher = load_teacher(options.teacher)
    about = {
        "recipe": {"name": recipe_name, **recipe.to_json()},
        "data": {"name": options.data, "images": len(source), "fingerprint": source.fingerprint},
        "teacher": {"name": options.teacher, "sha256": teacher.origin["sha256"]},
        "steps": options.steps,
        "bfloat16": uses_bfloat16(recipe.compute, options.device),
    }
    parts = out / _PARTS
    _require_folder(parts, out)
    remove_unfinished(parts)
    _check_about(out, about)
    steps = min(options.steps, steps_of_stage(recipe, len(source)))
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
                _save(out, file, lambda to, found=found: to.write_text(to_csv(found)))
                kept[file] = _read_part(file, steps)
                console.print(f"{title}: {len(found)} steps, {time.monotonic() - started:.0f} s")
            else:
                console.print(f"{title}: kept")
            run = {"teacher_classifier": setting.classifier, "similarity": setting.similarity}
            rows += [{**run, "seed": seed, **row} for row in kept[file]]
    return rows, about


def _read_part(file: Path, steps: int) -> list[Row]:
    """A finished run's rows. Raises UserError where they cannot be what was written."""
    from burn.experiments.gradients.compute import are_first_steps

    text = file.read_text(encoding="utf-8", errors="replace")
    rows = from_csv(text.splitlines(), str(file))
    if not are_first_steps(rows, steps):
        raise UserError(f"{file} is damaged: remove it to measure again")
    return rows


def _measure(
    recipe: Recipe, setting: Setting, seed: int, source: Source, options: GradientOptions,
    title: str, stop: StopRequest, console: Console,
) -> list[Row]:  # fmt: skip
    """One run's first steps; the teacher is loaded anew, as it becomes part of what is trained."""
    from burn.checkpoints.foreign.weights import load_teacher
    from burn.evaluation.progress import progress_bar
    from burn.experiments.gradients.compute import FirstSteps, is_finite
    from burn.runtime.compute import default_workers

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
                    f"stopped at step {len(rows)} of {title}; finished ones are kept, the same "
                    "command goes on",
                    stop.number,
                )
    last = rows[-1]
    if not is_finite(last):
        console.print(f"{title}: loss or gradient not finite at step {last['step']}", style="red")
    return rows


def _check_about(out: Path, about: dict[str, Any]) -> None:
    """Runs that are kept must be of the same settings. Raises UserError naming the first other."""
    file = out / _PARTS / _ABOUT
    text = json.dumps(about, indent=2) + "\n"
    if not file.exists() and not any(file.parent.glob("*.csv")):
        _save(out, file, lambda to: to.write_text(text, encoding="utf-8"))
        return
    now = _flat(json.loads(text))
    default = _flat(json.loads(json.dumps({"recipe": Recipe().to_json()})))
    try:
        stored = _flat(json.loads(file.read_text(encoding="utf-8")))
        # A recipe's field that the burn of then did not have is as if it had its default now.
        stored = {name: stored[name] if name in stored else default[name] for name in now} | stored
        whole = all(
            type(stored[name]) is type(now[name]) for name in now if not name.startswith("recipe.")
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{file} is damaged: remove {file.parent} to measure again")
    for name, old in stored.items():
        if old != now.get(name):
            raise UserError(f"{out} {_difference(name, old, now.get(name))}: give another --out")


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested names as a.b.c."""
    if not isinstance(value, dict):
        return {name: value}
    parts = (_flat(part, f"{name}.{key}" if name else key) for key, part in value.items())
    return {key: part for flat in parts for key, part in flat.items()}


def _difference(name: str, old: Any, new: Any) -> str:
    """What is not as it was when a folder was begun."""
    part, _, rest = name.partition(".")
    if name in ("data.images", "data.fingerprint", "teacher.sha256"):
        return f"was begun with what --{part} was then, and it has changed"
    if name == "bfloat16":
        kinds = ("float32", "bfloat16")
        return f"was begun in {kinds[bool(old)]}, not {kinds[bool(new)]}"
    what = f"a recipe's {rest}" if part == "recipe" and rest != "name" else f"--{part}"
    return f"was begun with {what} {old}, not {new}"


def _gradients(options: GradientOptions, out: Path, console: Console) -> str:
    from burn.core.thresholds import TARGET_ALARM
    from burn.experiments.gradients import figure as report

    recipe = find_recipe(options.recipe)
    rows, about = measure_gradients(recipe, options.recipe, options, out, console)
    return _write(out, "gradients", rows, lambda read: report.gradients(read, about, TARGET_ALARM))


def _ema_toy(options: EmaToyOptions, out: Path, console: Console) -> str:
    from burn.experiments.ema_toy import figure as report
    from burn.experiments.ema_toy.compute import ema_toy

    return _write(out, "ema-toy", ema_toy(options.seed), report.ema_toy)


def _schedules(options: ScheduleOptions, out: Path, console: Console) -> str:
    from burn.experiments.schedules import figure as report
    from burn.experiments.schedules.compute import schedules

    return _write(out, "schedules", schedules(), report.schedules)


def _cost(options: CostOptions, out: Path, console: Console) -> str:
    from burn.experiments.cost import figure as costs

    return _write(out, "cost", training_costs(options), costs.cost)


def _negatives(options: NegativesOptions, out: Path, console: Console) -> str:
    from burn.experiments.cost import figure as costs

    rows = train_with_fewer_negatives(options, out / "negatives", console)
    return _write(out, "negatives", rows, costs.negatives)


def _write(out: Path, name: str, rows: list[Row], describe: Callable[[list[Row]], Report]) -> str:
    """NAME.csv, and of what is written there NAME.svg and NAME.md; returns the text."""
    written = to_csv(rows)
    made = describe(from_csv(written.splitlines()))
    parts = (f"# {made.title}", f"![]({name}.svg)", made.text, made.table)
    text = "\n\n".join(part for part in parts if part) + "\n"
    _save(out, out / f"{name}.csv", lambda to: to.write_text(written, encoding="utf-8"))
    _save(out, out / f"{name}.svg", made.draw)
    _save(
        out, out / f"{name}.md",
        lambda to: to.write_text(text, encoding="utf-8", errors="surrogateescape"),
    )  # fmt: skip
    return made.text


def _save(out: Path, file: Path, write: Callable[[Path], Any]) -> None:
    """A file in `out`, whole or not there. Raises UserError where it cannot be written."""
    try:
        write_beside(file, write)
    except OSError as error:
        raise UserError(
            f"--out {out}: {file} cannot be written ({error.strerror or error}): fix that, and "
            "the same command goes on"
        ) from error


ANALYSES: dict[str, Analysis] = {
    "gradients": Analysis(
        "size of the gradients over the first steps of training, by loss",
        "teacher_classifier,similarity,seed,step,", GradientOptions, _gradients,
    ),
    "ema-toy": Analysis(
        "how far a target that follows falls behind, float and binarised", "reading,title,step,",
        EmaToyOptions, _ema_toy,
    ),
    "schedules": Analysis("λ(t) over two stages", "stage,progress,", ScheduleOptions, _schedules),
    "cost": Analysis(
        "time of training against accuracy, of a comparison", "method,seed,seconds,", CostOptions,
        _cost,
    ),
    "negatives": Analysis(
        "InfoMin with fewer negatives and weaker augmentation",
        "network,augmentation,negatives,", NegativesOptions, _negatives,
    ),
}  # fmt: skip
