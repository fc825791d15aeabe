"""Checks of what a run names, before torch takes seconds to import."""

from __future__ import annotations

from pathlib import Path

from burn.checkpoints.foreign.named import require_network
from burn.core.errors import UserError
from burn.core.paths import RUN_FILE, require_kept, resolved
from burn.data.base import Source
from burn.data.checks import missing_labels, require_outside, require_readable
from burn.data.open import open_source
from burn.methods.entries import find_method
from burn.training.plan import Machine, RunPlan
from burn.training.run_dir import require_usable
from burn.training.start import check_start


def open_named(
    plan: RunPlan, out: Path, machine: Machine, *, resume: bool, overwrite: bool
) -> Source:
    """Check everything that a run of one process names, and open its images."""
    check_settings(plan, out, machine, overwrite=overwrite)
    require_usable(out, resume=resume, overwrite=overwrite)
    if plan.teacher is not None:
        require_network(plan.teacher)
    if plan.init is not None:
        check_start(plan.init, plan.recipe)
    source = open_images(plan, out, resume=resume)
    check_images(plan, source)
    require_outside(out, source)
    return source


def check_settings(plan: RunPlan, out: Path, machine: Machine, *, overwrite: bool) -> None:
    """Check the settings of a run, and that they do not contradict each other."""
    plan.check()
    method = plan.recipe.method
    needs_teacher = find_method(method).needs_teacher
    if needs_teacher and not plan.teacher:
        recipe = "teacher_supervised_small" if method == "supervised_kl" else "teacher_small"
        raise UserError(
            f"method {method} needs a teacher: --teacher lite0, ARCHITECTURE:FILE, or a run of a "
            f"teacher recipe such as {recipe}"
        )
    if not needs_teacher and plan.teacher is not None:
        raise UserError(f"method {method} learns without a teacher: leave --teacher out")
    machine.check()
    for name, spec in (("teacher", plan.teacher), ("start", plan.init)):
        if overwrite:
            require_kept(name, spec, out)
    cache = machine.teacher_cache
    if cache is not None and resolved(Path(cache)).is_relative_to(resolved(out)):
        raise UserError(
            f"--teacher-cache {cache} lies in the folder of this run: give a folder elsewhere, or "
            "move it there if it exists"
        )
    if cache is not None and plan.teacher is None:
        raise UserError(f"--teacher-cache: method {method} has no teacher; leave it out")


def open_images(plan: RunPlan, out: Path, *, resume: bool) -> Source:
    """Open the images of a run, or say to a user who resumes it where to name their place."""
    try:
        return open_source(plan.data)
    except UserError as error:
        if not resume or not (out / RUN_FILE).exists():
            raise
        raise UserError(
            f"{error}; to resume the run in {out}, give --data with the place of its images now"
        ) from error


def check_images(plan: RunPlan, source: Source, processes: int = 1) -> None:
    """Check that images can be read, at least two for each process, and have labels if needed."""
    require_readable(source, at_least=2 * processes)
    if find_method(plan.recipe.method).needs_labels and (why := missing_labels(source)):
        raise UserError(f"method {plan.recipe.method} needs labels, but {why}")
