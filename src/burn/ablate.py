"""`burn ablate`: BURN with one choice changed at a time, at equal budget, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

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
from burn.processes import require_alone
from burn.recipes import find_recipe
from burn.recipes.ablations import VARIANTS
from burn.report.ablations import GROUPS, Group, ablation_markdown, find_group
from burn.results import Result
from burn.training.recipe import Recipe
from burn.training.run import Machine, RunPlan

_NEEDS_LABELLED = "labelled-teacher"


@dataclass(frozen=True)
class Ablation:
    """What all variants have in common.

    Attributes:
        data: images to learn from, as for pretraining; with labels, which judging needs.
        test: images with labels to judge on.
        budget: images that each variant sees in all of its stages together, to less than a batch a
            stage; the views of an image count once.
        teacher: float teacher, as for pretraining.
        labelled_teacher: the other teacher of group teacher.
        recipe: a recipe of method burn, of which each variant changes one choice.
        linear: linear evaluation, on features of plain views unless its augment says otherwise.
    """

    data: str
    test: str
    budget: int
    teacher: str
    labelled_teacher: str | None = None
    recipe: str = "burn_small"
    linear: LinearConfig = field(default_factory=lambda: LinearConfig(augment="none"))

    def check(self) -> None:
        """Raise UserError for values out of range and recipes of other methods."""
        if self.base().method != "burn":
            raise UserError(f"--recipe {self.recipe} is not of method burn: burn_small, say")
        self.linear.check()

    def base(self) -> Recipe:
        """The recipe that is varied."""
        return find_recipe(self.recipe)

    def plan(self, variant: str, seed: int, num_images: int) -> RunPlan:
        """The variant's run. Raises UserError where the budget does not make a step."""
        recipe, steps = within_budget(VARIANTS[variant](self.base()), self.budget, num_images)
        teacher = self.labelled_teacher if variant == _NEEDS_LABELLED else self.teacher
        return RunPlan(self.recipe, recipe, self.data, teacher, seed, steps)


def groups_named(names: str, labelled_teacher: str | None) -> list[Group]:
    """Of `all` or names with commas between; `all` leaves out teacher if there is but one.

    Raises UserError for unknown names and a group without what it needs.
    """
    if names == "all":
        return [g for g in GROUPS if labelled_teacher or _NEEDS_LABELLED not in g.variants]
    chosen = []
    for name in names.split(","):
        group = find_group(name.strip())
        if group is None:
            there = ", ".join(g.name for g in GROUPS)
            raise UserError(f"--groups: unknown {name.strip()!r}; there are all, {there}")
        if group in chosen:
            raise UserError(f"--groups: {group.name} is given twice")
        if _NEEDS_LABELLED in group.variants and not labelled_teacher:
            raise UserError(
                "group teacher needs --labelled-teacher: a run of teacher_supervised_small, say"
            )
        chosen.append(group)
    return chosen


def ablate(
    ablation: Ablation,
    groups: Sequence[Group],
    seeds: Sequence[int],
    out: Path,
    machine: Machine,
    console: Console,
    *,
    processes: int | None = None,
) -> list[Result]:
    """Train and judge every variant of the groups with every seed; what `out` holds is kept.

    Variants that are the same run, as what the recipe does anyway is in every group, are trained
    once, under the first one's name; ablation.json says which. Each leaves a run folder
    VARIANT-seedN in `out`; ablation.md shows all that `out` holds, which is returned: the results
    of a run for every variant that it stands for. processes, and what is raised: as in `compare`.
    """
    require_alone("ablate")
    check_seeds(seeds)
    processes = check_processes(processes, machine)
    ablation.check()
    train, test = open_source(ablation.data, "train"), open_source(ablation.test, "test")
    check_sources(train, test)
    runs = runs_of_variants(ablation, len(train))
    wanted = dict.fromkeys(runs[variant] for group in groups for variant in group.variants)
    judging = Judging(ablation.data, ablation.test, ablation.linear, machine)
    jobs = [
        Job(variant, ablation.plan(variant, seed, len(train)), out, judging)
        for seed in seeds
        for variant in wanted
    ]
    teachers = check_jobs(jobs[: len(wanted)], (ablation.teacher, ablation.labelled_teacher))
    data = {"--data": train.fingerprint, "--test": test.fingerprint}
    open_campaign(out, "ablation", asdict(ablation), teachers | data, runs=runs)
    failed = run_jobs(jobs, processes, console)
    # Every group has the recipe as it is: its network with random weights is the floor.
    unchanged = [job for job in jobs if job.done and job.model == runs["unlabelled-teacher"]]
    references = {
        RANDOM: str(unchanged[0].folder) if unchanged else None,
        TEACHER: ablation.teacher,
        LABELLED_TEACHER: ablation.labelled_teacher,
    }
    judge_references(out, judging, references, console)
    results = read_ablation(out, runs)
    if results:
        write_text(out / "ablation.md", ablation_markdown(results))
    if failed:
        raise UserError(f"{failed[0]}; what else was asked for is in {out}")
    return results


def runs_of_variants(ablation: Ablation, num_images: int) -> dict[str, str]:
    """Of each variant the first one with the same plan, which is trained for both."""
    plans = {variant: ablation.plan(variant, 0, num_images) for variant in VARIANTS}
    first: dict[str, str] = {}
    for variant, plan in plans.items():
        first[variant] = next(other for other in plans if plans[other] == plan)
    return first


def read_ablation(out: Path, runs: dict[str, str]) -> list[Result]:
    """The results in `out`, each under the name of every variant that its run stands for."""
    results = read_campaign(out)
    stands_for = {run: [v for v in runs if runs[v] == run] for run in runs.values()}
    return [
        replace(result, model=name)
        for result in results
        for name in stands_for.get(result.model, [result.model])
    ]
