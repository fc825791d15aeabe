"""Checks before an optimizer step: numbers are finite, and the loss trains what it is meant to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, distributed

from burn.core.errors import GradientFlowError
from burn.core.types import Part
from burn.learning.loop import Callback, Loop
from burn.runtime.distributed import Processes
from burn.runtime.gpu import read_later
from burn.training.pretraining import Pretraining


class FiniteSteps(Callback):
    """Checks loss and gradients before every optimizer step.

    If one is not finite, the step is skipped, in all processes. After too many such steps of the
    stage it raises UserError with the step, the terms of the loss and the parts.

    To read a number from a GPU is to wait for it, and then the GPU waits for the next step's
    kernels. There an optimizer that can skip a step by itself is told by a tensor on the GPU, which
    is read a step later, before a resume file is written, and at the end. At the steps that the
    monitor measures, which wait in any case, it is read at once.
    """

    def __init__(self, tolerated: int, every: int, processes: Processes, console: Console) -> None:
        self._tolerated, self._every = tolerated, every
        self._processes, self._console = processes, console
        self._skipped = 0
        self._read_last_check: Callable[[], None] = lambda: None

    def state_dict(self) -> dict[str, Any]:
        self._read_last_check()  # before a resume file is written
        return {"skipped": self._skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._skipped = state["skipped"]

    def on_before_step(self, loop: Loop[Pretraining]) -> None:
        self._read_last_check()
        optimizer: Any = loop.optimizer
        optimizer.found_inf = None
        if not loop.learner.learned_in_step:
            optimizer.zero_grad()  # they are zero, since hardly any image was readable
            return
        step = loop.step + 1
        if _skips_by_itself(optimizer) and not loop.is_looked_at(step, self._every):
            optimizer.found_inf = self._check_later(loop, step)
            return
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in _parameters(optimizer) if p.grad is not None]
        )
        finite = bool(torch.isfinite(norm + sum(loop.learner.terms_of_step.values())))
        if not self._processes.all_reduce_max(float(not finite)):
            return
        self._skip(loop, step, _what_is_not_finite(loop))
        optimizer.zero_grad()  # to None, so that neither weights nor the optimizer's state change
        loop.learner.learned_in_step, loop.learner.output = False, None

    def on_end(self, loop: Loop[Pretraining]) -> None:
        self._read_last_check()

    def _check_later(self, loop: Loop[Pretraining], step: int) -> Tensor:
        """Check a step without waiting; return 1, a scalar, if it must be skipped, else 0."""
        terms, parts = list(loop.learner.terms_of_step), []
        numbers = list(loop.learner.terms_of_step.values())
        for part in loop.learner.method.parts():
            gradients = [p.grad for p in part.module.parameters() if p.grad is not None]
            if gradients:
                parts.append(part.name)
                numbers.append(torch.nn.utils.get_total_norm(gradients))
        zero = torch.zeros((), device=loop.device)  # some terms are numbers on the CPU
        values = torch.stack([zero + number for number in numbers])
        skipped = (~torch.isfinite(values).all()).float()
        if self._processes.count > 1:
            distributed.all_reduce(skipped, distributed.ReduceOp.MAX)
        read = read_later(torch.cat([skipped.view(1), values]))
        learned_before = loop.learner.learned

        def read_check() -> None:
            """Skip the step if necessary, once. All processes find the same, so none waits."""
            self._read_last_check = lambda: None
            was_skipped, *numbers = read()
            if not was_skipped:
                return
            terms_here = dict(zip(terms, numbers[: len(terms)], strict=True))
            norms = zip(parts, numbers[len(terms) :], strict=True)
            parts_here = [name for name, norm in norms if not math.isfinite(norm)]
            self._skip(loop, step, _not_finite(terms_here, parts_here))
            loop.learner.learned = learned_before

        self._read_last_check = read_check
        return skipped

    def _skip(self, loop: Loop[Pretraining], step: int, what_here: str) -> None:
        """Report a skipped step, or raise UserError; `what_here` is not finite in this process."""
        messages = self._processes.gather(what_here)
        what = " and ".join(dict.fromkeys(text for text in messages if text))
        what = what or "the gradients are too large for their norm"
        self._skipped += 1
        if self._skipped > self._tolerated:
            already = f" (after {self._tolerated} such steps)" if self._tolerated else ""
            self._processes.fail(
                f"stopped at step {step}{already}: {what}; lower --optim.lr, check the teacher, or "
                "skip such steps with --on-nonfinite skip:10. The step changed no weight, and the "
                "last resume file is kept"
            )
        sound = all(_finite(buffer) for buffer in loop.learner.method.buffers())
        if self._processes.all_reduce_max(float(not sound)):
            self._processes.fail(
                f"stopped at step {step}: {what}, and it has reached BN's statistics or a queue; "
                "resume from the last resume file with a lower --optim.lr"
            )
        self._console.print(
            f"step {step} is skipped ({self._skipped} of {self._tolerated}): {what}", style="red"
        )


def _skips_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer skips a step for which a tensor on the GPU tells it to.

    LARS does not. SGD does not at its first step, which would leave its momentum undefined.
    """
    fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    on_gpu = all(parameter.device.type == "cuda" for parameter in _parameters(optimizer))
    return fused and on_gpu and bool(optimizer.state)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _what_is_not_finite(loop: Loop[Pretraining]) -> str:
    """Describe the terms of the loss and the gradients that are not finite in this process."""
    terms = {name: float(total) for name, total in loop.learner.terms_of_step.items()}
    parts = [
        part.name
        for part in loop.learner.method.parts()
        if any(not _finite(p.grad) for p in part.module.parameters() if p.grad is not None)
    ]
    return _not_finite(terms, parts)


def _not_finite(terms: Mapping[str, float], parts: Sequence[str]) -> str:
    """Name the terms that are not finite, and the parts whose gradients are not."""
    named = [f"{name} is {total:g}" for name, total in terms.items() if not math.isfinite(total)]
    if parts:
        named.append(f"the gradient of {', '.join(parts)} is not finite")
    return " and ".join(named)


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


class Guard(Callback):
    """Checks that gradients reach the trained parts and no others, until every part was checked.

    Every parameter of a trained part must have a gradient, and the part's gradient must be finite
    and not zero; a frozen part must have none. A part is checked at the first optimizer step whose
    loss reaches it (with λ = 1 or 0 not all are). Where parts were trained by an earlier stage
    (`continued`), a gradient may be zero, as that of a classifier whose output has collapsed is.
    """

    def __init__(self, parts: Sequence[Part], continued: bool = False) -> None:
        self._parts, self._continued = list(parts), continued
        self.pending = {part.name for part in parts}  # those that have not been checked
        self._restored = False  # what was checked before

    def state_dict(self) -> dict[str, Any]:
        return {"pending": sorted(self.pending)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pending &= set(state["pending"])
        self._restored = True

    def on_start(self, loop: Loop[Pretraining]) -> None:
        # A resume file of burn 0.2.0 does not say which parts were checked, of which one may have
        # collapsed since.
        if loop.step > 0 and not self._restored:
            self._continued = True

    def on_before_step(self, loop: Loop[Pretraining]) -> None:
        if self.pending and loop.learner.learned_in_step:
            self.check(loop.learner.method.reached(loop.progress), loop.step + 1)

    def check(self, reached: set[str], step: int) -> None:
        """Check the gradients after a backward pass of a loss that reaches these trained parts.

        GradientFlowError names a part that has not the gradient that it should.
        """
        for part in self._parts:
            if part.name not in self.pending or (part.trained and part.name not in reached):
                continue
            problem = _problem(part, self._continued)
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
