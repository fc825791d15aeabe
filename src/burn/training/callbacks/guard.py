"""A check of the gradient flow at the first step: the loss must train what it is meant to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from burn.core.errors import GradientFlowError
from burn.core.types import Part
from burn.learning.loop import Callback, Loop
from burn.training.pretraining import Pretraining


class GradientFlowGuard:
    """Checks at the first optimizer step that gradients reach the trained parts and no others.

    Every parameter of a trained part must have a gradient, and the part's gradient must be finite
    and not zero; a frozen part must have none. A part that the loss does not reach yet (λ = 1 or 0)
    is checked at the first step that reaches it. Where parts were trained by an earlier stage
    (`continued`), a gradient may be zero, as that of a classifier whose output has collapsed is.
    """

    def __init__(self, parts: Sequence[Part], continued: bool = False) -> None:
        self._parts = list(parts)
        self.continued = continued
        self.pending = {part.name for part in parts}  # those that have not been checked

    @property
    def done(self) -> bool:
        return not self.pending

    def check(self, reached: set[str], step: int) -> None:
        """Check the gradients after a backward pass of a loss that reaches these trained parts.

        GradientFlowError names a part that has not the gradient that it should.
        """
        for part in self._parts:
            if part.name not in self.pending or (part.trained and part.name not in reached):
                continue
            problem = _problem(part, self.continued)
            if problem:
                raise GradientFlowError(f"stopped at step {step}: {part.name} {problem}")
            self.pending.discard(part.name)


def _problem(part: Part, may_be_zero: bool) -> str | None:
    gradients = {name: p.grad for name, p in part.module.named_parameters()}
    if not part.trained:
        received = any(g is not None for g in gradients.values())
        return "is frozen but received a gradient" if received else None
    missing = [name for name, gradient in gradients.items() if gradient is None]
    if len(missing) == len(gradients):
        return "is meant to learn but received no gradient: the loss is detached from it"
    if missing:
        return f"is meant to learn but {missing[0]} received no gradient"
    total = sum(
        float(g.detach().float().square().sum()) for g in gradients.values() if g is not None
    )
    if not math.isfinite(total):
        return "received a gradient that is not finite: lower the learning rate or check the images"
    return None if total > 0 or may_be_zero else "is meant to learn but its gradient is zero"


def gradient_norms(parts: Sequence[Part]) -> dict[str, float]:
    """Return the L2 norm of each part's gradient, over all its parameters; 0 without gradients."""
    gradients = {
        part.name: [p.grad for p in part.module.parameters() if p.grad is not None]
        for part in parts
    }
    return {
        name: float(torch.nn.utils.get_total_norm(gradient)) for name, gradient in gradients.items()
    }


class Guard(Callback):
    """Runs the gradient-flow guard until every part has been checked."""

    def __init__(self, guard: GradientFlowGuard) -> None:
        self._guard = guard
        self._restored = False  # what was checked before

    def state_dict(self) -> dict[str, Any]:
        return {"pending": sorted(self._guard.pending)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._guard.pending &= set(state["pending"])
        self._restored = True

    def on_start(self, loop: Loop[Pretraining]) -> None:
        # A resume file of burn 0.2.0 does not say which parts were checked, of which one may have
        # collapsed since.
        if loop.step > 0 and not self._restored:
            self._guard.continued = True

    def on_before_step(self, loop: Loop[Pretraining]) -> None:
        if not self._guard.done and loop.learner.learned_in_step:
            self._guard.check(loop.learner.method.reached(loop.progress), loop.step + 1)
