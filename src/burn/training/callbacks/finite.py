"""A callback that stops a run before a non-finite loss or gradient reaches its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from rich.console import Console
from torch import Tensor

from burn.runtime.distributed import Processes
from burn.training.module import PretrainModule


class FiniteSteps(L.Callback):
    """Checks loss and gradients before every optimizer step.

    If one is not finite, the step is skipped, in all processes. After too many such steps it raises
    UserError with the step, the terms of the loss and the parts.

    Args:
        tolerated: Number of steps of the stage that may be skipped.
        processes: The processes that share the run.
        console: Where a skipped step is reported.
    """

    def __init__(self, tolerated: int, processes: Processes, console: Console) -> None:
        self._tolerated, self._processes, self._console = tolerated, processes, console
        self._skipped = 0

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self._skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._skipped = state_dict["skipped"]

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        assert isinstance(pl_module, PretrainModule)
        module = pl_module
        if not module.learned_in_step:
            _drop(optimizer)  # the gradients are zero, since hardly any image was readable
            return
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in _parameters(optimizer) if p.grad is not None]
        )
        finite = bool(torch.isfinite(norm + sum(module.terms_of_step.values())))
        if not self._processes.all_reduce_max(float(not finite)):
            return
        found = self._processes.gather(_what_is_not_finite(module))
        what = " and ".join(dict.fromkeys(text for text in found if text))
        what = what or "the gradients are too large for their norm"
        step = trainer.global_step + 1
        self._skipped += 1
        if self._skipped > self._tolerated:
            already = f" (after {self._tolerated} such steps)" if self._tolerated else ""
            self._processes.fail(
                f"stopped at step {step}{already}: {what}; lower --optim.lr, check the teacher, or "
                "skip such steps with --on-nonfinite skip:10. The step changed no weight, and the "
                "last resume file is kept"
            )
        sound = all(_finite(buffer) for buffer in module.buffers())
        if self._processes.all_reduce_max(float(not sound)):
            self._processes.fail(
                f"stopped at step {step}: {what}, and it has reached BN's statistics or a queue; "
                "resume from the last resume file with a lower --optim.lr"
            )
        _drop(optimizer)
        module.learned_in_step, module.output = False, None
        self._console.print(
            f"step {step} is skipped ({self._skipped} of {self._tolerated}): {what}", style="red"
        )


def _drop(optimizer: torch.optim.Optimizer) -> None:
    """Remove all gradients, so that neither parameters nor the optimizer's state change."""
    for parameter in _parameters(optimizer):
        parameter.grad = None


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _what_is_not_finite(module: PretrainModule) -> str:
    """Describe the terms of the loss and the gradients that are not finite in this process."""
    terms = {name: float(total) for name, total in module.terms_of_step.items()}
    named = [f"{name} is {total:g}" for name, total in terms.items() if not math.isfinite(total)]
    parts = [
        part.name
        for part in module.method.parts()
        if any(not _finite(p.grad) for p in part.module.parameters() if p.grad is not None)
    ]
    if parts:
        named.append(f"the gradient of {', '.join(parts)} is not finite")
    return " and ".join(named)


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
