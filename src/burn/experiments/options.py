"""Settings of `burn analyze`'s small experiments, apart from what runs them: no torch here.

jsonargparse also imports what a module imports under TYPE_CHECKING, so such a block must not stand
beside a class whose fields are options.
"""

from __future__ import annotations

from dataclasses import dataclass

from burn.campaigns.settings import seeds_in
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.compute import Device


@dataclass(frozen=True)
class GradientOptions:
    """What is trained for the gradients.

    Attributes:
        data: images to learn from, as for pretraining.
        teacher: float teacher, as for pretraining.
        recipe: a recipe of method burn; its loss is varied, all else stays.
        steps: how many of the first steps of stage 1.
        seeds: random seeds, 0,1,2 …
        device: auto, cpu or cuda.
        workers: data-loader workers.
    """

    data: str
    teacher: str
    recipe: str = "burn_small"
    steps: int = 100
    seeds: str = "0,1"
    device: Device = "auto"
    workers: int | None = None

    def check(self) -> None:
        """Raise UserError for values out of range."""
        require_within(2, 10**6, steps=self.steps)
        require_processes(0, workers=self.workers)
        seeds_in(self.seeds)


@dataclass(frozen=True)
class EmaToyOptions:
    """The toy has the paper's constants.

    Attributes:
        seed: random seed.
    """

    seed: int = 0

    def check(self) -> None:
        """Raise UserError for values out of range."""
        require_within(0, 2**32 - 1, seed=self.seed)


@dataclass(frozen=True)
class ScheduleOptions:
    """Nothing to choose: BURN's defaults."""

    def check(self) -> None:
        """Nothing can be out of range."""
