"""What happens once to a process of `burn`, at a chosen moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import burn.checkpoints.native
import burn.methods.base
import burn.training.callbacks.monitor
import burn.training.named
import burn.training.stage
from burn.core.errors import UserError
from burn.methods.base import StepOutput
from burn.methods.burn.method import Burn


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Have `act` called with the arguments of every call of owner.name, before it."""
    original = getattr(owner, name)

    def replaced(*arguments: Any, **named: Any) -> Any:
        act(*arguments, **named)
        return original(*arguments, **named)

    setattr(owner, name, replaced)


def arrange(moment: str) -> None:
    """Have it happen in this process: `MOMENT`, or `MOMENT:N` for the Nth time.

    In the process of rank 0, and where the moment begins with "rank 1" in that one.
    """
    if os.environ.get("RANK", "0") != ("1" if moment.startswith("rank 1") else "0"):
        return
    name, _, times = moment.partition(":")
    left = [int(times or 1)]

    def strike(*_: Any, **__: Any) -> None:
        left[0] -= 1
        if not left[0]:
            die()

    def half_written(path: Path, data: bytes) -> None:
        if path.name == "resume.ckpt":
            with path.open("wb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                strike()

    def second_rename(path: Path, *_: Any) -> None:
        if path.name == "resume.ckpt" and path.parent.name.startswith(".writing."):
            strike()

    if name == "step":  # in the middle of one: between forward and backward
        before(torch.optim.Optimizer, "zero_grad", strike)
    elif name == "update":  # the weights are new, what follows them is not
        before(burn.methods.base.Method, "after_step", strike)
    elif name == "resume file half written":
        before(Path, "write_bytes", half_written)
    elif name == "between the two resume files":
        before(Path, "replace", second_rename)
    elif name == "evaluation":
        before(burn.training.callbacks.monitor, "knn_accuracy", strike)
    elif name == "stage file half written":
        before(safetensors.torch, "save_file", strike)
    elif name == "hand-over":  # the stage's file is there, its description and clean-up are not
        before(burn.checkpoints.native, "write_text", strike)
    elif name == "stage 2 begins":
        before(burn.training.stage.Stage, "_fit", strike)
    elif name == "rank 1 finds no data":
        before(burn.training.named, "open_source", refuse)
    elif name == "rank 1 loses its numbers":
        lose_numbers(left[0])
    else:
        raise ValueError(moment)


def refuse(*_: Any) -> None:
    raise UserError("no data on this machine")


def lose_numbers(step: int) -> None:
    """KL is not finite at this step (1-based), nor is anything that comes of it."""
    forward, steps = Burn.forward, [0]

    def spoiled(self: Burn, batch: Any, progress: float) -> StepOutput:
        output = forward(self, batch, progress)
        steps[0] += 1
        if steps[0] != step:
            return output
        return replace(
            output,
            loss=output.loss * torch.inf,
            terms={**output.terms, "kl": torch.tensor(torch.inf)},
        )

    Burn.forward = spoiled
