"""Schedules: functions from the progress of a stage, in [0, 1], to a value."""

from __future__ import annotations

import math
from typing import Literal

LambdaShape = Literal["cosine", "constant", "heaviside"]


def cosine_anneal(progress: float, start: float, end: float) -> float:
    """Return the value of half a cosine from `start` at progress 0 to `end` at progress 1."""
    return end - (end - start) * (math.cos(math.pi * progress) + 1) / 2


def loss_balance(progress: float, shape: LambdaShape, start: float, end: float) -> float:
    """Return λ(t), the weight of the feature similarity loss (paper, Eq. 3 and Table 7).

    >>> [round(loss_balance(t, "cosine", 0.9, 0.7), 2) for t in (0, 0.5, 1)]
    [0.9, 0.8, 0.7]
    >>> [loss_balance(t, "heaviside", 0.9, 0.7) for t in (0, 0.5, 1)]
    [1.0, 1.0, 0.0]

    Args:
        progress: Share of the stage that is done, in [0, 1].
        shape: cosine goes from `start` to `end` by Eq. 3; constant is `end` throughout; heaviside
            is H(-t + T_max/2), which is 1 in the first half and 0 in the second (and 1 at t =
            T_max/2, as H(0) = 1).
        start: λ at progress 0.
        end: λ at progress 1.
    """
    if shape == "cosine":
        return cosine_anneal(progress, start, end)
    if shape == "constant":
        return end
    return 1.0 if progress <= 0.5 else 0.0


def learning_rate_factor(step: int, num_steps: int, num_warmup: int, shape: str) -> float:
    """Return the factor of the base learning rate at an optimizer step, which counts from 0.

    A linear warm-up of `num_warmup` steps comes first. After it, shape cosine is half a cosine and
    linear a straight line down to 0 at `num_steps`; constant stays at 1.

    >>> [learning_rate_factor(step, 6, 2, "linear") for step in range(6)]
    [0.3333333333333333, 0.6666666666666666, 1.0, 0.75, 0.5, 0.25]
    """
    if step < num_warmup:
        return (step + 1) / (num_warmup + 1)
    progress = min(1.0, (step - num_warmup) / max(1, num_steps - num_warmup))
    if shape == "cosine":
        return cosine_anneal(progress, 1.0, 0.0)
    if shape == "linear":
        return 1.0 - progress
    return 1.0
