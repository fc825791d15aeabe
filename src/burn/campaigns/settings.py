"""What `burn compare`, `ablate` and `analyze negatives` decide before torch is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from burn.core.errors import UserError
from burn.evaluation.configs import SemiConfig
from burn.methods.registry import METHODS
from burn.recipes.schema import Recipe
from burn.runtime.bounds import require_processes, require_within
from burn.training.plan import Machine

# Not trained here, but evaluated beside what is: the floor and what was learned from.
RANDOM, TEACHER, LABELLED_TEACHER = "random weights", "teacher", "labelled teacher"
# Models of `burn compare` that are no method: the paper's feature similarity without classifiers,
# and its whole loss with the jointly trained classifier.
FEATURE_ONLY, PAPER = "feature_only", "paper"
VARIANTS_OF_BURN = (FEATURE_ONLY, PAPER)


def is_taught(model: str) -> bool:
    """Whether a model of a comparison learns from a teacher."""
    return model in VARIANTS_OF_BURN or (model in METHODS and METHODS[model].needs_teacher)


def is_taught_classes(model: str) -> bool:
    """Whether it learns from a teacher's classifier, so from the teacher trained with labels."""
    return model in METHODS and "classifier" in METHODS[model].needs


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


MoreProtocol = Literal["semi1", "semi10", "svm", "transfer"]


@dataclass(frozen=True)
class More:
    """Protocols by which a campaign's networks are evaluated beside kNN and linear evaluation.

    Attributes:
        more: further protocols, with commas between, now or for runs that are trained: semi1,
            semi10 (share of the labels in percent), svm (few shots), transfer.
        transfer_train: images with labels that transfer learns from.
        transfer_test: images with labels that transfer is evaluated on.
        semi: settings of semi1 and semi10, whose share of the labels their names give.
    """

    more: str = ""
    transfer_train: str | None = None
    transfer_test: str | None = None
    semi: SemiConfig = field(default_factory=SemiConfig)

    @property
    def protocols(self) -> tuple[MoreProtocol, ...]:
        """The names in `more`. Raises UserError for unknown ones."""
        chosen: list[MoreProtocol] = []
        for word in filter(None, map(str.strip, self.more.split(","))):
            known = next((name for name in get_args(MoreProtocol) if name == word), None)
            if known is None:
                there = ", ".join(get_args(MoreProtocol))
                raise UserError(f"--more: unknown {word!r}; there are {there}")
            if known in chosen:
                raise UserError(f"--more: {word} is given twice")
            chosen.append(known)
        return tuple(chosen)

    def check(self) -> None:
        """Raise UserError for unknown protocols and data that are lacking or not used."""
        transfers = "transfer" in self.protocols
        for name in ("transfer_train", "transfer_test"):
            option = f"--{name.replace('_', '-')}"
            if transfers and getattr(self, name) is None:
                raise UserError(f"--more transfer needs {option}: images with labels")
            if not transfers and getattr(self, name) is not None:
                raise UserError(f"{option} is given, but transfer is not among --more")
        self.semi.check()


@dataclass(frozen=True)
class Execution:
    """How a campaign's runs are made.

    Attributes:
        out: folder of the runs; what it already holds is kept.
        seeds: each model is trained with each of them.
        machine: on which all are trained and evaluated.
        processes: how many run at once, each on a GPU of its own or with its share of the cores,
            its output in logs/; default: one for each GPU, or one.
        more: protocols beside kNN and linear evaluation.
    """

    out: Path
    seeds: Sequence[int]
    machine: Machine
    processes: int | None = None
    more: More = field(default_factory=More)

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_seeds(self.seeds)
        self.machine.check()
        require_processes(1, processes=self.processes)
        self.more.check()


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
