"""`burn compare`: train and evaluate several methods on the same images, network and budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from rich.console import Console

from burn.campaigns.settings import (
    LABELLED_TEACHER,
    TEACHER,
    Execution,
    is_taught,
    is_taught_classes,
    refuse_failed,
    within_budget,
)
from burn.core.errors import UserError
from burn.core.files import write_text
from burn.core.results import Result
from burn.evaluation.configs import LinearConfig
from burn.methods.entries import METHODS, MODELS, own_methods
from burn.recipes.photos import on_photos
from burn.recipes.registry import DEFAULT, RECIPES, find_recipe
from burn.recipes.schema import Recipe
from burn.report.render.tables import comparison_markdown
from burn.runtime.bounds import require_within
from burn.runtime.launch import require_alone
from burn.training.plan import RunPlan

Family = Literal["small", "photos", "imagenet", "imagenet100"]


def compared() -> tuple[str, ...]:
    """Return the names that `--methods` takes: the paper's, BURN's variants and plugins'."""
    of_plugins = (name for name, entry in METHODS.items() if entry.plugin is not None)
    return (*own_methods(), *MODELS, *of_plugins)


def compared_in(family: str) -> tuple[str, ...]:
    """Return those of `compared` that have a recipe in a family."""
    return tuple(
        name
        for name in compared()
        if name in METHODS or family == "photos" or f"{name}_{family}" in RECIPES
    )


@dataclass(frozen=True)
class Comparison:
    """Settings that all compared methods share; `recipe_of` gives each method's own.

    Attributes:
        data: images to learn from, as for pretraining; with labels, which evaluation needs.
        test: images with labels to evaluate on.
        budget: images that each method sees in all of its stages together, rounded down to whole
            batches in each stage; the views of an image count once.
        teacher: float teacher of burn and s2bnn, as for pretraining, with its projection head for
            s2bnn.
        labelled_teacher: teacher of supervised_kl, with its classifier.
        teacher_size: side in pixels of the views that `teacher` sees; default: the recipe's.
        labelled_teacher_size: the same for the views that `labelled_teacher` sees.
        family: recipes to use: for small images, photos, imagenet or imagenet100.
        stages: number of stages of each method; default: its recipe's.
        linear: linear evaluation, on features of plain views unless its augment says otherwise.
    """

    data: str
    test: str
    budget: int
    teacher: str | None = None
    labelled_teacher: str | None = None
    teacher_size: int | None = None
    labelled_teacher_size: int | None = None
    family: Family = "small"
    stages: Literal[1, 2] | None = None
    linear: LinearConfig = field(default_factory=lambda: LinearConfig(augment="none"))

    def check(self, methods: Sequence[str]) -> None:
        """Raise UserError if a value is out of range, a method not usable, or a teacher missing."""
        for method in methods:
            if method not in compared():
                raise UserError(
                    f"--methods: unknown {method!r}; give some of {', '.join(compared())}"
                )
            if method not in compared_in(self.family):
                raise UserError(
                    f"{method} has no recipe in the family {self.family}; leave it out of --methods"
                )
        if not methods or len(set(methods)) < len(methods):
            raise UserError("--methods: give at least one, and each once")
        for method in methods:
            if is_taught(method) and not self._taught_by(method)[0]:
                option, recipe = "teacher", "teacher_small"
                if is_taught_classes(method):
                    option, recipe = "labelled-teacher", "teacher_supervised_small"
                raise UserError(
                    f"method {method} needs --{option}: give lite0, a run of {recipe} or "
                    f"ARCHITECTURE:FILE; or leave {method} out of --methods"
                )
        require_within(8, 4096, teacher_size=self.teacher_size)
        require_within(8, 4096, labelled_teacher_size=self.labelled_teacher_size)
        self.linear.check("linear.")

    def _taught_by(self, method: str) -> tuple[str | None, int | None]:
        """Return the method's teacher, as `--teacher` takes it, and the side of its views."""
        if not is_taught(method):
            return None, None
        if is_taught_classes(method):
            return self.labelled_teacher, self.labelled_teacher_size
        return self.teacher, self.teacher_size

    def plan(self, model: str, seed: int, num_images: int) -> RunPlan:
        """Return the plan of one run: the method's recipe, cut or extended to the budget."""
        name, recipe = recipe_of(model, self.family)
        if self.stages is not None:
            recipe = replace(recipe, stages=self.stages)
        teacher, size = self._taught_by(model)
        if size is not None:
            recipe = replace(recipe, teacher_size=size)
        recipe, steps = within_budget(recipe, self.budget, num_images)
        return RunPlan(name, recipe, self.data, teacher, seed, steps)


def recipe_of(model: str, family: str) -> tuple[str, Recipe]:
    """Return the name and the recipe of a model of a comparison.

    The recipe is MODEL_FAMILY. A method without one, as a plugin's may be, takes that of another
    with the same needs: burn's if it needs a teacher, supervised's if it needs labels, or else
    simclr's. On photos, burn has the default recipe, and every other method that of the family
    small with the default's network and sizes. UserError is raised if there is no such recipe.
    """
    name, entry = f"{model}_{family}", METHODS.get(model)
    small = f"{model}_small" in RECIPES
    if name not in RECIPES and entry and not (family == "photos" and small):
        like = "burn" if entry.needs_teacher else "supervised" if entry.needs_labels else "simclr"
        return model, replace(recipe_of(like, family)[1], method=model)
    if name in RECIPES or family != "photos":
        return name, find_recipe(name)
    if model == "burn":
        return DEFAULT, find_recipe(DEFAULT)
    return name, on_photos(find_recipe(f"{model}_small"))


def compare(
    comparison: Comparison,
    methods: Sequence[str],
    execution: Execution,
    console: Console,
    show: Callable[[Sequence[Result]], None] = lambda _: None,
) -> list[Result]:
    """Train and evaluate every method with every seed; finished runs in the folder are kept.

    Each run leaves a folder METHOD-seedN with its compared.jsonl. Later calls may add methods and
    seeds, but not change settings. comparison.md and comparison.svg show everything in the folder.
    A run that fails does not stop the others. All results in the folder, including those of
    earlier calls, are returned, and given to `show` before comparison.md and .svg are written.

    Raises:
        UserError: A setting cannot be used, or a run failed.
        Interrupted: After a signal. The same call resumes.
    """
    from burn.campaigns.folder import read_campaign
    from burn.campaigns.run import run_campaign

    require_alone("compare")
    comparison.check(methods)
    failed = run_campaign(
        "comparison",
        comparison,
        methods,
        execution,
        console,
        settings=asdict(comparison),
        floor=methods,
        references={
            TEACHER: (comparison.teacher, comparison.teacher_size),
            LABELLED_TEACHER: (comparison.labelled_teacher, comparison.labelled_teacher_size),
        },
    )
    results = read_campaign(execution.out)
    if results:
        show(results)
        write_text(execution.out / "comparison.md", comparison_markdown(results))
        from burn.report.render.plots import comparison_picture  # matplotlib is slow to import

        comparison_picture(results, execution.out / "comparison.svg")
        console.print(f"-> {execution.out / 'comparison.md'} and comparison.svg")
    refuse_failed(failed, execution.out)
    return results
