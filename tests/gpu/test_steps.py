"""Training steps of every method on a GPU: devices, waits, and the number of kernels."""

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
import pytest
import torch
from pretend import CUDA, OnGpu, OtherDevice, on_gpu, pretended
from rich.console import Console
from torch import Tensor

import tiny
from burn.core.errors import UserError
from burn.core.types import Batch
from burn.methods.base import Method
from burn.methods.registry import METHODS
from burn.runtime.distributed import Processes
from burn.training.callbacks.finite import FiniteSteps
from burn.training.callbacks.guard import GradientFlowGuard, Guard
from burn.training.module import PretrainModule
from method_checks import views

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))
CASES = importlib.import_module("two_processes").CASES

STEPS = 4
# The kernels of a step with SGD, of which each is a few microseconds of a GPU's and of Python's
# time, and what it waits for. (The first steps also wait for the guard of the gradient flow, for
# the seed of shuffled BN, and until SwAV's queue is full.)
TABLE: dict[str, tuple[int, dict[str, int]]] = {
    "burn": (529, {}),
    "burn joint": (557, {}),
    "burn released": (1058, {}),
    "burn heaviside": (540, {}),
    "burn without classifiers": (463, {}),
    "supervised": (376, {}),
    "supervised_kl": (448, {}),
    "byol": (1032, {}),
    # lightly's loss finds the pairs by a mask.
    "simclr": (824, {"simclr.forward": 2}),
    "swav": (868, {}),
    "swav with a queue": (868, {}),
    "mocov2": (542, {}),
    "mocov2 in groups": (964, {}),
    "infomin": (964, {}),
    "s2bnn": (483, {}),
    "s2bnn contrastive": (657, {}),
}


class Run:
    """A stage on the pretended GPU, step by step, with the callbacks that see its gradients.

    Args:
        method: The method.
        sizes: Sides of its views.
        optim: Name of the optimizer.
        tolerated: Number of steps that may be skipped.
    """

    def __init__(
        self, method: Method, sizes: tuple[int, ...], optim: str = "sgd", tolerated: int = 0
    ) -> None:
        recipe = tiny.teacher_recipe()
        recipe = replace(recipe, optim=replace(recipe.optim, name=optim, lr=0.01))
        processes = Processes(CUDA)
        self.sizes, self.said = sizes, io.StringIO()
        self.module = PretrainModule(method, recipe, 100, 100, processes)
        on_gpu(self.module).train()
        cast(Any, self.module)._device = CUDA
        self.trainer: Any = SimpleNamespace(global_step=0, current_epoch=0)
        cast(Any, self.module)._trainer = self.trainer
        console = Console(file=self.said, width=1000)
        self.finite = FiniteSteps(tolerated, 50, processes, console)
        self.callbacks: list[L.Callback] = [self.finite, Guard(GradientFlowGuard(method.parts()))]
        self.optimizer = cast(dict[str, Any], self.module.configure_optimizers())["optimizer"]

    def step(self, spoil: Callable[[Tensor], Tensor] = lambda loss: loss) -> None:
        number = self.trainer.global_step
        batch: Batch = views(*self.sizes, count=8, seed=number, labels=torch.arange(8) % 3)
        batch = self.module.transfer_batch_to_device(batch, CUDA, 0)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = spoil(self.module.training_step(batch, 0))
            loss.backward()
            for callback in self.callbacks:
                callback.on_before_optimizer_step(self.trainer, self.module, self.optimizer)
            return loss

        self.module.optimizer_step(0, 0, self.optimizer, closure)
        self.trainer.global_step += 1

    def weights(self) -> dict[str, Tensor]:
        return {
            name: cast(OnGpu, parameter.detach()).held.clone()
            for name, parameter in self.module.method.named_parameters()
        }


def build(case: str) -> tuple[Method, tuple[int, ...]]:
    return CASES[case].build(0, 1), CASES[case].sizes


def last_step(case: str, optim: str = "sgd") -> tuple[int, dict[str, int]]:
    """Kernels and waits of the last of some steps."""
    with pretended() as gpu:
        run = Run(*build(case), optim)
        for _ in range(STEPS - 1):
            run.step()
        before = gpu.kernels
        gpu.waits.clear()
        run.step()
    return gpu.kernels - before, dict(gpu.waits)


@pytest.mark.parametrize("case", TABLE)
def test_a_step_stays_within_its_kernels_and_waits(case: str):
    most, waits = TABLE[case]
    kernels, found = last_step(case)
    assert found == waits
    assert kernels <= most


def test_every_method_is_in_the_table():
    assert {case.split()[0] for case in TABLE} == set(METHODS)


def infinite(loss: Tensor) -> Tensor:
    return loss * torch.inf


@pytest.mark.parametrize("optim", ["sgd", "adam"])
def test_a_loss_that_is_not_finite_is_told_to_the_optimizer_and_read_a_step_later(optim: str):
    with pretended():
        run = Run(*build("supervised"), optim, tolerated=1)
        for _ in range(3):
            run.step()
        before = run.weights()
        run.step(infinite)
        assert run.said.getvalue() == ""
        assert all(torch.equal(tensor, before[name]) for name, tensor in run.weights().items())
        run.step()
        assert "step 4 is skipped (1 of 1): the gradient of" in run.said.getvalue()
        after = run.weights()
        assert all(tensor.isfinite().all() for tensor in after.values())
        assert not torch.equal(after["classifier.weight"], before["classifier.weight"])
        run.step(infinite)
        with pytest.raises(UserError, match=r"stopped at step 6 \(after 1 such steps\)"):
            run.finite.state_dict()  # so that no resume file holds what came of it


@pytest.mark.parametrize(
    ("optim", "number"), [("sgd", 0), ("lars", 2)], ids=["momentum is not there yet", "lars"]
)
def test_an_optimizer_that_cannot_skip_by_itself_is_waited_for(optim: str, number: int):
    with pretended() as gpu:
        run = Run(*build("supervised"), optim, tolerated=1)
        for _ in range(number):
            run.step()
        before = run.weights()
        gpu.waits.clear()
        run.step(infinite)
        assert gpu.waits["finite.on_before_optimizer_step"] == 1
        assert f"step {number + 1} is skipped" in run.said.getvalue()
        assert all(torch.equal(tensor, before[name]) for name, tensor in run.weights().items())
        run.step()
        assert all(tensor.isfinite().all() for tensor in run.weights().values())


def test_the_end_reads_what_is_left():
    with pretended():
        run = Run(*build("supervised"))
        run.step()
        run.step(infinite)
        assert run.module.learned
        with pytest.raises(UserError, match="stopped at step 2"):
            run.finite.on_train_end(run.trainer, run.module)


def test_a_tensor_of_the_cpu_and_random_numbers_of_the_gpu_are_found():
    with pretended():
        x = torch.zeros(3).to(CUDA)
        with pytest.raises(OtherDevice, match="add of tensors on the CPU and on the GPU"):
            _ = x + torch.zeros(3)
        with pytest.raises(OtherDevice, match="draws from the GPU's own generator"):
            x.normal_()
        with pytest.raises(OtherDevice, match="draws from the GPU's own generator"):
            torch.randn(3, device=CUDA)
        assert torch.equal((x + 1).cpu(), torch.ones(3))
