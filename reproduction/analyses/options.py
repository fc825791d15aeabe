"""Settings of `burn analyze`'s small experiments, in a module that needs no torch.

jsonargparse also imports everything that a module imports under TYPE_CHECKING, so no such block may
be in the module of a class whose fields are options.
"""

from __future__ import annotations

from dataclasses import dataclass

from burn.campaigns.settings import seeds_in
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.compute import Device


@dataclass(frozen=True)
class GradientOptions:
    """Settings of the runs whose gradients are measured.

    Attributes:
        data: images to learn from, as for pretraining.
        teacher: float teacher, as for pretraining.
        recipe: a recipe of method burn; only its loss is varied.
        steps: number of steps from the start of stage 1.
        seeds: random seeds, as 0,1,2.
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
        """Check the settings.

        Raises:
            UserError: A value is out of range.
        """
        require_within(2, 10**6, steps=self.steps)
        require_processes(0, workers=self.workers)
        seeds_in(self.seeds)


@dataclass(frozen=True)
class EmaToyOptions:
    """Settings of the toy, whose constants are the paper's.

    Attributes:
        seed: random seed.
    """

    seed: int = 0

    def check(self) -> None:
        """Check the settings.

        Raises:
            UserError: The seed is out of range.
        """
        require_within(0, 2**32 - 1, seed=self.seed)


@dataclass(frozen=True)
class ScheduleOptions:
    """No settings: the schedules are BURN's defaults."""

    def check(self) -> None:
        """Do nothing, because there are no settings."""
