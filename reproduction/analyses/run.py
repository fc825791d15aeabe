"""The table of the paper's small experiments, and `burn analyze`, which runs one of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from burn.core.errors import UserError
from burn.core.files import locked, remove_unfinished
from burn.core.inputs import open_regular
from burn.recipes.registry import find_recipe
from burn.runtime.launch import require_alone
from reproduction.analyses.cost.training import CostOptions, training_costs
from reproduction.analyses.folder import require_folder, save
from reproduction.analyses.negatives import NegativesOptions, train_with_fewer_negatives
from reproduction.analyses.options import EmaToyOptions, GradientOptions, ScheduleOptions
from reproduction.analyses.rows import Row, from_csv, to_csv

if TYPE_CHECKING:
    from reproduction.analyses.figure import Report

About = dict[str, Any]  # what rows were measured with


@dataclass(frozen=True)
class Analysis:
    """An analysis as `burn analyze` runs it.

    Attributes:
        title: Description for help.
        columns: Start of the first line of NAME.csv, by which the file is recognized.
        options: A frozen dataclass with a method `check`.
        compute: Function of the options, an existing folder and the console that returns the rows
            of NAME.csv, and what they were measured with if the report needs it.
        describe: Function of the two that returns picture, text and table.
    """

    title: str
    columns: str
    options: type
    compute: Callable[[Any, Path, Console], tuple[list[Row], About]]
    describe: Callable[[list[Row], About], Report]


def analyze(name: str, options: Any, out: Path, console: Console) -> str:
    """Run an analysis.

    Args:
        name: Name of the analysis.
        options: Its options, of the class that `ANALYSES` gives.
        out: Folder for NAME.csv, NAME.svg and NAME.md; it is created.
        console: Console for progress.

    Returns:
        The text that NAME.md contains.

    Raises:
        UserError: An option, the data or the folder cannot be used.
        Interrupted: After a signal.
    """
    require_alone("analyze")
    options.check()
    anew = not out.exists()
    require_folder(out, out)
    try:
        with locked(out):
            _require_ours(out, name)
            remove_unfinished(out)
            return _write(ANALYSES[name], name, options, out, console)
    except UserError:
        if anew:
            with contextlib.suppress(OSError):  # a folder with files in it stays
                out.rmdir()
        raise


def _require_ours(out: Path, name: str) -> None:
    """Raise UserError if one of the files would replace a file that is not of this analysis."""
    files = [out / f"{name}.{suffix}" for suffix in ("csv", "svg", "md")]
    there = [file for file in files if os.path.lexists(file)]
    if not there:
        return
    try:
        with open_regular(files[0]) as file:
            header = file.readline(1000)
    except UserError:
        header = b""
    if not header.startswith(ANALYSES[name].columns.encode()):
        raise UserError(
            f"--out {out}: {there[0]} was not written by burn analyze {name} and would be "
            "replaced: move it, or give another --out"
        )


def _write(analysis: Analysis, name: str, options: Any, out: Path, console: Console) -> str:
    """Compute, and write NAME.csv and, made from its contents, NAME.svg and NAME.md."""
    rows, about = analysis.compute(options, out, console)
    written = to_csv(rows)
    made = analysis.describe(from_csv(written.splitlines()), about)
    parts = (f"# {made.title}", f"![]({name}.svg)", made.text, made.table)
    text = "\n\n".join(part for part in parts if part) + "\n"
    save(out, out / f"{name}.csv", lambda to: to.write_text(written, encoding="utf-8"))
    save(out, out / f"{name}.svg", made.draw)
    save(
        out,
        out / f"{name}.md",
        lambda to: to.write_text(text, encoding="utf-8", errors="surrogateescape"),
    )
    return made.text


# The figures need matplotlib and the gradients torch, so each is imported when it is needed.


def _gradients(options: GradientOptions, out: Path, console: Console) -> tuple[list[Row], About]:
    from reproduction.analyses.gradients.measure import measure_gradients

    return measure_gradients(find_recipe(options.recipe), options.recipe, options, out, console)


def _gradients_report(rows: list[Row], about: About) -> Report:
    from burn.core.thresholds import TARGET_ALARM
    from reproduction.analyses.gradients.figure import gradients

    return gradients(rows, about, TARGET_ALARM)


def _ema_toy(options: EmaToyOptions, *_: Any) -> tuple[list[Row], About]:
    from reproduction.analyses.ema_toy.compute import ema_toy

    return ema_toy(options.seed), {}


def _ema_toy_report(rows: list[Row], _: About) -> Report:
    from reproduction.analyses.ema_toy.figure import ema_toy

    return ema_toy(rows)


def _schedules(*_: Any) -> tuple[list[Row], About]:
    from reproduction.analyses.schedules.compute import schedules

    return schedules(), {}


def _schedules_report(rows: list[Row], _: About) -> Report:
    from reproduction.analyses.schedules.figure import schedules

    return schedules(rows)


def _cost(options: CostOptions, *_: Any) -> tuple[list[Row], About]:
    return training_costs(options), {}


def _cost_report(rows: list[Row], _: About) -> Report:
    from reproduction.analyses.cost.figure import cost

    return cost(rows)


def _negatives(options: NegativesOptions, out: Path, console: Console) -> tuple[list[Row], About]:
    return train_with_fewer_negatives(options, out / "negatives", console), {}


def _negatives_report(rows: list[Row], _: About) -> Report:
    from reproduction.analyses.cost.figure import negatives

    return negatives(rows)


ANALYSES: dict[str, Analysis] = {
    "gradients": Analysis(
        "size of the gradients over the first steps of training, by loss",
        "teacher_classifier,similarity,seed,step,",
        GradientOptions,
        _gradients,
        _gradients_report,
    ),
    "ema-toy": Analysis(
        "how far an EMA target is behind its network, float and binarised",
        "reading,title,step,",
        EmaToyOptions,
        _ema_toy,
        _ema_toy_report,
    ),
    "schedules": Analysis(
        "λ(t) over two stages",
        "stage,progress,",
        ScheduleOptions,
        _schedules,
        _schedules_report,
    ),
    "cost": Analysis(
        "training time against accuracy in a comparison",
        "method,seed,seconds,",
        CostOptions,
        _cost,
        _cost_report,
    ),
    "negatives": Analysis(
        "InfoMin with fewer negatives and weaker augmentation",
        "network,augmentation,negatives,",
        NegativesOptions,
        _negatives,
        _negatives_report,
    ),
}
