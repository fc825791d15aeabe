"""`burn ablate`: BURN with one choice changed at a time, at equal budget, in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console

from burn.campaigns.settings import (
    LABELLED_TEACHER,
    TEACHER,
    Execution,
    refuse_failed,
    within_budget,
)
from burn.campaigns.variants import BUDGETS, VARIANTS
from burn.core.errors import UserError
from burn.core.files import write_text
from burn.core.results import Result
from burn.evaluation.configs import LinearConfig
from burn.paper.ablations import GROUPS, Group, find_group
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.report.render.ablations import ablation_markdown
from burn.runtime.bounds import require_within
from burn.runtime.ranks import require_alone
from burn.training.plan import RunPlan

_NEEDS_LABELLED = "labelled-teacher"


@dataclass(frozen=True)
class Ablation:
    """What all variants have in common.

    Attributes:
        data: images with labels to learn from; labels serve evaluation alone.
        test: images with labels to evaluate on.
        budget: images that each variant sees in all of its stages together; the views of an image
            count once. Variants named double see twice as many.
        teacher: float teacher, as for pretraining.
        labelled_teacher: the other teacher of group teacher.
        teacher_size: side in pixels of the views that `teacher` sees; default: the recipe's.
        labelled_teacher_size: the same of `labelled_teacher`.
        recipe: a recipe of method burn, of which each variant changes one choice.
        linear: linear evaluation, on features of plain views unless its augment says otherwise.
    """

    data: str
    test: str
    budget: int
    teacher: str
    labelled_teacher: str | None = None
    teacher_size: int | None = None
    labelled_teacher_size: int | None = None
    recipe: str = "burn_small"
    linear: LinearConfig = field(default_factory=lambda: LinearConfig(augment="none"))

    def check(self) -> None:
        """Raise UserError for values out of range and recipes of other methods."""
        if self.base().method != "burn":
            raise UserError(f"--recipe {self.recipe} is not of method burn: burn_small, say")
        require_within(
            8, 4096, teacher_size=self.teacher_size,
            labelled_teacher_size=self.labelled_teacher_size,
        )  # fmt: skip
        self.linear.check()

    def base(self) -> Recipe:
        """The recipe that is varied."""
        return find_recipe(self.recipe)

    def teacher_of(self, variant: str) -> str | None:
        """What the variant learns from, as `--teacher` takes it."""
        return self.labelled_teacher if variant == _NEEDS_LABELLED else self.teacher

    def recipe_of(self, variant: str) -> Recipe:
        """What the variant trains by, before it is cut to the budget."""
        size = self.labelled_teacher_size if variant == _NEEDS_LABELLED else self.teacher_size
        recipe = VARIANTS[variant](self.base())
        return recipe if size is None else replace(recipe, teacher_size=size)

    def plan(self, model: str, seed: int, num_images: int) -> RunPlan:
        """Variant `model`'s run. Raises UserError where the budget does not make a step."""
        recipe = self.recipe_of(model)
        recipe, steps = within_budget(recipe, self.budget * BUDGETS.get(model, 1), num_images)
        return RunPlan(self.recipe, recipe, self.data, self.teacher_of(model), seed, steps)


def groups_named(names: str, labelled_teacher: str | None) -> list[Group]:
    """The groups that `all` or names with commas mean; `all` leaves out teacher if there is one.

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
    execution: Execution,
    console: Console,
    show: Callable[[Sequence[Result]], None] = lambda _: None,
) -> list[Result]:
    """Train and evaluate every variant of the groups with every seed; finished runs are kept.

    Variants that are the same run, such as what the recipe does anyway in several groups, are
    trained once, under the first one's name; ablation.json says which. Each leaves a run folder
    VARIANT-seedN in `out`; ablation.md shows all that `out` holds, which is returned: the results
    of a run for every variant that it stands for; `show` receives them before ablation.md is
    written. Raises what `compare` does.
    """
    from burn.campaigns.run import run_campaign

    require_alone("ablate")
    ablation.check()
    runs = runs_of_variants(ablation)
    wanted = dict.fromkeys(runs[variant] for group in groups for variant in group.variants)
    failed = run_campaign(
        "ablation", ablation, list(wanted), execution, console,
        settings=asdict(ablation), runs=runs,
        floor=set(wanted),
        references={TEACHER: ablation.teacher, LABELLED_TEACHER: ablation.labelled_teacher},
        sizes={TEACHER: ablation.teacher_size, LABELLED_TEACHER: ablation.labelled_teacher_size},
    )  # fmt: skip
    results = read_ablation(execution.out, runs)
    if results:
        show(results)
        write_text(execution.out / "ablation.md", ablation_markdown(results))
    refuse_failed(failed, execution.out)
    return results


def runs_of_variants(ablation: Ablation) -> dict[str, str]:
    """Each variant's first one with the same recipe and teacher, which is trained for both."""
    made = {
        variant: (
            ablation.recipe_of(variant), ablation.teacher_of(variant), BUDGETS.get(variant, 1)
        )
        for variant in VARIANTS
    }  # fmt: skip
    return {
        variant: next(other for other in made if made[other] == made[variant]) for variant in made
    }


def read_ablation(out: Path, runs: dict[str, str]) -> list[Result]:
    """The results in `out`, each under the name of every variant that its run stands for."""
    from burn.campaigns.folder import read_campaign

    results = read_campaign(out)
    stands_for = {run: [v for v in runs if runs[v] == run] for run in runs.values()}
    return [
        replace(result, model=name)
        for result in results
        for name in stands_for.get(result.model, [result.model])
    ]
