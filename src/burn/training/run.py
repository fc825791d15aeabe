"""A pretraining run: its stages in order, weights passed between them, and resuming."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from burn.checkpoints.foreign.weights import Teacher
from burn.checkpoints.native import complete_checkpoint, load_checkpoint
from burn.core.errors import typed
from burn.core.files import cannot_be_written, locked
from burn.core.paths import RUN_FILE
from burn.core.types import Checkpoint, Precision
from burn.data.base import Source
from burn.data.checks import require_outside
from burn.learning.resume_files import ResumeFiles
from burn.recipes.schema import Recipe
from burn.runtime.compute import goes_on_in, torch_device, uses_bfloat16
from burn.runtime.distributed import Processes
from burn.runtime.gpu import gpu_arithmetic, gpu_failures_named
from burn.runtime.random_state import sole_use
from burn.runtime.signals import StopRequest
from burn.training.named import check_settings, open_images
from burn.training.plan import Machine, RunPlan
from burn.training.prepared import (
    PreparedRun,
    check_gpu_options,
    check_shares,
    smaller_batch,
    stage_seed,
)
from burn.training.pretraining import stage_views
from burn.training.records.summary import StageSummary, summary_of
from burn.training.records.view_samples import save_view_samples, view_samples
from burn.training.run_dir import (
    VIEWS,
    appears,
    check_stage,
    make_folder,
    open_folder,
    read_run_file,
)
from burn.training.stage import Stage
from burn.training.start_summary import print_summary


@sole_use("training")
def train_plan(
    plan: RunPlan,
    out: Path,
    machine: Machine,
    console: Console,
    *,
    resume: bool,
    overwrite: bool,
    resume_command: str | None = None,
    caller_continues: bool = False,
    extendable: bool = True,
    base_recipe: Recipe | None = None,
    source: Source | None = None,
    teacher: Teacher | None = None,
) -> list[StageSummary]:
    """Train every stage of a plan, with messages on the console, and summarize each.

    A run writes views.jpg, samples of its augmented views. A stage writes stageN.safetensors,
    stageN.json, and in stageN/ metrics.csv, gradients.csv, layers.csv, TensorBoard's events and,
    while it trains, the resume files. Several processes (see `burn.runtime.distributed`) share
    every batch; all must see the folder `out`.

    `resume` continues the run in `out`, or starts it if there is none. A run that is now planned
    with more steps goes on from where each of its stages is, finished or not: schedules are planned
    anew over all of its steps. A later stage begins again from the weights of an earlier one that
    goes on. `overwrite` deletes a run in `out`.

    Messages suggest `resume_command` after an interruption, by default `burn pretrain --resume
    --out OUT`. If the caller goes on with other work (`caller_continues`), a signal in the last
    step raises Interrupted when the run is done, instead of being without effect. An `extendable`
    run keeps the last resume file of a finished stage, from which a longer run goes on; it has
    about three times the size of the weights. With `base_recipe`, the recipe before the user
    changed its fields, a warning is printed if its learning rate does not fit the batch size.
    `source` and `teacher` are used instead of opening the plan's, which are then only names.

    Raises:
        UserError: Settings, data, teacher or folder cannot be used, or training cannot continue.
        GradientFlowError: The loss does not train what it should.
        Interrupted: A signal stopped the run.
    """
    check_settings(plan, out, machine, overwrite=overwrite)
    processes = Processes.start(torch_device(machine.device))
    try:
        with (
            processes.report_lost_processes(),
            gpu_failures_named(smaller_batch(plan.recipe, processes)),
            gpu_arithmetic(
                processes.device, fixed_shapes=True, deterministic=machine.deterministic
            ),
        ):
            processes.run_on_main(lambda: check_gpu_options(plan, machine, processes))
            processes.run_on_main(lambda: check_shares(plan.recipe, processes))
            if not processes.is_main:
                console = Console(quiet=True)
            compute = _number_format(plan, machine, out if resume else None, processes, console)
            run = processes.run_on_main_then_all(
                lambda: PreparedRun(
                    plan,
                    machine,
                    compute,
                    processes,
                    console,
                    open_images(plan, out, resume=resume) if source is None else source,
                    teacher,
                )
            )
            require_outside(out, run.source)
            command = ["burn", "pretrain", "--resume", "--out", str(out)]
            run.resume_command = resume_command or typed(command)
            run.base_recipe = base_recipe or plan.recipe
            run.extendable = extendable
            return _train(
                run, out, resume=resume, overwrite=overwrite, caller_continues=caller_continues
            )
    finally:
        processes.leave()


def _number_format(
    plan: RunPlan, machine: Machine, out: Path | None, processes: Processes, console: Console
) -> str:
    """Return float32 or bfloat16; a run that is resumed keeps what `auto` meant when it began.

    `out` is the folder of a run that is resumed, if there is one in it, or None.
    """
    bfloat16 = uses_bfloat16(plan.recipe.compute, machine.device)
    chosen = processes.gather("bfloat16" if bfloat16 else "float32")[0]
    if out is None or not processes.gather((out / RUN_FILE).exists())[0]:
        return chosen
    began = processes.run_on_main_then_all(lambda: read_run_file(out)).get("resolved")
    began = began if isinstance(began, dict) else {}
    device, compute = began.get("device"), began.get("compute")
    if device not in (None, processes.device.type):
        console.print(
            f"the run began on a {device} device and goes on on {processes.device.type}, which "
            "rounds otherwise",
            highlight=False,
        )
    if plan.recipe.compute != "auto" or compute in (None, chosen):
        return chosen
    console.print(goes_on_in(str(compute), chosen), highlight=False)
    return str(compute)


def _train(
    run: PreparedRun, out: Path, *, resume: bool, overwrite: bool, caller_continues: bool
) -> list[StageSummary]:
    """Train the stages that are not done yet, in order."""
    seen = run.processes.gather(run.source.fingerprint)
    if len(set(seen)) > 1:
        rank = next(i for i, state in enumerate(seen) if state != seen[0])
        run.processes.fail(f"process {rank} finds other images at {run.plan.data} than process 0")
    run.processes.run_on_main(lambda: make_folder(out))
    with contextlib.ExitStack() as stack:

        def prepare() -> None:
            stack.enter_context(locked(out))
            how = {"resume": resume, "overwrite": overwrite}
            for remark in open_folder(out, run.plan, run.described, **how):
                run.say(remark, "yellow")

        run.processes.run_on_main(prepare)
        if not all(run.processes.gather(appears(out / RUN_FILE))):
            run.processes.fail(f"--out {out} is not a folder that all processes see")
        run.processes.run_on_main(lambda: _describe_and_sample(run, out))
        stop = StopRequest("finishing this step and saving")
        with stop.installed():
            summaries = _train_stages(run, out, stop)
        signal = int(run.processes.all_reduce_max(stop.number)) if caller_continues else 0
        if signal:
            raise run.interrupted(f"stopped after stage {len(summaries)}", signal)
        return summaries


def _train_stages(run: PreparedRun, out: Path, stop: StopRequest) -> list[StageSummary]:
    summaries = []
    weights: Mapping[str, torch.Tensor] | None = None
    precisions = run.plan.recipe.precisions()
    for number, precision in enumerate(precisions, start=1):
        file = out / f"stage{number}.safetensors"
        files = ResumeFiles(out / f"stage{number}", owner="")
        before = _finished(run, file, number, precision)
        done = before is not None and before.meta["steps"] >= run.steps.total
        if not done:
            if number > 1 and (signal := int(run.processes.all_reduce_max(stop.number))):
                raise run.interrupted(f"stopped after stage {number - 1}", signal)
            if before is not None:
                for later in range(number + 1, len(precisions) + 1):  # which begin again from here
                    state = ResumeFiles(out / f"stage{later}", owner="")
                    run.processes.run_on_main(partial(state.finish, keep=False))
                run.console.print(_extension(run, files, number, before), highlight=False)
                weights = weights or before.weights
            Stage(run, number, precision, out, stop).train(weights)
        checkpoint = before if done else _finished(run, file, number, precision)
        assert checkpoint is not None
        if done:
            # What remains after the file was written, in case the run was killed before that.
            run.processes.run_on_main(partial(complete_checkpoint, file, checkpoint.meta))
            run.processes.run_on_main(partial(files.finish, keep=run.extendable))
            limit = run.plan.max_steps if run.extendable else None
            limited = "" if limit is None else f" ({limit} steps; --max-steps N goes on to more)"
            run.console.print(f"stage {number} is done already{limited}: {file}", highlight=False)
        summaries.append(summary_of(number, file, checkpoint.meta))
        weights = checkpoint.weights
    return summaries


def _finished(run: PreparedRun, file: Path, number: int, precision: Precision) -> Checkpoint | None:
    """Return the checkpoint of a stage, perhaps of a shorter run, or None if there is none."""
    if not run.processes.gather(file.exists())[0]:
        return None
    checkpoint = load_checkpoint(file)
    check_stage(checkpoint, run.plan, run.described, number, precision)
    return checkpoint


def _extension(run: PreparedRun, files: ResumeFiles, number: int, before: Checkpoint) -> str:
    """Say from where a finished stage is trained to more steps than it has."""
    total = run.steps.total
    if files.newest.exists():
        finished = before.meta["steps"]
        return f"stage {number} goes on to {total} steps; it was finished with {finished}"
    if number > 1:
        return f"stage {number} begins again from the extended stage {number - 1}: {total} steps"
    return (
        f"stage {number} begins {total} steps from the weights that it has after "
        f"{before.meta['steps']}: the state to go on from was not kept"
    )


def _describe_and_sample(run: PreparedRun, out: Path) -> None:
    """Print the summary of the run, and write samples of its views unless they are there."""
    recipe = run.plan.recipe
    method = run.make_method(recipe.precisions()[0])
    views = stage_views(recipe, method, stage_seed(run.plan.seed, 1))
    print_summary(run, out, method)
    if (out / VIEWS).exists():
        return
    picture = view_samples(run.source, views, run.plan.seed)
    try:
        if picture is not None:
            save_view_samples(out / VIEWS, picture)
    except OSError as error:  # which does not end the run
        run.console.print(cannot_be_written(out / VIEWS, error))
