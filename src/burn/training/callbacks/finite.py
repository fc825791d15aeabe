"""A callback that stops a run before a non-finite loss or gradient reaches its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, distributed

from burn.learning.loop import Callback, Loop
from burn.runtime.distributed import Processes
from burn.runtime.gpu import read_later
from burn.training.pretraining import Pretraining


@dataclass(frozen=True)
class _Checked:
    """What was found in a step, on its way from the GPU."""

    step: int
    terms: Sequence[str]  # names of the terms of the loss, whose numbers come first
    parts: Sequence[str]  # names of the parts, the norms of whose gradients follow
    learned: bool  # whether a step before it has changed the weights
    numbers: Callable[[], list[float]]  # reads 1 if the step was skipped, else 0, and those


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
        self._loop: Loop[Pretraining] | None = None
        self._checked: _Checked | None = None

    def state_dict(self) -> dict[str, Any]:
        self._read_last_check()  # before a resume file is written
        return {"skipped": self._skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._skipped = state["skipped"]

    def on_before_step(self, loop: Loop[Pretraining]) -> None:
        self._loop = loop
        self._read_last_check()
        optimizer: Any = loop.optimizer
        optimizer.found_inf = None
        if not loop.learner.learned_in_step:
            _drop(optimizer)  # the gradients are zero, since hardly any image was readable
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
        _drop(optimizer)
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
        self._checked = _Checked(step, terms, parts, loop.learner.learned, read)
        return skipped

    def _read_last_check(self) -> None:
        """Read what was found in the last step, unless that was done; skip the step if necessary.

        All processes find the same, so that none of them waits for another.
        """
        checked, loop = self._checked, self._loop
        if checked is None or loop is None:
            return
        self._checked = None
        skipped, *numbers = checked.numbers()
        if not skipped:
            return
        terms = dict(zip(checked.terms, numbers[: len(checked.terms)], strict=True))
        norms = zip(checked.parts, numbers[len(checked.terms) :], strict=True)
        parts = [name for name, norm in norms if not math.isfinite(norm)]
        self._skip(loop, checked.step, _not_finite(terms, parts))
        loop.learner.learned = checked.learned

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


def _drop(optimizer: torch.optim.Optimizer) -> None:
    """Remove all gradients, so that neither parameters nor the optimizer's state change."""
    for parameter in _parameters(optimizer):
        parameter.grad = None


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
