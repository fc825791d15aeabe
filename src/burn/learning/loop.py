"""The training loop, what it trains, and the callbacks that it tells of what happens.

Pretraining, fine-tuning, semi and detection train in it. It knows no file and prints nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from burn.runtime.distributed import Processes

LearnerT = TypeVar("LearnerT", bound="Learner", covariant=True)


class Loader(Protocol):
    """Micro-batches, each with a method `to(device)`.

    Each iteration yields those of one epoch, one or more; the first one after `load_state_dict`
    yields the rest of it.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Learner(nn.Module):
    """Networks and their loss. DistributedDataParallel wraps it, so `forward` is a whole pass."""

    def forward(self, batch: Any, progress: float) -> Tensor | None:
        """Return the loss of a micro-batch that is on the device, a scalar.

        `progress` is the share of the optimizer steps that have been done, in [0, 1]. A single
        process may return None, for a batch that has too few images to learn from.
        """
        raise NotImplementedError

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the last pass."""
        loss.backward()

    def after_step(self, progress: float) -> None:
        """Called after an optimizer step, with the progress before it."""

    def weights(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed training needs."""
        return self.state_dict()

    def numbers(self) -> dict[str, Any]:
        """Return what else a resumed training needs, as torch stores it safely."""
        return {}

    def load(self, weights: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Restore what `weights` and `numbers` returned."""
        self.load_state_dict(dict(weights))


class Callback:
    """What the loop tells of its events; each method does nothing unless overridden.

    All processes call theirs in the same order, so that a callback may communicate with those of
    the other processes, if every process has it.
    """

    def on_start(self, loop: Loop[Any]) -> None:
        """Called before the first batch, and when a training is resumed."""

    def on_epoch_start(self, loop: Loop[Any]) -> None:
        """Called before the first batch of an epoch, and of the rest of one that is resumed."""

    def on_batch_start(self, loop: Loop[Any], batch: Any) -> None:
        """Called when a micro-batch is on the device."""

    def on_before_backward(self, loop: Loop[Any]) -> None:
        """Called between the forward and the backward pass of a micro-batch."""

    def on_after_backward(self, loop: Loop[Any]) -> None:
        """Called after the backward pass of a micro-batch."""

    def on_before_step(self, loop: Loop[Any]) -> None:
        """Called when the gradients of an optimizer step are complete."""

    def on_batch_end(self, loop: Loop[Any], batch: Any) -> None:
        """Called after a micro-batch, and after the optimizer step that it may complete."""

    def on_epoch_end(self, loop: Loop[Any]) -> None:
        """Called after the last batch of an epoch, and of a training that ends or is stopped."""

    def on_end(self, loop: Loop[Any]) -> None:
        """Called when the loop ends without an error."""

    def on_failure(self, loop: Loop[Any]) -> None:
        """Called when an exception ends the loop."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs of this callback, as torch stores it safely."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class Loop(Generic[LearnerT]):
    """The training loop.

    `factor` is the share, at a step counted from 0, of the first learning rates, which the
    optimizer's groups hold. `parts` micro-batches make an optimizer step; the last step of an epoch
    may have fewer. Each loss is divided by the number of micro-batches in its step.
    """

    def __init__(
        self,
        learner: LearnerT,
        loader: Loader,
        optimizer: torch.optim.Optimizer,
        factor: Callable[[int], float],
        *,
        num_steps: int,
        parts: int = 1,
        processes: Processes,
    ) -> None:
        self.learner, self.optimizer, self._factor = learner, optimizer, factor
        self.num_steps, self._parts, self._loader = num_steps, parts, loader
        self.processes, self.device = processes, processes.device
        self.callbacks: Sequence[Callback] = ()  # told of the events, in this order
        self.step = self.batches = 0  # optimizer steps, and micro-batches, so far
        self.learning_rate = 0.0  # of the optimizer's first group in the last step
        self.stepped = False  # whether the last micro-batch completed an optimizer step
        self.should_stop = False  # set by a callback to end the loop after this micro-batch
        self.replanned_at: list[int] = []  # steps from which a longer training was planned anew
        self._network = processes.wrap(learner)
        self._first_rates = [group["lr"] for group in optimizer.param_groups]
        self._set_learning_rates()

    @property
    def progress(self) -> float:
        """Share of the optimizer steps that have been done, in [0, 1]."""
        return min(1.0, self.step / self.num_steps)

    @property
    def epoch(self) -> int:
        """The epoch, from 0, of the last micro-batch; 0 before the first one."""
        return max(0, self.batches - 1) // len(self._loader)

    @property
    def ends_epoch(self) -> bool:
        """Whether the last optimizer step was the last one of an epoch or of the training."""
        of_epoch = self.batches % len(self._loader) == 0
        return self.step > 0 and (of_epoch or self.step == self.num_steps)

    def is_looked_at(self, step: int, every: int) -> bool:
        """Return whether monitors write at a step: every `every` steps, at the first and last."""
        return step % every == 0 or step in (1, self.num_steps)

    def run(self) -> None:
        """Train to the last step, or until a callback sets `should_stop`.

        What a pass or a callback raises is raised again once the callbacks were told.
        """
        with torch.enable_grad(), warnings.catch_warnings():
            # DistributedDataParallel warns of 1×1 kernels in channels-last layout, but copies none.
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            try:
                self._tell("on_start")
                while not self._done:
                    self._run_epoch()
                self._tell("on_end")
            except BaseException:
                self._tell("on_failure")
                raise

    @property
    def _done(self) -> bool:
        return self.should_stop or self.step >= self.num_steps

    def _run_epoch(self) -> None:
        self._tell("on_epoch_start")
        before = self.batches
        for batch in self._loader:
            self.advance(batch)
            if self._done:
                break
        if self.batches == before:
            raise ValueError("the loader yields no batch: each iteration must yield an epoch's")
        self._tell("on_epoch_end")

    def advance(self, batch: Any) -> None:
        """Train on one micro-batch of this process, and do the optimizer step that it completes."""
        batch = batch.to(self.device)
        self._tell("on_batch_start", batch)
        position = self.batches % len(self._loader)
        first = position - position % self._parts  # of the micro-batches of this step
        count = min(self._parts, len(self._loader) - first)
        last = position + 1 == first + count
        with nullcontext() if last else self.processes.without_exchange(self._network):
            loss = self._network(batch, self.progress)
            if position == first:
                self.optimizer.zero_grad()
            self._tell("on_before_backward")
            if loss is not None:
                self.learner.backward(loss / count if count > 1 else loss)
            self._tell("on_after_backward")
        if last:
            self._tell("on_before_step")
            self._step()
        self.stepped, self.batches = last, self.batches + 1
        self._tell("on_batch_end", batch)

    def _step(self) -> None:
        progress = self.progress
        self.learning_rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.learner.after_step(progress)
        self.step += 1
        self._set_learning_rates()

    def _set_learning_rates(self) -> None:
        """Set the learning rates of the next step, which a callback sees after a step."""
        factor = self._factor(self.step)
        for group, first in zip(self.optimizer.param_groups, self._first_rates, strict=True):
            group["lr"] = first * factor

    def _tell(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed training needs, as torch stores it safely.

        Every process must call this, since callbacks may communicate.
        """
        states_by_name: dict[str, Any] = {}
        for callback in self.callbacks:
            if state := callback.state_dict():
                name = type(callback).__name__
                assert name not in states_by_name, "two callbacks of one name"
                states_by_name[name] = state
        # Some names are those of files that Lightning's Trainer wrote, which are read, too.
        return {
            "state_dict": self.learner.weights(),
            "learner": self.learner.numbers(),
            "loader": self._loader.state_dict(),
            "optimizer_states": [self.optimizer.state_dict()],
            "callbacks": states_by_name,
            "global_step": self.step,
            "batches": self.batches,
            "num_steps": self.num_steps,
            "replanned_at": self.replanned_at,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned, perhaps of a shorter training.

        UserError says that the loader refuses its state. LookupError, RuntimeError, TypeError and
        ValueError say that it is that of something else; the loop must not be used then.
        """
        step, batches = state["global_step"], state["batches"]
        if not (type(step) is type(batches) is int and 0 < step <= min(batches, self.num_steps)):
            raise ValueError(f"step {step}, batch {batches}")
        for name, tensor in self.learner.weights().items():
            if state["state_dict"][name].dtype != tensor.dtype:
                raise TypeError(name)
        self._loader.load_state_dict(state["loader"])
        self.learner.load(state["state_dict"], state["learner"])
        self.optimizer.load_state_dict(state["optimizer_states"][0])
        for parameter, held in self.optimizer.state.items():
            for tensor in filter(torch.is_tensor, held.values()):
                if tensor.ndim and tensor.shape != parameter.shape:  # fused optimizers would crash
                    raise ValueError(f"{tuple(tensor.shape)} for {tuple(parameter.shape)}")
        self.step, self.batches = step, batches
        self.replanned_at = list(state.get("replanned_at", []))
        if state.get("num_steps", self.num_steps) != self.num_steps:
            self.replanned_at.append(self.step)
        self._set_learning_rates()  # the optimizer has those of the plan of then
        for callback in self.callbacks:
            name = type(callback).__name__
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])
