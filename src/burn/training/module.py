"""The LightningModule of pretraining, which trains any method."""

from __future__ import annotations

from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
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


class PretrainModule(L.LightningModule):
    """The LightningModule of one stage of pretraining.

    Args:
        method: The method that is trained.
        recipe: Its recipe.
        num_steps: Number of optimizer steps of the stage.
        steps_per_epoch: Number of optimizer steps of an epoch.
        processes: The processes that share the batch.
        graph: Runs the steps that can be recorded and replayed; None to run each as it is.

    Attributes:
        output: The method's output for the last micro-batch, or None if that had too few images.
        batch: The last micro-batch.
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
        num_steps: int,
        steps_per_epoch: int,
        processes: Processes,
        graph: StepGraph | None = None,
    ) -> None:
        super().__init__()
        self._graph, self._has_gradients = graph, False
        self.method = method
        self.recipe = recipe
        self.processes = processes
        self.num_steps, self.steps_per_epoch = num_steps, steps_per_epoch
        # Momentum networks as well: what they compute must be what they average.
        self._backbones = [one for one in method.modules() if isinstance(one, Backbone)]
        self.strict_loading = False  # a resume file does not contain the frozen teacher
        self.output: StepOutput | None = None
        self.batch: Batch | None = None
        self.learned = self.learned_in_step = False
        self.replanned_at: list[int] = []
        self.terms_of_step: dict[str, Tensor] = {}
        # DistributedDataParallel reads this; otherwise it broadcasts every buffer at every step.
        self._ddp_params_and_buffers_to_ignore = [
            f"method.{name}" for name in redundant_buffers(method)
        ]

    @property
    def progress(self) -> float:
        """Share of the stage's optimizer steps that have been done, in [0, 1)."""
        return min(1.0, self.global_step / self.num_steps)

    @property
    def ends_epoch(self) -> bool:
        """Whether the last optimizer step was the last one of an epoch or of the stage."""
        step = self.global_step
        return step > 0 and (step % self.steps_per_epoch == 0 or step == self.num_steps)

    def is_looked_at(self, step: int, every: int) -> bool:
        """Return whether monitors write at a step: every `every` steps, at the first and last."""
        return step % every == 0 or step in (1, self.num_steps)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        batch = self._as_large_as_every_process_has(batch)
        self.batch, self.output, self._has_gradients = batch, None, False
        if len(batch.indices) < 2:  # the other images were unreadable; BN needs two
            # Gradients are zero, not None: DistributedDataParallel waits for all of them.
            trained = (p for p in self.parameters() if p.requires_grad)
            return 0 * torch.stack([p.sum() for p in trained]).sum()
        with StopsAreErrors():
            for backbone in self._backbones:
                backbone.at_progress(self.progress)
            output = self._graph and self._graph.step(batch, self.progress)
            self._has_gradients = output is not None
            if output is None:
                output = cast(StepOutput, self.method(batch, self.progress))
        if not (output.loss.requires_grad or self._has_gradients):
            raise GradientFlowError("the loss has no gradient: it is detached from all parameters")
        self.output, self.learned_in_step = output, True
        for name, term in {"loss": output.loss.detach(), **output.terms}.items():
            self.terms_of_step[name] = self.terms_of_step.get(name, 0) + term
        return output.loss

    def backward(self, loss: Tensor, *arguments: Any, **named: Any) -> None:
        if self._has_gradients and self._graph is not None:
            self._graph.give_gradients()  # which Lightning has set to None since the step
        else:
            super().backward(loss, *arguments, **named)

    def _as_large_as_every_process_has(self, batch: Batch) -> Batch:
        """Drop images so that every process has the same number of them.

        Unreadable images make the batches of processes differ in size. Losses over all processes'
        images need the same number from each, and gradients are averaged as if it were the same.
        """
        if self.processes.count == 1:
            return batch
        fewest = -int(self.processes.all_reduce_max(-len(batch.indices)))
        if fewest == len(batch.indices):
            return batch
        return batch.first(fewest)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optim = self.recipe.optim
        optimizer = build_optimizer(self.method.parts(), optim)
        warmup = min(round(optim.warmup_epochs * self.steps_per_epoch), self.num_steps)

        def factor(step: int) -> float:
            return learning_rate_factor(step, self.num_steps, warmup, optim.schedule)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        # A resume file holds the rates of the schedule that was planned when it was written.
        schedule = self.lr_schedulers()
        assert isinstance(schedule, torch.optim.lr_scheduler.LambdaLR)
        for group, base, factor in zip(
            schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
        ):
            group["lr"] = base * factor(schedule.last_epoch)

    def optimizer_step(self, *arguments: Any, **named: Any) -> None:
        progress = self.progress
        super().optimizer_step(*arguments, **named)
        with StopsAreErrors():
            self.method.after_step(progress)
        self.learned = self.learned or self.learned_in_step
        self.learned_in_step = False
        self.terms_of_step = {}

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        return batch.to(device)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["learned"] = self.learned
        checkpoint["num_steps"], checkpoint["replanned_at"] = self.num_steps, self.replanned_at
        checkpoint["state_dict"] = {
            name: tensor for name, tensor in state.items() if not name.startswith("method.teacher.")
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.learned = checkpoint.get("learned", True)
        self.replanned_at = checkpoint.get("replanned_at", [])
        if checkpoint.get("num_steps", self.num_steps) != self.num_steps:
            self.replanned_at = [*self.replanned_at, checkpoint["global_step"]]


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
