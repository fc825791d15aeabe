"""Settings of `burn compare`, `ablate` and `analyze negatives`, read before torch is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast, get_args

from burn.core.errors import UserError
from burn.evaluation.configs import SemiConfig
from burn.methods.entries import METHODS, MODELS
from burn.recipes.schema import Recipe
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.cluster import require_address
from burn.training.plan import Machine, stage_steps

# Networks that a campaign does not train, but evaluates for reference.
RANDOM, TEACHER, LABELLED_TEACHER = "random weights", "teacher", "labelled teacher"


def is_taught(model: str) -> bool:
    """Return whether a model of a comparison learns from a teacher."""
    return model in MODELS or (model in METHODS and METHODS[model].needs_teacher)


def is_taught_classes(model: str) -> bool:
    """Return whether a model learns from a teacher's classifier, and so from a labelled teacher."""
    return model in METHODS and "classifier" in METHODS[model].needs


def within_budget(recipe: Recipe, budget: int, num_images: int) -> tuple[Recipe, int]:
    """Return a recipe cut or extended to a budget, and the optimizer steps of each stage.

    The budget is of images in all stages together; the views of an image count once. Warm-up is
    limited to a fifth of the steps, so that a short budget is not spent on it. UserError is raised
    if the budget is out of range, or less than one batch in each stage.
    """
    require_within(1, 10**12, budget=budget)
    stages, epoch = len(recipe.precisions()), stage_steps(replace(recipe, epochs=1), num_images)
    epochs, images = divmod(budget // stages, epoch.total_images)
    steps = epochs * epoch.per_epoch + images // epoch.batch_size
    if steps < 1:
        batch = epoch.batch_size
        raise UserError(
            f"--budget {budget} is less than one batch of {batch} in each of {stages} stages: give "
            f"at least {batch * stages}"
        )
    warmup = min(recipe.optim.warmup_epochs, steps / epoch.per_epoch / 5)
    recipe = replace(
        recipe,
        epochs=math.ceil(steps / epoch.per_epoch),
        optim=replace(recipe.optim, warmup_epochs=warmup),
    )
    return recipe, steps


FurtherProtocol = Literal["semi1", "semi10", "svm", "transfer"]


@dataclass(frozen=True)
class FurtherProtocols:
    """Protocols beside kNN and linear evaluation by which a campaign's networks are evaluated.

    Attributes:
        more: further protocols: semi1, semi10 (percent of the labels), svm, transfer.
        transfer_train: images with labels that transfer learns from.
        transfer_test: images with labels that transfer is evaluated on.
        semi: settings of semi1 and semi10, whose share of the labels their names give.
    """

    more: str = ""
    transfer_train: str | None = None
    transfer_test: str | None = None
    semi: SemiConfig = field(default_factory=SemiConfig)

    @property
    def protocols(self) -> tuple[FurtherProtocol, ...]:
        """The names in `more`; UserError is raised if one is unknown or given twice."""
        words = [word for word in words_in(self.more) if word]
        check_words("--more", words, get_args(FurtherProtocol))
        return cast(tuple[FurtherProtocol, ...], tuple(words))

    def check(self) -> None:
        """Raise UserError if a protocol is unknown, or transfer's images are missing or unused."""
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
    """Where and how a campaign's runs are executed.

    Attributes:
        out: folder of the runs; finished runs in it are kept.
        seeds: random seeds; each model is trained with each of them.
        machine: the machine on which all are trained and evaluated.
        processes: runs at the same time (default: one for each GPU, or one); output is in logs/.
        further: protocols beside kNN and linear evaluation.
        cluster: Ray cluster that executes the runs, HOST:PORT or auto.
        cores: cores of each run on the cluster (default: an equal share).
    """

    out: Path
    seeds: Sequence[int]
    machine: Machine
    processes: int | None = None
    further: FurtherProtocols = field(default_factory=FurtherProtocols)
    cluster: str | None = None
    cores: int | None = None

    def check(self) -> None:
        """Raise UserError if a value is out of range."""
        check_seeds(self.seeds)
        self.machine.check()
        require_processes(1, processes=self.processes)
        if self.cluster is not None:
            require_address(self.cluster)
            if self.processes is not None:
                raise UserError("--processes: on a cluster Ray decides how many runs go on at once")
        if self.cores is not None:
            if self.cluster is None:
                raise UserError("--cores needs --cluster; on one machine, give --processes")
            require_within(1, 4096, cores=self.cores)
        self.further.check()


def refuse_failed(failed: Sequence[str], out: Path) -> None:
    """Raise UserError with the first of the failures that `run_campaign` has returned."""
    if failed:
        raise UserError(f"{failed[0]}; the results of the other runs are in {out}")


def words_in(text: str) -> list[str]:
    """Return the words that a text lists, separated by commas, in brackets or without them."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    return [word.strip() for word in text.split(",")]


def check_words(option: str, words: Sequence[str], known: Sequence[str], every: str = "") -> None:
    """Raise UserError if a word is unknown or given twice; `every` is said of one for all."""
    for position, word in enumerate(words):
        if word not in known:
            there = ", ".join(known)
            raise UserError(f"{option}: unknown {word!r}; give {every}some of {there}")
        if word in words[:position]:
            raise UserError(f"{option}: {word} is given twice")


def seeds_in(text: str) -> list[int]:
    """Return the random seeds that a text lists, separated by commas, or raise UserError."""
    try:
        words = words_in(text)
        seeds = [int(word) for word in words if word.isascii() and word.isdecimal()]
        if len(seeds) < len(words):
            raise ValueError
    except ValueError:
        raise UserError(f"--seeds {text}: give whole numbers separated by commas") from None
    check_seeds(seeds)
    return seeds


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise UserError without a seed, for one out of range or twice, and for more than 1,000."""
    if not seeds or len(set(seeds)) < len(seeds) or any(not 0 <= s < 2**32 for s in seeds):
        raise UserError("--seeds: give numbers in 0 … 2³² - 1, each once")
    if len(seeds) > 1000:
        raise UserError(f"--seeds: {len(seeds)} are too many: give at most 1,000")
