"""A training step on the pretended GPU, with the callbacks that see its gradients."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning as L
import torch
from pretend import CUDA, OnGpu, on_gpu
from rich.console import Console
from torch import Tensor, distributed

import tiny
from burn.core.types import Batch
from burn.layers.sync_norm import synchronize_norms
from burn.methods.base import Method
from burn.runtime.distributed import Processes
from burn.training.callbacks.finite import FiniteSteps
from burn.training.callbacks.guard import GradientFlowGuard, Guard
from burn.training.graphs import Recorder, StepGraph
from burn.training.module import PretrainModule
from method_checks import views

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))
CASES = importlib.import_module("two_processes").CASES


class Run:
    """A stage on the pretended GPU, step by step, with the callbacks that see its gradients.

    In a group of processes it is one of these; the gradients are not averaged, which is torch's
    task.

    Args:
        method: The method.
        sizes: Sides of its views.
        optim: Name of the optimizer.
        tolerated: Number of steps that may be skipped.
        synchronize: Whether BN uses the images of all processes.
        every: Optimizer steps between two measurements.
        count: Number of images.
        recorder: Records steps, as with `--cuda-graphs`; None for none.
        num_steps: Steps of the stage, by which its schedules go.
    """

    def __init__(
        self,
        method: Method,
        sizes: tuple[int, ...],
        optim: str = "sgd",
        tolerated: int = 0,
        *,
        synchronize: bool = False,
        every: int = 50,
        count: int = 8,
        recorder: Recorder | None = None,
        num_steps: int = 100,
    ) -> None:
        recipe = tiny.teacher_recipe()
        recipe = replace(recipe, optim=replace(recipe.optim, name=optim, lr=0.01))
        processes = Processes(CUDA)
        if distributed.is_initialized():
            processes = Processes(CUDA, count=2, rank=0, local_count=2)
        self.sizes, self.count, self.said = sizes, count, io.StringIO()
        graph = None if recorder is None else StepGraph(method, "of the test", count, recorder)
        self.module = PretrainModule(method, recipe, num_steps, 100, processes, graph)
        if synchronize:
            synchronize_norms(self.module)
        on_gpu(self.module).train()
        cast(Any, self.module)._device = CUDA
        self.console = Console(file=self.said, width=1000)
        self.finite = FiniteSteps(tolerated, every, processes, self.console)
        self.callbacks: list[L.Callback] = [self.finite, Guard(GradientFlowGuard(method.parts()))]
        self.optimizer = cast(dict[str, Any], self.module.configure_optimizers())["optimizer"]
        self.trainer: Any = SimpleNamespace(
            global_step=0,
            current_epoch=0,
            optimizers=[self.optimizer],
            precision_plugin=SimpleNamespace(forward_context=self._autocast),
        )
        cast(Any, self.module)._trainer = self.trainer
        self.bfloat16 = True

    def _autocast(self) -> Any:
        return torch.autocast("cuda", torch.bfloat16, enabled=self.bfloat16)

    def step(
        self, spoil: Callable[[Tensor], Tensor] = lambda loss: loss, *, missing: int = 0
    ) -> None:
        """Train a step; of its images some may be missing, because they could not be read."""
        number, count = self.trainer.global_step, self.count - missing
        labels = torch.arange(count) % 3
        batch: Batch = views(*self.sizes, count=count, seed=number, labels=labels)
        batch = self.module.transfer_batch_to_device(batch, CUDA, 0)

        def closure() -> Tensor:
            with self._autocast():
                loss = spoil(self.module.training_step(batch, 0))
            self.optimizer.zero_grad()  # after the step, as in Lightning
            self.module.backward(loss)
            for callback in self.callbacks:
                callback.on_before_optimizer_step(self.trainer, self.module, self.optimizer)
            return loss

        self.module.optimizer_step(0, 0, self.optimizer, closure)
        self.trainer.global_step += 1
        for callback in self.callbacks:
            callback.on_train_batch_end(self.trainer, self.module, None, batch, 0)

    def state(self) -> dict[str, Tensor]:
        """Copies of all parameters, buffers and gradients."""
        method = self.module.method
        found = {**dict(method.named_parameters()), **dict(method.named_buffers())}
        gradients = {f"gradient {n}": p.grad for n, p in method.named_parameters()}
        found |= {name: grad for name, grad in gradients.items() if grad is not None}
        return {name: cast(OnGpu, tensor.detach()).held.clone() for name, tensor in found.items()}

    def weights(self) -> dict[str, Tensor]:
        return {
            name: cast(OnGpu, parameter.detach()).held.clone()
            for name, parameter in self.module.method.named_parameters()
        }


def build(case: str, **settings: Any) -> Run:
    """The run of a case of `CASES`."""
    return Run(CASES[case].build(0, 1), CASES[case].sizes, **settings)
