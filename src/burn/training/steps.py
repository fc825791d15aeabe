"""The number of batches and optimizer steps of a stage, computed before training."""

from __future__ import annotations

from dataclasses import dataclass

from burn.recipes.schema import Recipe

_LOOKS, _LONGEST = 50, 20  # measurements of a stage, and most optimizer steps between two


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
