"""A pretraining run: stages in order, hand-over between them, and resuming where it stopped."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from burn.checkpoints.foreign.weights import Teacher
from burn.checkpoints.native import complete_checkpoint, load_checkpoint
from burn.core.errors import UserError
from burn.core.files import locked
from burn.core.types import Checkpoint
from burn.data.base import Source
from burn.data.checks import require_outside
from burn.recipes.schema import Recipe
from burn.runtime.compute import torch_device, uses_bfloat16
from burn.runtime.distributed import Processes
from burn.runtime.signals import StopRequest
from burn.training.batches import stage_views
from burn.training.callbacks.resume import ResumeFiles
from burn.training.plan import Machine, RunPlan
from burn.training.preflight import check_plan, check_shares, lies_in
from burn.training.prepared import PreparedRun, stage_seed
from burn.training.records.view_samples import NAME as VIEWS
from burn.training.records.view_samples import save_view_samples, view_samples
from burn.training.run_dir import RUN_FILE, appears, check_stage, make_folder, open_folder
from burn.training.stage import Stage, StageSummary, summary_of
from burn.training.start_summary import (
    cache_line,
    expected_time,
    learning_rate_caution,
    start_summary,
    time_line,
)

# What gloo and NCCL say when another process has ended.
_LOST = re.compile("gloo|NCCL|[Cc]onnection|[Ss]ocket")


def train_plan(
    plan: RunPlan,
    out: Path,
    machine: Machine,
    console: Console,
    *,
    resume: bool,
    overwrite: bool,
    resume_command: str | None = None,
    named: Recipe | None = None,
    source: Source | None = None,
    teacher: Teacher | None = None,
) -> list[StageSummary]:
    """Train every stage of the plan into `out`; say on the console what is done and how it ended.

    A run leaves views.jpg, samples of its augmented views. A stage leaves stageN.safetensors,
    stageN.json, and in stageN/ metrics.csv, gradients.csv, layers.csv, TensorBoard's events and,
    while it is under way, the resume files. resume: go on with the run in `out`, or begin where
    there is none. resume_command is what the user is told to type after an interruption. named: the
    recipe as it is by its name, before the user changed its fields; where the batch size does not
    fit its learning rate any more, that is said. source, teacher: in place of what the plan's data
    and teacher name, which are then their names. Raises UserError for what cannot be used,
    GradientFlowError where the loss does not train, Interrupted after a signal.

    Several processes (see `burn.runtime.distributed`) share every batch; `out` must be a folder
    that all of them see.
    """
    plan.recipe.check()
    check_plan(plan)
    machine.check()
    if overwrite and plan.teacher and lies_in(Path(plan.teacher), out):
        raise UserError(f"--overwrite would delete the teacher {plan.teacher}: give another --out")
    processes = Processes.start(torch_device(machine.device))
    try:
        processes.run_on_main(lambda: check_shares(plan.recipe, processes))
        if not processes.is_main:
            console = Console(quiet=True)
        run = processes.run_on_main_then_all(
            lambda: PreparedRun(plan, machine, processes, console, source, teacher)
        )
        require_outside(out, run.source)
        run.resume_command = resume_command or f"burn pretrain --resume --out {out}"
        run.named = named or plan.recipe
        return _train(run, out, resume=resume, overwrite=overwrite)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if processes.count == 1 or not _LOST.search(reason):
            raise
        raise UserError(
            f"another of {processes.count} processes has ended, and its own message says why, or "
            f"the network failed ({reason})"
        ) from error
    finally:
        processes.leave()


def _train(run: PreparedRun, out: Path, *, resume: bool, overwrite: bool) -> list[StageSummary]:
    """Every stage that is not done yet, in order, into `out`."""
    seen = run.processes.gather(run.source.fingerprint)
    if len(set(seen)) > 1:
        rank = next(i for i, found in enumerate(seen) if found != seen[0])
        run.fail(f"process {rank} finds other images at {run.plan.data} than process 0")
    run.processes.run_on_main(lambda: make_folder(out))
    with contextlib.ExitStack() as held:

        def prepare() -> None:
            held.enter_context(locked(out))
            open_folder(out, run.described, resume=resume, overwrite=overwrite)

        run.processes.run_on_main(prepare)
        if not all(run.processes.gather(appears(out / RUN_FILE))):
            run.fail(f"--out {out} is not a folder that all processes see")
        run.processes.run_on_main(lambda: _describe_start(run, out))
        run.processes.run_on_main(lambda: _keep_view_samples(run, out))
        stop = StopRequest("finishing this step and saving")
        with stop.installed():
            return _train_stages(run, out, stop)


def _train_stages(run: PreparedRun, out: Path, stop: StopRequest) -> list[StageSummary]:
    summaries = []
    weights: Mapping[str, torch.Tensor] | None = None
    for number, precision in enumerate(run.plan.recipe.precisions(), start=1):
        file = out / f"stage{number}.safetensors"
        done = run.processes.gather(file.exists())[0]
        if not done:
            if number > 1 and (signal := int(run.processes.all_reduce_max(stop.number))):
                raise run.interrupted(f"stopped after stage {number - 1}", signal)
            Stage(run, number, precision, out, stop).train(weights)
        checkpoint = load_checkpoint(file)
        check_stage(checkpoint, run.plan, run.described, number, precision)
        if done:
            folder = out / f"stage{number}"
            run.processes.run_on_main(partial(_tidy, file, checkpoint, folder))
            run.console.print(f"stage {number} is done already: {file}")
        summaries.append(summary_of(number, file, checkpoint.meta))
        weights = checkpoint.weights
    return summaries


def _describe_start(run: PreparedRun, out: Path) -> None:
    """Say what is going to be done, on what, and how long it takes on a CPU."""
    recipe, steps, console = run.plan.recipe, run.steps, run.console
    bfloat16 = uses_bfloat16(recipe.compute, run.machine.device)
    across = ""
    if run.processes.count > 1:
        across = f"; BN over {'all processes' if run.synchronizes else 'each its own images'}"
        if run.processes.device.type != "cuda":
            across += " (SyncBN needs CUDA)"
    lines = start_summary(
        run.source, recipe, steps, run.plan.max_steps, run.machine_described,
        "bfloat16" if bfloat16 else "float32", run.workers, across,
        run.described["teacher"],
    )  # fmt: skip
    for line in lines:
        console.print(line, markup=False, highlight=False)
    caution = learning_rate_caution(
        recipe, run.named, run.plan.recipe_name, steps.batch_size
    )  # fmt: skip
    if caution:
        console.print(caution, style="yellow", markup=False, highlight=False)
    method = run.make_method(recipe.precisions()[0])
    known = 0.0
    if run.cache is not None:
        seed = stage_seed(run.plan.seed, 1)
        known, line = cache_line(run.cache, seed, method, recipe, steps)
        console.print(line, markup=False, highlight=False)
    begun = any(out.glob("stage?"))  # the time would be that of the part that is done, too
    if not begun and run.processes.device.type == "cpu" and run.processes.count == 1:
        seconds = expected_time(method, recipe, steps, bfloat16=bfloat16, known=known > 0.5)
        if seconds is not None:
            line = time_line(seconds, steps, recipe)
            console.print(line, markup=False, highlight=False)


def _keep_view_samples(run: PreparedRun, out: Path) -> None:
    """Write what the views look like; a run goes on without the picture."""
    if (out / VIEWS).exists():
        return
    recipe = run.plan.recipe
    method = run.make_method(recipe.precisions()[0])
    views = stage_views(recipe, method, stage_seed(run.plan.seed, 1))
    picture = view_samples(run.source, views, run.plan.seed)
    try:
        if picture is not None:
            save_view_samples(out / VIEWS, picture)
    except OSError as error:
        run.console.print(f"{out / VIEWS} cannot be written: {error.strerror or error}")


def _tidy(file: Path, checkpoint: Checkpoint, folder: Path) -> None:
    """What a stage does after its file has been written, if it was killed before."""
    complete_checkpoint(file, checkpoint.meta)
    ResumeFiles(folder, owner="").remove()
