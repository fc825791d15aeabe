"""`burn analyze negatives`: InfoMin with fewer negatives and weaker augmentation (Figures 7, 8)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console

from burn.backbones.entries import is_binary
from burn.campaigns.settings import Execution, refuse_failed, seeds_in, within_budget
from burn.core.errors import UserError
from burn.evaluation.configs import LinearConfig
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.runtime.compute import Device
from burn.training.plan import Machine, RunPlan
from reproduction.analyses.rows import Row

_SHARES = (1, 4, 16)


@dataclass(frozen=True)
class NegativesOptions:
    """Settings of InfoMin's runs with 1, 1/4 and 1/16 of its negatives, and weaker augmentation.

    Attributes:
        data: images to learn from, as for pretraining; with labels, which evaluation needs.
        test: images with labels to evaluate on.
        budget: images that each run sees in all of its stages together.
        recipe: a recipe of method infomin, for the binary network.
        float_recipe: a recipe whose backbone is the float network.
        seeds: random seeds, as 0,1,2.
        linear: linear evaluation, on features of plain views unless its augment says otherwise.
        device: auto, cpu or cuda.
        workers: data-loader workers.
        processes: number of runs at the same time; default: one for each GPU, or one.
    """

    data: str
    test: str
    budget: int
    recipe: str = "infomin_small"
    float_recipe: str = "teacher_small"
    seeds: str = "0"
    linear: LinearConfig = field(default_factory=lambda: LinearConfig(augment="none"))
    device: Device = "auto"
    workers: int | None = None
    processes: int | None = None

    def check(self) -> None:
        """Check the settings.

        Raises:
            UserError: A value is out of range, or a recipe does not fit.
        """
        base = find_recipe(self.recipe)
        if base.method != "infomin":
            raise UserError(f"--recipe {self.recipe} is not of method infomin: try infomin_small")
        if base.settings.negatives < _SHARES[-1]:
            raise UserError(f"--recipe {self.recipe} has too few negatives to take a sixteenth of")
        if is_binary(find_recipe(self.float_recipe).backbone.name):
            raise UserError(f"--float-recipe {self.float_recipe} trains a binary network")
        seeds_in(self.seeds)
        self.linear.check("linear.")

    def variants(self) -> dict[str, Recipe]:
        """Return the recipe of each run, by the run's name."""
        binary = find_recipe(self.recipe)
        backbone = find_recipe(self.float_recipe).backbone
        recipes = {}
        for network, base in (
            ("binary", binary),
            ("float", replace(binary, stages=1, backbone=backbone)),
        ):
            for share in _SHARES:
                negatives = base.settings.negatives // share
                recipes[f"{network}-{negatives}"] = base.with_settings(negatives=negatives)
        weak = replace(binary.views, rand_augment=0)
        return {**recipes, "binary-weak": replace(binary, views=weak)}

    def plan(self, model: str, seed: int, num_images: int) -> RunPlan:
        """Return the plan of one run, as `burn.campaigns.run.Shared` describes it."""
        recipe, steps = within_budget(self.variants()[model], self.budget, num_images)
        return RunPlan(self.recipe, recipe, self.data, None, seed, steps)


def train_with_fewer_negatives(options: NegativesOptions, out: Path, console: Console) -> list[Row]:
    """Train and evaluate each variant with each seed.

    Args:
        options: Settings of the runs.
        out: Folder of the runs; finished ones are kept.
        console: Console for progress.

    Returns:
        A row for each run in the folder. `images` is the number of test images, from which the
        picture's error bars follow.

    Raises:
        UserError: A run failed.
        Interrupted: After a signal. The same call continues.
    """
    from burn.campaigns.folder import read_campaign
    from burn.campaigns.run import run_campaign
    from burn.data.open import open_source

    variants = options.variants()
    of_a_call = ("seeds", "device", "workers", "processes")
    settings = {name: value for name, value in asdict(options).items() if name not in of_a_call}
    machine = Machine(options.device, options.workers)
    execution = Execution(out, seeds_in(options.seeds), machine, options.processes)
    failed = run_campaign(
        "negatives", options, list(variants), execution, console, settings=settings
    )
    refuse_failed(failed, out)
    num_images = len(open_source(options.test, "test"))
    results = {(r.model, r.seed, r.protocol): r for r in read_campaign(out) if r.metric == "top1"}
    return [
        {
            "network": name.partition("-")[0],
            "augmentation": "weak" if name.endswith("-weak") else "InfoMin's",
            "negatives": recipe.settings.negatives,
            "seed": seed,
            "knn": results[name, seed, "knn"].value,
            "linear": linear.value,
            "seconds": linear.settings["pretraining"]["seconds"],
            "images": num_images,
        }
        for name, recipe in variants.items()
        for (model, seed, protocol), linear in sorted(results.items())
        if model == name and protocol == "linear"
    ]
