"""How the images of a source become batches and optimizer steps, counted before training."""

from __future__ import annotations

from dataclasses import dataclass

from burn.recipes.schema import Recipe

_LOOKS, _LONGEST = 50, 20  # at a stage, and optimizer steps between two of them


@dataclass(frozen=True)
class StageSteps:
    """The steps of a stage; every stage of a run has as many.

    Attributes:
        images: images that one process takes through the network at once.
        processes: processes that share a batch.
        parts: how often each does so for one optimizer step.
        batch_size: images of an optimizer step: the product of these. Fewer than the recipe's where
            there are fewer images.
        passes_per_epoch: batches of `images` that one process is handed in an epoch.
        per_epoch: optimizer steps of an epoch, the last of which may have fewer parts.
        total: optimizer steps of the stage.
    """

    images: int
    processes: int
    parts: int
    batch_size: int
    passes_per_epoch: int
    per_epoch: int
    total: int

    @property
    def passes_per_step(self) -> float:
        """Mean number of parts of an optimizer step."""
        return self.passes_per_epoch / self.per_epoch


def monitor_interval(given: int | None, total: int) -> int:
    """Optimizer steps between two looks at a stage of `total`: as given, or else for 50 looks.

    More than 20 would make collapse alarms late.
    """
    return given or max(1, min(_LONGEST, total // _LOOKS))


def stage_steps(
    recipe: Recipe, num_images: int, processes: int = 1, max_steps: int | None = None
) -> StageSteps:
    """The steps of a stage, as the loaders make them: incomplete batches are left out.

    num_images: images of the source, at least `processes`. max_steps: the most steps of a stage.
    """
    images = min(recipe.batch_size // recipe.accumulate // processes, num_images // processes)
    passes = num_images // (images * processes)
    per_epoch = -(-passes // recipe.accumulate)
    total = per_epoch * recipe.epochs
    parts = min(recipe.accumulate, passes)
    return StageSteps(
        images, processes, parts, images * processes * parts, passes, per_epoch,
        total if max_steps is None else min(total, max_steps),
    )  # fmt: skip
