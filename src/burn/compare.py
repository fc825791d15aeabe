"""`burn compare`: several methods on the same images, network and budget, trained and judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from burn.campaign import (
    LABELLED_TEACHER,
    RANDOM,
    TEACHER,
    Job,
    Judging,
    check_jobs,
    check_processes,
    check_seeds,
    judge_references,
    open_campaign,
    read_campaign,
    run_jobs,
    within_budget,
)
from burn.data.sources import open_source
from burn.errors import UserError
from burn.evaluation.classifier import LinearConfig
from burn.evaluation.protocols import check_sources
from burn.files import write_text
from burn.methods.registry import METHODS, NEED_TEACHER, MethodName
from burn.processes import require_alone
from burn.recipes import find_recipe
from burn.report.plots import comparison_picture
from burn.report.tables import comparison_markdown
from burn.results import Result
from burn.training.run import Machine, RunPlan

Family = Literal["small", "imagenet", "imagenet100"]


@dataclass(frozen=True)
class Comparison:
    """What every method has in common. Its own settings are those of its recipe, METHOD_FAMILY.

    Attributes:
        data: images to learn from, as for pretraining; with labels, which judging needs.
        test: images with labels to judge on.
        budget: images that each method sees in all of its stages together, to less than a batch a
            stage; the views of an image count once.
        teacher: float teacher of burn and s2bnn, as for pretraining, with its projection head for
            s2bnn.
        labelled_teacher: teacher of supervised_kl, with its classifier.
        family: whose recipes: small images, imagenet or imagenet100.
        stages: of each method; default: its recipe's.
        linear: linear evaluation, on features of plain views unless its augment says otherwise.
    """

    data: str
    test: str
    budget: int
    teacher: str | None = None
    labelled_teacher: str | None = None
    family: Family = "small"
    stages: Literal[1, 2] | None = None
    linear: LinearConfig = field(default_factory=lambda: LinearConfig(augment="none"))

    def check(self, methods: Sequence[str]) -> None:
        """Raise UserError for values out of range, unknown methods and lacking teachers."""
        for method in methods:
            if method not in METHODS:
                raise UserError(f"--methods: unknown {method!r}; there are {', '.join(METHODS)}")
        if not methods or len(set(methods)) < len(methods):
            raise UserError("--methods: give each once, and at least one")
        for method in methods:
            if method in NEED_TEACHER and not self.teacher_of(method):
                option, recipe = "teacher", "teacher_small"
                if method == "supervised_kl":
                    option, recipe = "labelled-teacher", "teacher_supervised_small"
                raise UserError(
                    f"method {method} needs --{option}: a run of {recipe}, say, or "
                    f"ARCHITECTURE:FILE; or leave {method} out of --methods"
                )
        self.linear.check()

    def teacher_of(self, method: str) -> str | None:
        """What the method learns from, as `--teacher` takes it."""
        if method not in NEED_TEACHER:
            return None
        return self.labelled_teacher if method == "supervised_kl" else self.teacher

    def plan(self, method: MethodName, seed: int, num_images: int) -> RunPlan:
        """The method's recipe, cut or stretched to the budget; warm-up is a fifth at most.

        Raises UserError where the budget does not make a step.
        """
        name = f"{method}_{self.family}"
        recipe = find_recipe(name)
        if self.stages is not None:
            recipe = replace(recipe, stages=self.stages)
        recipe, steps = within_budget(recipe, self.budget, num_images)
        return RunPlan(name, recipe, self.data, self.teacher_of(method), seed, steps)


def compare(
    comparison: Comparison,
    methods: Sequence[MethodName],
    seeds: Sequence[int],
    out: Path,
    machine: Machine,
    console: Console,
    *,
    processes: int | None = None,
) -> list[Result]:
    """Train and judge every method with every seed; what `out` already holds is kept.

    Each leaves a run folder METHOD-seedN in `out`, with its compared.jsonl; later calls may add
    methods and seeds, but not change settings. comparison.md and .svg show all that `out` holds,
    which is returned. processes: how many run at once, each on a GPU of its own or with its share
    of the cores, its output in logs/; default: one for each GPU, or one. A run that fails does not
    stop the others. Raises UserError as `pretrain` does, Interrupted after a signal.
    """
    require_alone("compare")
    check_seeds(seeds)
    processes = check_processes(processes, machine)
    comparison.check(methods)
    train, test = open_source(comparison.data, "train"), open_source(comparison.test, "test")
    check_sources(train, test)
    judging = Judging(comparison.data, comparison.test, comparison.linear, machine)
    jobs = [
        Job(method, comparison.plan(method, seed, len(train)), out, judging)
        for seed in seeds
        for method in methods
    ]
    teachers = check_jobs(jobs[: len(methods)], (comparison.teacher, comparison.labelled_teacher))
    data = {"--data": train.fingerprint, "--test": test.fingerprint}
    open_campaign(out, "comparison", asdict(comparison), teachers | data)
    failed = run_jobs(jobs, processes, console)
    references = {
        RANDOM: next((str(job.folder) for job in jobs if job.done), None),
        TEACHER: comparison.teacher,
        LABELLED_TEACHER: comparison.labelled_teacher,
    }
    judge_references(out, judging, references, console)
    results = read_campaign(out)
    if results:
        write_text(out / "comparison.md", comparison_markdown(results))
        comparison_picture(results, out / "comparison.svg")
    if failed:
        raise UserError(f"{failed[0]}; what else was asked for is in {out}")
    return results
