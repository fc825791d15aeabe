"""A training step on the pretended GPU, with the callbacks that see its gradients."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from pretend import CUDA, OnGpu, on_gpu
from rich.console import Console
from torch import Tensor, distributed, nn

import tiny
from burn.core.types import Batch
from burn.layers.sync_norm import synchronize_norms
from burn.methods.base import Method
from burn.runtime.distributed import Processes
from burn.training.callbacks.checks import FiniteSteps, Guard
from burn.training.graphs import CudaRecorder, StepGraph
from burn.training.plan import StageSteps
from burn.training.pretraining import Pretraining, pretraining_loop
from method_checks import views

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))
CASES = importlib.import_module("two_processes").CASES


class _Unaveraged(Processes):
    """Processes whose gradients are not averaged, which is torch's task."""

    def wrap(self, module: nn.Module) -> Any:
        return module


class Run:
    """A stage on the pretended GPU, step by step, with the callbacks that see its gradients.

    In a group of processes it is one of these.

    Args:
        method: The method.
        sizes: Sides of its views.
        optim: Name of the optimizer.
        tolerated: Number of steps that may be skipped.
        name: Name of the method, for a recorder.
        synchronize: Whether BN uses the images of all processes.
        every: Optimizer steps between two measurements.
        count: Number of images.
        recorder: Records steps, as with `--cuda-graphs`; None for none.
        num_steps: Steps of the stage, by which its schedules go.
        per_epoch: Steps of an epoch.
    """

    def __init__(
        self,
        method: Method,
        sizes: tuple[int, ...],
        optim: str = "sgd",
        tolerated: int = 0,
        *,
        name: str = "",
        synchronize: bool = False,
        every: int = 50,
        count: int = 8,
        recorder: CudaRecorder | None = None,
        num_steps: int = 100,
        per_epoch: int = 100,
    ) -> None:
        recipe = tiny.teacher_recipe()
        recipe = replace(recipe, optim=replace(recipe.optim, name=optim, lr=0.01))
        processes = Processes(CUDA)
        if distributed.is_initialized():
            processes = _Unaveraged(CUDA, count=2, rank=0, local_count=2)
        self.sizes, self.count, self.said = sizes, count, io.StringIO()
        graph = None if recorder is None else StepGraph(method, name, count, recorder)
        if synchronize:
            synchronize_norms(method)
        on_gpu(method).train()
        steps = StageSteps(count, 1, 1, count, per_epoch, per_epoch, num_steps)
        self.learner = Pretraining(method, processes, bfloat16=True, graph=graph)
        loader: Any = range(per_epoch)  # of which the loop asks for the length alone
        self.loop = pretraining_loop(self.learner, loader, recipe, steps, processes)
        self.console = Console(file=self.said, width=1000)
        self.finite = FiniteSteps(tolerated, every, processes, self.console)
        self.loop.callbacks = [self.finite, Guard(method.parts())]

    def step(
        self, spoil: Callable[[Tensor], Tensor] = lambda loss: loss, *, missing: int = 0
    ) -> None:
        """Train a step; of its images some may be missing, because they could not be read."""
        number, count = self.loop.step, self.count - missing
        labels = torch.arange(count) % 3
        batch: Batch = views(*self.sizes, count=count, seed=number, labels=labels)
        whole = self.learner.register_forward_hook(lambda *passed: spoil(passed[-1]))
        self.loop.advance(batch)
        whole.remove()

    def state(self) -> dict[str, Tensor]:
        """Copies of all parameters, buffers and gradients."""
        method = self.learner.method
        found = {**dict(method.named_parameters()), **dict(method.named_buffers())}
        gradients = {f"gradient {n}": p.grad for n, p in method.named_parameters()}
        found |= {name: grad for name, grad in gradients.items() if grad is not None}
        return {name: cast(OnGpu, tensor.detach()).held.clone() for name, tensor in found.items()}

    def weights(self) -> dict[str, Tensor]:
        return {
            name: cast(OnGpu, parameter.detach()).held.clone()
            for name, parameter in self.learner.method.named_parameters()
        }


def build(case: str, **settings: Any) -> Run:
    """The run of a case of `CASES`."""
    name = case.split()[0]
    return Run(CASES[case].build(0, 1), CASES[case].sizes, name=name, **settings)
