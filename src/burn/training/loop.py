"""The training loop of a stage, and the callbacks that it tells of what happens.

The loop knows no file and prints nothing: `burn.training.stage` puts together what a run needs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.core.errors import GradientFlowError
from burn.core.schedule import learning_rate_factor
from burn.core.types import Batch
from burn.methods.base import Method, StepOutput
from burn.methods.shared.contrast import KeyQueue
from burn.methods.shared.frozen import FrozenTarget
from burn.recipes.schema import Recipe
from burn.runtime.distributed import Processes
from burn.runtime.signals import StopsAreErrors
from burn.training.graphs import StepGraph
from burn.training.optim import build_optimizer
from burn.training.resume_files import num_batches
from burn.training.steps import StageSteps


class Callback:
    """What the loop tells of the events of a stage; each method does nothing unless overridden.

    All processes call theirs in the same order, so that a callback may communicate with those of
    the other processes, if every process has it.
    """

    def on_start(self, loop: Loop) -> None:
        """Called before the first batch, and when a stage is resumed."""

    def on_epoch_start(self, loop: Loop) -> None:
        """Called before the first batch of an epoch, and of the rest of one that is resumed."""

    def on_batch_start(self, loop: Loop, batch: Batch) -> None:
        """Called when a micro-batch is there."""

    def on_before_backward(self, loop: Loop) -> None:
        """Called between the forward and the backward pass of a micro-batch."""

    def on_after_backward(self, loop: Loop) -> None:
        """Called after the backward pass of a micro-batch."""

    def on_before_step(self, loop: Loop) -> None:
        """Called when the gradients of an optimizer step are complete."""

    def on_batch_end(self, loop: Loop, batch: Batch) -> None:
        """Called after a micro-batch, and after the optimizer step that it may complete."""

    def on_epoch_end(self, loop: Loop) -> None:
        """Called after the last batch of an epoch or of the stage."""

    def on_end(self, loop: Loop) -> None:
        """Called when the loop ends without an error."""

    def on_failure(self, loop: Loop) -> None:
        """Called when an exception ends the loop."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed stage needs of this callback, as torch stores it safely."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class Loop:
    """The training loop of one stage.

    Args:
        method: The method that is trained, on the device of the processes.
        recipe: Its recipe.
        steps: The steps of the stage.
        processes: The processes that share every batch.
        bfloat16: Whether forward passes run under bfloat16 autocast.
        graph: Runs the steps that can be recorded and replayed; None to run each as it is.

    Attributes:
        callbacks: What is told of the events, in this order.
        optimizer: The optimizer.
        bfloat16: As given.
        num_steps: Number of optimizer steps of the stage.
        step: Number of optimizer steps so far.
        batches: Number of micro-batches so far.
        stepped: Whether the last micro-batch completed an optimizer step.
        should_stop: Set by a callback to end the loop after this micro-batch.
        output: The method's output for the last micro-batch, or None if that had too few images.
        batch: The last micro-batch, as the method got it.
        learned: Whether any optimizer step of the stage has changed the weights.
        learned_in_step: Whether any micro-batch since the last optimizer step had enough images,
            and no loss or gradient of that step has been found not finite.
        replanned_at: Steps at which the stage was extended, and its schedules were planned anew.
        terms_of_step: Sums of the loss and its terms over the micro-batches since the last
            optimizer step.
    """

    def __init__(
        self,
        method: Method,
        recipe: Recipe,
        steps: StageSteps,
        processes: Processes,
        *,
        bfloat16: bool = False,
        graph: StepGraph | None = None,
    ) -> None:
        self.method, self.recipe, self.steps, self.processes = method, recipe, steps, processes
        self.device, self.num_steps = processes.device, steps.total
        self.callbacks: Sequence[Callback] = ()
        self.bfloat16, self._graph = bfloat16, graph
        self.optimizer = build_optimizer(method.parts(), recipe.optim)
        self._first_rates = [group["lr"] for group in self.optimizer.param_groups]
        self._pass = _Pass(method, graph)
        self._network = processes.wrap(self._pass)
        self.step = self.batches = 0
        self.stepped = False
        self.should_stop = self.learned = self.learned_in_step = False
        self.output: StepOutput | None = None
        self.batch: Batch | None = None
        self.replanned_at: list[int] = []
        self.terms_of_step: dict[str, Tensor] = {}
        self._set_learning_rates()

    @property
    def progress(self) -> float:
        """Share of the stage's optimizer steps that have been done, in [0, 1]."""
        return min(1.0, self.step / self.num_steps)

    @property
    def epoch(self) -> int:
        """The epoch, from 0, of the last micro-batch; 0 before the first one."""
        return max(0, self.batches - 1) // self.steps.passes_per_epoch

    @property
    def ends_epoch(self) -> bool:
        """Whether the last optimizer step was the last one of an epoch or of the stage."""
        return self.step > 0 and (
            self.step % self.steps.per_epoch == 0 or self.step == self.num_steps
        )

    def is_looked_at(self, step: int, every: int) -> bool:
        """Return whether monitors write at a step: every `every` steps, at the first and last."""
        return step % every == 0 or step in (1, self.num_steps)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of forward passes."""
        if self.bfloat16:
            # Without the cache of cast weights, in which the gradients of several views of a batch
            # would be added in bfloat16.
            return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)
        return nullcontext()

    def run(self, loader: Iterable[Batch]) -> None:
        """Train to the last step, or until a callback sets `should_stop`.

        Args:
            loader: Each iteration yields the micro-batches of one epoch, or the rest of it.

        Raises:
            Exception: Whatever a pass or a callback raises, after the callbacks were told.
        """
        with torch.enable_grad(), warnings.catch_warnings():
            # DistributedDataParallel warns of 1×1 kernels in channels-last layout, but copies none.
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            try:
                self._tell("on_start")
                while not self._done:
                    self._run_epoch(loader)
                self._tell("on_end")
            except BaseException:
                self._tell("on_failure")
                raise
        self.method.cpu()  # makes room for the next stage

    @property
    def _done(self) -> bool:
        return self.should_stop or self.step >= self.num_steps

    def _run_epoch(self, loader: Iterable[Batch]) -> None:
        self._tell("on_epoch_start")
        for batch in loader:
            self.advance(batch)
            if self._done:
                break
        self._tell("on_epoch_end")

    def advance(self, batch: Batch) -> None:
        """Train on one micro-batch, and do the optimizer step that it completes.

        Args:
            batch: This process's micro-batch, on any device.
        """
        batch = batch.to(self.device)
        self._tell("on_batch_start", batch)
        position = self.batches % self.steps.passes_per_epoch
        parts = self.recipe.accumulate
        completes = (position + 1) % parts == 0 or position + 1 == self.steps.passes_per_epoch
        with nullcontext() if completes else self.processes.without_exchange(self._network):
            self.learn(batch, begins=position % parts == 0)
        if completes:
            self._tell("on_before_step")
            self._step()
        self.stepped, self.batches = completes, self.batches + 1
        self._tell("on_batch_end", batch)

    def learn(self, batch: Batch, *, begins: bool) -> None:
        """Compute the gradients of a micro-batch.

        Args:
            batch: The micro-batch, on the device.
            begins: Whether it is the first one of an optimizer step; the gradients of others are
                added.
        """
        self.batch = self._as_large_as_every_process_has(batch)
        with self.autocast():
            loss, self.output = self._network(self.batch, self.progress)
        if self.output is not None:
            self.learned_in_step = True
            terms = {"loss": self.output.loss.detach(), **self.output.terms}
            for name, term in terms.items():
                self.terms_of_step[name] = self.terms_of_step.get(name, 0) + term
        if begins:
            self.optimizer.zero_grad()
        self._tell("on_before_backward")
        if self._pass.recorded and self._graph is not None:
            self._graph.give_gradients()
        else:
            parts = self.recipe.accumulate
            (loss / parts if parts > 1 else loss).backward()
        self._tell("on_after_backward")

    def _as_large_as_every_process_has(self, batch: Batch) -> Batch:
        """Drop images so that every process has the same number of them.

        Unreadable images make the batches of processes differ in size. Losses over all processes'
        images need the same number from each, and gradients are averaged as if it were the same.
        """
        if self.processes.count == 1:
            return batch
        fewest = -int(self.processes.all_reduce_max(-len(batch.indices)))
        return batch if fewest == len(batch.indices) else batch.first(fewest)

    def _step(self) -> None:
        progress = self.progress
        self.optimizer.step()
        with StopsAreErrors():
            self.method.after_step(progress)
        self.learned = self.learned or self.learned_in_step
        self.learned_in_step, self.terms_of_step = False, {}
        self.step += 1
        self._set_learning_rates()

    def _set_learning_rates(self) -> None:
        """Set the learning rates of the next step."""
        optim = self.recipe.optim
        warmup = min(round(optim.warmup_epochs * self.steps.per_epoch), self.num_steps)
        factor = learning_rate_factor(self.step, self.num_steps, warmup, optim.schedule)
        for group, first in zip(self.optimizer.param_groups, self._first_rates, strict=True):
            group["lr"] = first * factor

    def _tell(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed stage needs but the state of the data loader.

        Every process must call it, since callbacks may communicate.
        """
        states = {type(callback).__name__: callback.state_dict() for callback in self.callbacks}
        return {
            "state_dict": {
                f"method.{name}": tensor for name, tensor in self.method.weights().items()
            },
            "optimizer_states": [self.optimizer.state_dict()],
            "callbacks": {name: state for name, state in states.items() if state},
            "global_step": self.step,
            "batches": self.batches,
            "num_steps": self.num_steps,
            "learned": self.learned,
            "replanned_at": self.replanned_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned, perhaps of a shorter stage."""
        weights = {n.removeprefix("method."): tensor for n, tensor in state["state_dict"].items()}
        self.method.load_state_dict(weights, strict=False)  # it lacks the frozen teacher
        self.optimizer.load_state_dict(state["optimizer_states"][0])
        self.step, self.batches = state["global_step"], num_batches(state)
        self.learned = state.get("learned", True)
        self.replanned_at = list(state.get("replanned_at", []))
        if state.get("num_steps", self.num_steps) != self.num_steps:
            self.replanned_at.append(self.step)
        self._set_learning_rates()  # the optimizer has those of the plan of then
        for callback in self.callbacks:
            if type(callback).__name__ in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][type(callback).__name__])


class _Pass(nn.Module):
    """A method's forward pass, as DistributedDataParallel wraps it.

    Attributes:
        recorded: Whether the last pass was one of a recorded step, which holds its gradients.
    """

    def __init__(self, method: Method, graph: StepGraph | None) -> None:
        super().__init__()
        self.method = method
        self._graph, self.recorded = graph, False
        # Momentum networks as well: what they compute must be what they average.
        self._backbones = [module for module in method.modules() if isinstance(module, Backbone)]
        # DistributedDataParallel reads this; otherwise it broadcasts every buffer at every step.
        self._ddp_params_and_buffers_to_ignore = [
            f"method.{name}" for name in redundant_buffers(method)
        ]

    def forward(self, batch: Batch, progress: float) -> tuple[Tensor, StepOutput | None]:
        self.recorded = False
        if len(batch.indices) < 2:  # the other images were unreadable; BN needs two
            # Gradients are zero, not None: DistributedDataParallel waits for all of them.
            trained = (p for p in self.parameters() if p.requires_grad)
            return 0 * torch.stack([p.sum() for p in trained]).sum(), None
        with StopsAreErrors():
            for backbone in self._backbones:
                backbone.at_progress(progress)
            output = self._graph and self._graph.step(batch, progress)
            self.recorded = output is not None
            if output is None:
                output = self.method(batch, progress)
        if not (output.loss.requires_grad or self.recorded):
            raise GradientFlowError("the loss has no gradient: it is detached from all parameters")
        return output.loss, output


def redundant_buffers(method: Method) -> list[str]:
    """Return names of buffers that processes need not take from the first one at every step.

    They are BN's statistics, which training passes do not read and checkpoints take from the first
    process; a frozen teacher's, which stay as they are; and a queue of keys, to which every process
    adds the same. All are the same on every process when a stage begins or is resumed.
    """
    kinds = (nn.modules.batchnorm._BatchNorm, FrozenTarget, KeyQueue)
    return [
        f"{prefix}.{name}"
        for prefix, module in method.named_modules()
        if isinstance(module, kinds)
        for name, _ in module.named_buffers()
    ]
