"""What `burn compare`, `ablate` and `analyze negatives` decide before torch is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from burn.bounds import require_processes, require_within
from burn.errors import UserError
from burn.training.plan import Machine
from burn.training.recipe import Recipe

# Not trained here, but judged beside what is: the floor and what was learned from.
RANDOM, TEACHER, LABELLED_TEACHER = "random weights", "teacher", "labelled teacher"
FEATURE_ONLY = "feature_only"  # a model: BURN's feature similarity without its classifiers


def within_budget(recipe: Recipe, budget: int, num_images: int) -> tuple[Recipe, int]:
    """The recipe cut or stretched to `budget` images in all stages, and the steps of each stage.

    Warm-up is a fifth at most: a short budget is not to be spent on it. Raises UserError where the
    budget does not make a step.
    """
    require_within(1, 10**12, budget=budget)
    batch = min(recipe.batch_size, num_images)
    steps = budget // (len(recipe.precisions()) * batch)
    if steps < 1:
        stages = len(recipe.precisions())
        raise UserError(
            f"--budget {budget} is less than one batch of {batch} in each of {stages} stages: give "
            f"at least {batch * stages}"
        )
    steps_per_epoch = num_images // batch
    warmup = min(recipe.optim.warmup_epochs, steps / steps_per_epoch / 5)
    recipe = replace(
        recipe,
        epochs=math.ceil(steps / steps_per_epoch),
        optim=replace(recipe.optim, warmup_epochs=warmup),
    )
    return recipe, steps


@dataclass(frozen=True)
class Execution:
    """How a campaign's runs are made.

    Attributes:
        out: folder of the runs; what it already holds is kept.
        seeds: each model is trained with each of them.
        machine: on which all are trained and judged.
        processes: how many run at once, each on a GPU of its own or with its share of the cores,
            its output in logs/; default: one for each GPU, or one.
    """

    out: Path
    seeds: Sequence[int]
    machine: Machine
    processes: int | None = None

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_seeds(self.seeds)
        self.machine.check()
        require_processes(1, processes=self.processes)


def refuse_failed(failed: Sequence[str], out: Path) -> None:
    """Raise UserError with the first of what `run_campaign` returned, if there is any."""
    if failed:
        raise UserError(f"{failed[0]}; what else was asked for is in {out}")


def seeds_in(text: str) -> list[int]:
    """Numbers with commas between. Raises UserError for what is none."""
    try:
        words = [word.strip() for word in text.split(",")]
        seeds = [int(word) for word in words if word.isascii() and word.isdecimal()]
        if len(seeds) < len(words):
            raise ValueError
    except ValueError:
        raise UserError(f"--seeds {text}: give whole numbers with commas between") from None
    check_seeds(seeds)
    return seeds


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise UserError for seeds that are none."""
    if not seeds or len(set(seeds)) < len(seeds) or any(not 0 <= s < 2**32 for s in seeds):
        raise UserError("--seeds: give numbers in 0 … 2³² - 1, each once")
    if len(seeds) > 1000:
        raise UserError(f"--seeds: {len(seeds)} are more than 1,000")
