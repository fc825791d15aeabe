"""The loop of fine-tuning: a whole network and a linear layer on it learn from labelled images."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.core.errors import UserError
from burn.core.types import Batch
from burn.data.base import Source
from burn.data.loader import EpochSampler, TrainLoader, Transform
from burn.runtime.threads import ThreadChooser


@dataclass(frozen=True)
class TuningPlan:
    """Settings of one fine-tuning.

    Attributes:
        epochs: Number of passes over the images.
        batch_size: Images of a step.
        lr: First learning rate of the backbone.
        head_lr: First learning rate of the linear layer.
        factor: Share of the first learning rates at a step, counted from 0; its second argument is
            the number of steps of an epoch.
        optimizer: sgd with momentum 0.9, or adam.
        weight_decay: L2 penalty of all parameters.
        drop_last: Whether an incomplete last batch is left out.
        label_smoothing: Share of the target that all classes have in common, in [0, 1).
        class_weights: Factor of the cross-entropy of the images of each class, float32 (classes,),
            or None.
        kl: Weight of the KL divergence from the teacher in the loss, in [0, 1]; the cross-entropy
            has the rest. Without a teacher it has no effect.
        temperature: Temperature of both softmaxes in the KL divergence, which is multiplied by its
            square (Hinton et al., 2015).
    """

    epochs: int
    batch_size: int
    lr: float
    head_lr: float
    factor: Callable[[int, int], float]
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    drop_last: bool = False
    label_smoothing: float = 0.0
    class_weights: Tensor | None = None
    kl: float = 0.0
    temperature: float = 1.0


def tuning_loss(scores: Tensor, labels: Tensor, taught: Tensor | None, plan: TuningPlan) -> Tensor:
    """Return (1 - kl) · cross-entropy + kl · T² · KL(teacher || student), averaged over the batch.

    Args:
        scores: Scores of the student, (batch, classes).
        labels: int64 (batch,).
        taught: Scores of the teacher, (batch, classes), or None.
        plan: The weights.
    """
    smoothing = plan.label_smoothing
    if plan.class_weights is None:
        loss = F.cross_entropy(scores, labels, label_smoothing=smoothing)
    else:
        each = F.cross_entropy(scores, labels, label_smoothing=smoothing, reduction="none")
        loss = (plan.class_weights[labels] * each).mean()
    if taught is None:
        return loss
    student, teacher = (F.log_softmax(s / plan.temperature, dim=1) for s in (scores, taught))
    kl = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return (1 - plan.kl) * loss + plan.kl * plan.temperature**2 * kl


class Tuner:
    """One fine-tuning, which can be stopped after a step and resumed.

    BN is in training mode. The precision does not change, so a binary network stays binary.

    Args:
        backbone: The backbone, which is trained in place.
        head: A linear layer on its features, which is trained in place.
        source: The images, each with a label.
        transform: Draws the views of an image: the student's, and the teacher's if it has its own.
        plan: The settings.
        seed: The random seed of the order of the images.
        workers: Number of data-loader workers.
        bfloat16: Run the backbone under autocast.
        teacher: Function from views, uint8 (batch, 3, height, width) on the device of the backbone,
            to scores of the classes, without gradients; or None.
        threads: Chooses the number of threads after every step, on a CPU; or None.

    Attributes:
        steps: Number of optimizer steps so far.
        num_steps: Number of all steps if all images can be read.
        images: Number of images of the last step.
        loss: Loss of the last step.
        right: Share of the last step's images whose label has the highest score.
        unreadable: Positions of the images that could not be read so far.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Linear,
        source: Source,
        transform: Transform,
        plan: TuningPlan,
        *,
        seed: int,
        workers: int,
        bfloat16: bool = False,
        teacher: Callable[[Tensor], Tensor] | None = None,
        threads: ThreadChooser | None = None,
    ) -> None:
        self.backbone, self.head, self._plan = backbone, head, plan
        self._source, self._teacher, self._bfloat16 = source, teacher, bfloat16
        self._threads = threads
        self._device = next(backbone.parameters()).device
        self._optimizer = self._build_optimizer()
        sampler = EpochSampler(len(source), plan.batch_size, seed, drop_last=plan.drop_last)
        pin = self._device.type == "cuda"
        self._loader = TrainLoader(source, transform, sampler, workers, pin=pin)
        self._per_epoch = len(sampler)
        self.num_steps = plan.epochs * self._per_epoch
        self.steps = self._batches = self.images = 0
        self.loss = self.right = torch.zeros((), device=self._device)
        self.unreadable: set[int] = set()
        self._finite = torch.ones((), dtype=torch.bool, device=self._device)

    def _build_optimizer(self) -> torch.optim.Optimizer:
        plan = self._plan
        groups: list[dict[str, Any]] = [
            {"params": list(self.backbone.parameters()), "first_lr": plan.lr},
            {"params": list(self.head.parameters()), "first_lr": plan.head_lr},
        ]
        decay = plan.weight_decay
        if plan.optimizer == "adam":
            return torch.optim.Adam(groups, lr=plan.lr, weight_decay=decay)
        return torch.optim.SGD(groups, lr=plan.lr, momentum=0.9, weight_decay=decay)

    def train(
        self,
        on_step: Callable[[], None] = lambda: None,
        on_epoch: Callable[[], None] = lambda: None,
    ) -> bool:
        """Train to the end.

        Args:
            on_step: Called after every step; what it raises ends the training after a whole step,
                and `state_dict` is then the state to resume from.
            on_epoch: Called after every epoch.

        Returns:
            Whether loss and weights stayed finite; otherwise training ended with the epoch.

        Raises:
            UserError: Too few images can be read.
        """
        self.backbone.train()
        if self._threads is None:
            return self._train(on_step, on_epoch)
        try:
            torch.set_num_threads(self._threads.threads)
            return self._train(on_step, on_epoch)
        finally:
            torch.set_num_threads(self._threads.most)

    def _train(self, on_step: Callable[[], None], on_epoch: Callable[[], None]) -> bool:
        last: float | None = None  # the first batch also starts workers
        for _ in range(self.epoch, self._plan.epochs):
            for batch in self._loader:
                factor = self._plan.factor(self._batches, self._per_epoch)
                self._batches += 1
                self.unreadable.update(batch.unreadable)
                if not batch.views or len(batch.indices) < 2:  # BN needs a batch
                    continue
                self._step(batch, factor)
                if self._threads is not None:
                    now = time.monotonic()
                    self._threads.step(len(batch.indices), None if last is None else now - last)
                    torch.set_num_threads(self._threads.threads)
                    last = now
                on_step()
            if not self.steps:
                raise UserError(
                    f"{self._source.name}: too few of its images can be read to train on"
                )
            if not self._finite:  # read once an epoch, since a GPU is waited for
                return False
            on_epoch()
        state = (*self.backbone.state_dict().values(), *self.head.state_dict().values())
        return bool(torch.stack([torch.isfinite(tensor).all() for tensor in state]).all())

    @property
    def epoch(self) -> int:
        """The epoch, counted from 0, that the next batch belongs to."""
        return self._batches // self._per_epoch

    @property
    def learning_rate(self) -> float:
        """The backbone's learning rate at the last step."""
        return self._optimizer.param_groups[0]["lr"]

    def _step(self, batch: Batch, factor: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = group["first_lr"] * factor
        batch = batch.to(self._device)
        assert batch.labels is not None
        taught = None
        if self._teacher is not None:
            taught = self._teacher((batch.teacher_views or batch.views)[0])
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bfloat16):
            features = self.backbone(batch.views[0])
        scores = self.head(features.float())
        loss = tuning_loss(scores, batch.labels, taught, self._plan)
        self._finite &= torch.isfinite(loss)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self.steps, self.images = self.steps + 1, len(batch.indices)
        self.loss = loss.detach()
        self.right = (scores.detach().argmax(dim=1) == batch.labels).float().mean()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next steps follow from."""
        return {
            "backbone": self.backbone.state_dict(),
            "head": self.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "loader": self._loader.state_dict(),
            "counts": {"steps": self.steps, "batches": self._batches},
            "unreadable": sorted(self.unreadable),
            "finite": self._finite,
            "random": torch.get_rng_state(),  # dropout of float networks
            "threads": None if self._threads is None else self._threads.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.backbone.load_state_dict(state["backbone"])
        self.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._loader.load_state_dict(state["loader"])
        self.steps, self._batches = state["counts"]["steps"], state["counts"]["batches"]
        self.unreadable = set(state["unreadable"])
        self._finite = state["finite"].to(self._device)
        torch.set_rng_state(state["random"])
        if self._threads is not None and state.get("threads"):
            self._threads.load_state_dict(state["threads"])
