"""`burn ablate`: train BURN with one choice changed at a time, or the paper's, at equal budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from burn.campaigns.settings import (
    LABELLED_TEACHER,
    TEACHER,
    Execution,
    check_words,
    refuse_failed,
    within_budget,
    words_in,
)
from burn.core.errors import UserError
from burn.core.files import write_text
from burn.core.results import Result
from burn.evaluation.configs import LinearConfig
from burn.methods.burn.settings import BurnConfig
from burn.paper.ablations import GROUPS, Group
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.report.render.ablations import ablation_markdown
from burn.runtime.bounds import require_within
from burn.runtime.launch import require_alone
from burn.training.plan import RunPlan

Change = Callable[[Recipe], Recipe]


def _burn(**changes: Any) -> Change:
    return lambda recipe: recipe.with_settings(**changes)


def _stages(count: Literal[1, 2]) -> Change:
    return lambda recipe: replace(recipe, stages=count)


def _backbone(**changes: Any) -> Change:
    return lambda recipe: replace(recipe, backbone=replace(recipe.backbone, **changes))


# Settings of a joint classifier that no other has.
NOT_JOINT: Mapping[str, Any] = {"classifier_lr": 1.0, "carry_classifier": True}


def _paper(
    stages: Literal[1, 2], classifier: Literal["joint", "frozen", "none"], **changes: Any
) -> Change:
    """Return the change to the paper's loss, sign gradient and features, which are not normalized.

    The recipe's network shape, views and optimizer stay.
    """

    def change(recipe: Recipe) -> Recipe:
        of_recipe = recipe.settings
        loss = BurnConfig(
            classifier=classifier, num_classes=of_recipe.num_classes, hidden=of_recipe.hidden
        )
        backbone = replace(recipe.backbone, activation_gradient="poly", feature_norm=False)
        settings = replace(loss, **changes)
        return replace(recipe, stages=stages, backbone=backbone, settings=settings)

    return change


_KL_ALONE = {"lam": "constant", "lam_start": 0.0, "lam_end": 0.0}
_CONSTANT = {"lam": "constant", "lam_end": 0.7}  # as in Table 7

# Names that begin with "paper" are the paper's method, whatever the recipe does; the others change
# one choice of the recipe. The components are those of the paper's Table 5. The variants of the
# teacher leave the recipe as it is, because a recipe has no teacher.
VARIANTS: Mapping[str, Change] = {
    "one-stage": _stages(1),
    "two-stages": _stages(2),
    "two-stages-double": _stages(2),
    "no-classifier": _burn(classifier="none", similarity_of="features", **NOT_JOINT),
    "frozen": _burn(classifier="frozen", **NOT_JOINT),
    "joint": _burn(classifier="joint"),
    "linear-projection": _burn(projection="linear", similarity_of="features"),
    "mlp-projection": _burn(projection="mlp", similarity_of="features"),
    "plain-targets": _burn(standardize=False, similarity_of="features"),
    "standardized-targets": _burn(standardize=True, similarity_of="features"),
    "poly": _backbone(activation_gradient="poly"),
    "clip": _backbone(activation_gradient="clip"),
    "fan-in-weights": _backbone(weight_init="fan_in"),
    "small-weights": _backbone(weight_init="small"),
    "plain-features": _backbone(feature_norm=False),
    "normalized-features": _backbone(feature_norm=True),
    "same-view": _burn(views="same"),
    "crossed-views": _burn(views="cross"),
    "unlabelled-teacher": lambda recipe: recipe,
    "labelled-teacher": lambda recipe: recipe,
    "paper-kl": _paper(1, "frozen", **_KL_ALONE),
    "paper-kl+fs": _paper(1, "frozen", **_CONSTANT),
    "paper-kl+fs+schedule": _paper(1, "frozen"),
    "paper-two-stages": _paper(2, "frozen"),
    "paper-two-stages-double": _paper(2, "frozen"),
    "paper-joint-kl": _paper(1, "joint", **_KL_ALONE),
    "paper-joint-kl+fs": _paper(1, "joint", **_CONSTANT),
    "paper-joint-kl+fs+schedule": _paper(1, "joint"),
    "paper-joint-two-stages": _paper(2, "joint"),
    "paper-joint-fresh": _paper(2, "joint", carry_classifier=False),
    "paper-fs": _paper(1, "none"),
    "paper-l1": _paper(1, "frozen", similarity="l1"),
    "paper-l2": _paper(1, "frozen", similarity="l2"),
    "paper-heaviside": _paper(1, "frozen", lam="heaviside"),
    "paper-student-first": _paper(1, "frozen", kl_direction="student_first"),
}

# Two stages in the paper are 200 epochs each, against 200 of one stage: twice the images.
BUDGETS: Mapping[str, int] = {"two-stages-double": 2, "paper-two-stages-double": 2}

_NEEDS_LABELLED = "labelled-teacher"


@dataclass(frozen=True)
class Ablation:
    """Settings that all variants share.

    Attributes:
        data: images to learn from, with labels, which only evaluation uses.
        test: images with labels to evaluate on.
        budget: images that each variant sees in all of its stages together; the views of an image
            count once. Variants named double see twice as many.
        teacher: float teacher, as for pretraining.
        labelled_teacher: teacher trained with labels, for group teacher.
        teacher_size: side in pixels of the views that `teacher` sees; default: the recipe's.
        labelled_teacher_size: the same for the views that `labelled_teacher` sees.
        recipe: recipe of method burn that the variants change.
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
        """Raise UserError if a value is out of range, or the recipe is of another method."""
        if find_recipe(self.recipe).method != "burn":
            raise UserError(f"--recipe {self.recipe} is not of method burn: try burn_small")
        require_within(8, 4096, teacher_size=self.teacher_size)
        require_within(8, 4096, labelled_teacher_size=self.labelled_teacher_size)
        self.linear.check("linear.")

    def teacher_of(self, variant: str) -> str | None:
        return self.labelled_teacher if variant == _NEEDS_LABELLED else self.teacher

    def recipe_of(self, variant: str) -> Recipe:
        """Return the variant's recipe, before it is cut to the budget."""
        size = self.labelled_teacher_size if variant == _NEEDS_LABELLED else self.teacher_size
        recipe = VARIANTS[variant](find_recipe(self.recipe))
        return recipe if size is None else replace(recipe, teacher_size=size)

    def plan(self, model: str, seed: int, num_images: int) -> RunPlan:
        """Return the plan of one run of a variant."""
        recipe = self.recipe_of(model)
        recipe, steps = within_budget(recipe, self.budget * BUDGETS.get(model, 1), num_images)
        return RunPlan(self.recipe, recipe, self.data, self.teacher_of(model), seed, steps)


