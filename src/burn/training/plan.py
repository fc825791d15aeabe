"""What a run trains, on which machine and in how many steps, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from burn.backbones.registry import check_backbone
from burn.core.errors import UserError, shortened
from burn.recipes.schema import Recipe
from burn.runtime.bounds import require_processes, require_share, require_within
from burn.runtime.compute import Device

_LOOKS, _LONGEST = 50, 20  # measurements of a stage, and most optimizer steps between two


@dataclass(frozen=True)
class RunPlan:
    """What a run trains: a recipe with its data, teacher and random seed."""

    recipe_name: str  # before the user changed its fields
    recipe: Recipe
    data: str  # the images, in the form that `open_source` takes
    teacher: str | None  # in the form that `load_teacher` takes
    seed: int = 0
    max_steps: int | None = None  # to which every stage is shortened, with its schedules
    init: str | None = None  # in the form that `load_start` takes; None for random weights

    def check(self) -> None:
        self.recipe.check()
        check_backbone(self.recipe.backbone)
        if self.max_steps is not None and self.max_steps < 1:
            raise UserError(f"max_steps {self.max_steps} is not at least 1")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed {self.seed} is not in 0 … 2³² - 1")


@dataclass(frozen=True)
class Machine:
    """Where and how a run trains, which does not influence the result (except for rounding).

    Attributes:
        device: where the networks run; auto is the GPU, if there is one.
        workers: processes that load images, for each --devices (default: by the device).
        monitor_every: optimizer steps per row of metrics (default: 1/50 of a stage, up to 20).
        save_every: minutes between two resume files.
        on_nonfinite: if loss or gradient is not finite: stop, or skip:N steps.
        max_bad: largest share of unreadable images, which are left out.
        profile: time the parts of a step, and print it after stages.
        compile: run the networks through torch.compile, from torch 2.14 on.
        deterministic: give the same bits again, on a GPU and a busy CPU too, but slower.
        cuda_graphs: record a step's kernels and replay them, on one GPU, which is faster.
        teacher_cache: folder that keeps the teacher's features of the views for later runs.
    """

    device: Device = "auto"
    workers: int | None = None
    monitor_every: int | None = None
    save_every: float = 5.0
    on_nonfinite: str = "stop"
    max_bad: str = "10%"
    profile: bool = False
    compile: bool = False
    deterministic: bool = False
    cuda_graphs: bool = False
    teacher_cache: str | None = None

    @property
    def skippable_steps(self) -> int:
        """The number of steps of a stage that may be skipped."""
        if self.on_nonfinite == "stop":
            return 0
        word, _, number = self.on_nonfinite.partition(":")
        if word != "skip" or not (number.isascii() and number.isdecimal() and len(number) < 18):
            raise UserError(
                f"--on-nonfinite {shortened(self.on_nonfinite)}: give stop, or skip:10 to skip up "
                "to 10 steps"
            )
        return int(number)

    @property
    def bad_share(self) -> float:
        """The largest share of unreadable images, in [0, 1]."""
        return require_share(self.max_bad)

    def check(self) -> None:
        if self.monitor_every is not None:
            require_within(1, 10**9, monitor_every=self.monitor_every)
        require_processes(0, workers=self.workers)
        require_within(0, 1e6, save_every=self.save_every)
        assert self.bad_share <= 1  # which checks it
        if self.skippable_steps > 10**9:
            raise UserError(f"--on-nonfinite {self.on_nonfinite} is not in 0 … 10⁹ steps")


@dataclass(frozen=True)
class StageSteps:
    """The batches and steps of a stage, which are the same in every stage of a run.

    If there are fewer images than in a batch of the recipe, a batch has fewer as well.
    """

    images: int  # of a micro-batch, which one process passes through the network at once
    processes: int  # that share a batch
    parts: int  # micro-batches that each process accumulates for one optimizer step
    batch_size: int  # images of an optimizer step, the product of these three
    passes_per_epoch: int  # micro-batches of one process
    per_epoch: int  # optimizer steps, of which the last one may have fewer parts
    total: int  # optimizer steps of the stage

    @property
    def passes_per_step(self) -> float:
        """Mean number of micro-batches of an optimizer step."""
        return self.passes_per_epoch / self.per_epoch

    @property
    def total_images(self) -> int:
        """Number of images of all steps of the stage, each counted as often as it is seen."""
        epochs, steps = divmod(self.total, self.per_epoch)
        passes = epochs * self.passes_per_epoch + min(steps * self.parts, self.passes_per_epoch)
        return passes * self.images * self.processes


def monitor_interval(given: int | None, total: int) -> int:
    """Return the number of optimizer steps between two measurements of the monitors.

    The default is 50 measurements of the stage, but at least one in 20 steps, so that alarms about
    a collapse do not come late.
    """
    return given or max(1, min(_LONGEST, total // _LOOKS))


def stage_steps(
    recipe: Recipe, num_images: int, processes: int = 1, max_steps: int | None = None
) -> StageSteps:
    """Compute the steps of a stage; like the data loaders, it leaves out incomplete batches."""
    images = min(recipe.batch_size // recipe.accumulate // processes, num_images // processes)
    passes = num_images // (images * processes)
    per_epoch = -(-passes // recipe.accumulate)
    total = per_epoch * recipe.epochs
    parts = min(recipe.accumulate, passes)
    return StageSteps(
        images,
        processes,
        parts,
        images * processes * parts,
        passes,
        per_epoch,
        total if max_steps is None else min(total, max_steps),
    )
