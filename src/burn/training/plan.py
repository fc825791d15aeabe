"""What a run trains and on which machine, apart from what trains it, so that it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from burn.core.errors import UserError
from burn.recipes.schema import Recipe
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.compute import Device


@dataclass(frozen=True)
class RunPlan:
    """What is trained on what: a recipe with its data, teacher and seed.

    data: as `open_source` takes it. teacher: as `load_teacher` takes it, or None. max_steps cuts
    every stage to that many optimizer steps; its schedules span what is left.
    """

    recipe_name: str
    recipe: Recipe
    data: str
    teacher: str | None
    seed: int = 0
    max_steps: int | None = None


@dataclass(frozen=True)
class Machine:
    """Where and how it runs, without influence on what comes out (beyond rounding).

    workers: processes that load images, for each that trains. monitor_every: optimizer steps
    between two looks at the run; None for a fiftieth of a stage's steps, at most 20. save_every:
    minutes between two resume files. skip_nonfinite: steps of a stage that may be left out because
    loss or gradient was not finite. max_bad: share of the images that may be unreadable, in [0, 1].
    profile: time the parts of a step. compile: run the networks through torch.compile.
    teacher_cache: folder in which the teacher's features are kept, for every run that draws the
    same views for the same teacher; None to make them each time.
    """

    device: Device = "auto"
    workers: int | None = None
    monitor_every: int | None = None
    save_every: float = 5.0
    skip_nonfinite: int = 0
    max_bad: float = 0.1
    profile: bool = False
    compile: bool = False
    teacher_cache: str | None = None

    def check(self) -> None:
        """Raise UserError for values out of range."""
        if self.monitor_every is not None:
            require_within(1, 10**9, monitor_every=self.monitor_every)
        require_processes(0, workers=self.workers)
        require_within(0, 1e6, save_every=self.save_every)
        if not 0 <= self.max_bad <= 1:
            raise UserError(f"--max-bad {self.max_bad} is not a share of the images: 1%, say")
        if not 0 <= self.skip_nonfinite <= 10**9:
            raise UserError(f"--on-nonfinite skip:{self.skip_nonfinite} is not in 0 … 10⁹ steps")