def groups_named(names: str, labelled_teacher: str | None) -> list[Group]:
    """Return the groups that `--groups` names, separated by commas, or `all`.

    Without a labelled teacher, `all` leaves out group teacher. UserError is raised if a name is
    unknown or given twice, or a group lacks its teacher.
    """
    if names == "all":
        return [g for g in GROUPS if labelled_teacher or _NEEDS_LABELLED not in g.variants]
    groups, words = {group.name: group for group in GROUPS}, words_in(names)
    check_words("--groups", words, list(groups), "all, or ")
    chosen = [groups[word] for word in words]
    if not labelled_teacher and any(_NEEDS_LABELLED in group.variants for group in chosen):
        raise UserError(
            "group teacher needs --labelled-teacher, such as a run of teacher_supervised_small"
        )
    return chosen


def ablate(
    ablation: Ablation,
    groups: Sequence[Group],
    execution: Execution,
    console: Console,
    show: Callable[[Sequence[Result]], None] = lambda _: None,
) -> list[Result]:
    """Train and evaluate every variant of the groups with every seed; finished runs are kept.

    Variants that amount to the same run, such as the recipe's own choice in several groups, are
    trained once, under the first one's name; ablation.json records which. Each run leaves a folder
    VARIANT-seedN in `execution.out`, and ablation.md shows everything in it. A run that fails does
    not stop the others. All results in the folder are returned, and given to `show` before
    ablation.md is written; those of a run are repeated for every variant that it represents.

    Raises:
        UserError: A setting cannot be used, or a run failed.
        Interrupted: After a signal. The same call resumes.
    """
    from burn.campaigns.run import run_campaign

    require_alone("ablate")
    ablation.check()
    runs = runs_of_variants(ablation)
    wanted = dict.fromkeys(runs[variant] for group in groups for variant in group.variants)
    failed = run_campaign(
        "ablation",
        ablation,
        list(wanted),
        execution,
        console,
        settings=asdict(ablation),
        runs=runs,
        floor=set(wanted),
        references={
            TEACHER: (ablation.teacher, ablation.teacher_size),
            LABELLED_TEACHER: (ablation.labelled_teacher, ablation.labelled_teacher_size),
        },
    )
    results = read_ablation(execution.out, runs)
    if results:
        show(results)
        write_text(execution.out / "ablation.md", ablation_markdown(results))
        console.print(f"-> {execution.out / 'ablation.md'}")
    refuse_failed(failed, execution.out)
    return results


def runs_of_variants(ablation: Ablation) -> dict[str, str]:
    """Map each variant to the first with the same recipe and teacher, which is trained for both."""
    made = {
        name: (ablation.recipe_of(name), ablation.teacher_of(name), BUDGETS.get(name, 1))
        for name in VARIANTS
    }
    return {
        variant: next(other for other in made if made[other] == made[variant]) for variant in made
    }


def read_ablation(out: Path, runs: dict[str, str]) -> list[Result]:
    """Read the results in `out`, repeated under the name of every variant that a run represents.

    `runs` has the variant that is trained for each variant, as of `runs_of_variants`.
    """
    from burn.campaigns.folder import read_campaign

    results = read_campaign(out)
    stands_for = {run: [v for v in runs if runs[v] == run] for run in runs.values()}
    return [
        replace(result, model=name)
        for result in results
        for name in stands_for.get(result.model, [result.model])
    ]
