"""Campaigns: several runs in one folder, at one budget, evaluated alike and resumable."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from burn.backbones.registry import build_backbone
from burn.campaigns.folder import (
    KEPT,
    open_folder,
    read_results_of,
    require_usable,
    results_file,
    write_results,
)
from burn.campaigns.settings import RANDOM, Execution
from burn.checkpoints.foreign.named import require_network
from burn.core.errors import UserError
from burn.core.files import locked
from burn.core.paths import RUN_FILE
from burn.data.checks import require_outside
from burn.data.open import open_source
from burn.evaluation.checks import check_sources, open_labelled
from burn.evaluation.configs import LinearConfig, SemiConfig
from burn.methods.registry import build_method
from burn.runtime.cluster import connected
from burn.runtime.compute import torch_device
from burn.training.plan import RunPlan
from burn.training.run_dir import require_same_recipe

if TYPE_CHECKING:
    from burn.campaigns.jobs import EvaluationPlan, Job


class Shared(Protocol):
    """Settings that all runs of a campaign share."""

    @property
    def data(self) -> str: ...

    @property
    def test(self) -> str: ...

    @property
    def linear(self) -> LinearConfig: ...

    def plan(self, model: str, seed: int, num_images: int) -> RunPlan:
        """Return the plan of one run, or raise UserError if the budget is less than one step."""
        ...


def run_campaign(
    name: str,
    shared: Shared,
    models: Sequence[str],
    execution: Execution,
    console: Console,
    *,
    settings: Mapping[str, Any],
    references: Mapping[str, tuple[str | None, int | None]] = MappingProxyType({}),
    floor: Collection[str] = (),
    **further_entries: Any,
) -> list[str]:
    """Train and evaluate every model with every seed, each in a run folder MODEL-seedN.

    The campaign's file NAME.json keeps `settings`, which every later call must share, and
    `further_entries`. References are evaluated as well: networks by name, each with the side of its
    views in pixels or None for its own; and so is the first network of a model in `floor` that is
    done, with random weights. A run that fails does not stop the others; a line is returned for
    each.

    Raises:
        UserError: The campaign cannot be started.
        Interrupted: After a signal. The same call resumes.
    """
    out, machine, further = execution.out, execution.machine, execution.further
    execution.check()
    require_usable(out, name)
    train, test = open_source(shared.data, "train"), open_source(shared.test, "test")
    check_sources(train, test)
    require_outside(out, train, test)
    data = {"--data": train.fingerprint, "--test": test.fingerprint}
    settings = dict(settings)
    if further.transfer_train is not None and further.transfer_test is not None:
        names = {"transfer_train": further.transfer_train, "transfer_test": further.transfer_test}
        sources = open_labelled(*names.values())
        settings |= names
        data["--transfer-train"], data["--transfer-test"] = (s.fingerprint for s in sources)
    if any(protocol.startswith("semi") for protocol in further.protocols):
        usual = asdict(SemiConfig())
        chosen = {k: v for k, v in asdict(further.semi).items() if v != usual[k]}
        settings["semi"] = {k: v for k, v in chosen.items() if k not in ("labels", "keep")}
    plans = [
        (model, shared.plan(model, seed, len(train)))
        for seed in execution.seeds
        for model in models
    ]
    for _, plan in plans[: len(models)]:
        plan.check()
    teachers = [spec for spec, _ in references.values() if spec is not None]
    for spec in filter(None, teachers):
        require_network(spec)
    # From here on torch is imported, which takes seconds.
    from burn.campaigns.cluster import run_on_cluster
    from burn.campaigns.jobs import EvaluationPlan, Job
    from burn.campaigns.workers import run_jobs

    with connected(execution.cluster):
        processes = _check_processes(execution)
        evaluation = EvaluationPlan(shared.data, shared.test, shared.linear, machine, further)
        jobs = [Job(model, plan, out, evaluation) for model, plan in plans]
        hashes = _check_jobs(jobs[: len(models)], teachers)
        out.mkdir(parents=True, exist_ok=True)
        with locked(out, patience=30):  # another campaign holds the folder only for a moment here
            check = partial(_require_same_recipes, out, plans[: len(models)])
            open_folder(out, name, settings, hashes | data, further_entries, check)
        if execution.cluster is None:
            failed = run_jobs(jobs, processes, console)
        else:
            failed = run_on_cluster(jobs, execution.cores, console)
    random = next((str(job.folder) for job in jobs if job.done and job.model in floor), None)
    _evaluate_references(out, evaluation, {RANDOM: (random, None), **references}, console)
    return failed


def _require_same_recipes(out: Path, plans: Sequence[tuple[str, RunPlan]]) -> None:
    """Check that the models' runs in the folder, of whatever seed, are of the plans' recipes."""
    for model, plan in plans:
        for run in sorted(out.glob(f"{model}-seed*/{RUN_FILE}")):
            require_same_recipe(run.parent, plan)


def _evaluate_references(
    out: Path,
    evaluation: EvaluationPlan,
    references: Mapping[str, tuple[str | None, int | None]],
    console: Console,
) -> None:
    """Evaluate the given networks that the campaign did not train, unless they have results."""
    for name, (spec, size) in references.items():
        if not spec:
            continue
        kept = out / f"{results_file(out, reference=name).stem}-{KEPT}"
        for protocol in (None, *evaluation.further.protocols):
            if protocol and protocol.startswith("semi") and name != RANDOM:
                continue  # fine-tuning a float network would take longer than all other runs
            if read_results_of(out, name, protocol, trained=False) is None:
                console.rule(f"{name}, {protocol}" if protocol else name)
                results = evaluation.evaluate(protocol, name, spec, 0, console, kept, size)
                write_results(results_file(out, protocol, name), results)


def _check_processes(execution: Execution) -> int:
    """Return how many runs go on at once here, or raise UserError if there are fewer GPUs."""
    import torch

    processes = execution.processes
    if execution.cluster is not None or torch_device(execution.machine.device).type != "cuda":
        return processes or 1
    count = torch.cuda.device_count()
    if processes is not None and processes > count:
        raise UserError(f"--processes {processes}: torch sees {count} GPUs, and each needs its own")
    return processes or count


def _check_jobs(jobs: Sequence[Job], teachers: Collection[str]) -> dict[str, str]:
    """Build every method once, to find errors now and not after the hours that other runs take.

    Returns the SHA-256 of every teacher's file.
    """
    from burn.checkpoints.foreign.weights import load_teacher

    loaded = {spec: load_teacher(spec) for spec in teachers}
    for job in jobs:
        recipe = job.plan.recipe
        if job.plan.teacher is not None:
            backbone = build_backbone(recipe.backbone, recipe.precisions()[0])
            build_method(recipe.method, recipe.settings, backbone, loaded[job.plan.teacher], 0)
    return {spec: teacher.origin["sha256"] for spec, teacher in loaded.items()}
