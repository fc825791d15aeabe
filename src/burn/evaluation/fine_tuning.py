"""Fine-tuning: a whole network and a linear layer on it learn from labelled images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from burn.learning.loop import Callback, Learner, Loop
from burn.learning.threads import ThreadChooser, Threads
from burn.runtime.distributed import Processes


@dataclass(frozen=True)
class TuningPlan:
    """Settings of one fine-tuning.

    `factor` takes a step, counted from 0, and the number of steps of an epoch, and returns the
    share of the first learning rates. `class_weights` are factors of the cross-entropy of each
    class's images, float32 (classes,). In the loss the KL divergence from a teacher, if there is
    one, has the weight `kl`, in [0, 1], and the cross-entropy the rest; both softmaxes have the
    temperature, by whose square the divergence is multiplied (Hinton et al., 2015).
    """

    epochs: int
    batch_size: int
    lr: float  # first one of the backbone
    head_lr: float  # first one of the linear layer
    factor: Callable[[int, int], float]
    optimizer: str = "sgd"  # with momentum 0.9, or adam
    weight_decay: float = 0.0  # L2 penalty of all parameters
    drop_last: bool = False  # leave out an incomplete last batch
    label_smoothing: float = 0.0  # share of the target that all classes have in common, in [0, 1)
    class_weights: Tensor | None = None
    kl: float = 0.0
    temperature: float = 1.0


def tuning_loss(scores: Tensor, labels: Tensor, taught: Tensor | None, plan: TuningPlan) -> Tensor:
    """Return (1 - kl) · cross-entropy + kl · T² · KL(teacher || student), averaged over the batch.

    `scores` are the student's and `taught` the teacher's, (batch, classes).
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


class FineTuningLearner(Learner):
    """A network and a linear layer on it that learn from labels.

    BN is in training mode. The precision does not change, so a binary network stays binary.
    `teacher` takes views, uint8 (batch, 3, height, width) on the device of the backbone, and
    returns scores of the classes, without gradients.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Linear,
        plan: TuningPlan,
        *,
        bfloat16: bool = False,
        teacher: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self._plan, self._bfloat16, self._teacher = plan, bfloat16, teacher
        device = next(backbone.parameters()).device
        self.images = 0  # of the last batch
        self.learned = False  # whether a batch had two images or more
        self.loss = self.right = torch.zeros((), device=device)  # of the last such: loss, accuracy
        self.finite = torch.ones((), dtype=torch.bool, device=device)  # whether all losses were

    def forward(self, batch: Batch, progress: float) -> Tensor | None:
        self.images = len(batch.indices)
        if self.images < 2:  # BN needs a batch
            return None
        assert batch.labels is not None
        taught = None
        if self._teacher is not None:
            taught = self._teacher((batch.teacher_views or batch.views)[0])
        view = batch.views[0]
        with torch.autocast(view.device.type, torch.bfloat16, enabled=self._bfloat16):
            features = self.backbone(view)
        scores = self.head(features.float())
        loss = tuning_loss(scores, batch.labels, taught, self._plan)
        self.finite &= torch.isfinite(loss)
        self.loss, self.learned = loss.detach(), True
        self.right = (scores.detach().argmax(dim=1) == batch.labels).float().mean()
        return loss

    def numbers(self) -> dict[str, Any]:
        random = torch.get_rng_state()  # dropout of float networks draws from it
        return {"finite": self.finite, "learned": self.learned, "random": random}

    def load(self, weights: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        super().load(weights, numbers)
        self.finite, self.learned = numbers["finite"].to(self.finite.device), numbers["learned"]
        torch.set_rng_state(numbers["random"])


class Tuner(Callback):
    """One fine-tuning, in place, which can be stopped after a step and resumed.

    Resume files hold its state under this class's name, so the name must stay.
    `transform` draws the views of an image: the student's, and the teacher's if it has its own.
    On a CPU `threads` chooses the number of threads after every step.
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
        self._source, self._threads = source, threads
        self.learner = FineTuningLearner(backbone, head, plan, bfloat16=bfloat16, teacher=teacher)
        device = next(backbone.parameters()).device
        sampler = EpochSampler(len(source), plan.batch_size, seed, drop_last=plan.drop_last)
        loader = TrainLoader(source, transform, sampler, workers, pin=device.type == "cuda")
        epoch = len(sampler)
        self.loop = Loop(
            self.learner,
            loader,
            _optimizer(backbone, head, plan),
            lambda step: plan.factor(step, epoch),
            num_steps=plan.epochs * epoch,
            processes=Processes(device),
        )
        self.unreadable: set[int] = set()  # positions of images

    def train(
        self,
        callbacks: Sequence[Callback] = (),
        restore: Callable[[Loop[FineTuningLearner]], None] | None = None,
    ) -> bool:
        """Train to the end, or until a callback sets `should_stop`; return whether all is finite.

        First `restore` brings the loop into the state to go on from. If loss or weights did not
        stay finite, training ended with the epoch. UserError is raised if too few images can be
        read.
        """
        threads = [] if self._threads is None else [Threads(self._threads)]
        self.loop.callbacks = [self, *threads, *callbacks]
        try:
            if restore is not None:
                restore(self.loop)
            self.learner.train()
            self.loop.run()
        finally:  # the cycle would keep the loader's processes until Python looks for cycles
            self.loop.callbacks = ()
        weights = self.learner.weights().values()
        finite = [self.learner.finite, *(torch.isfinite(tensor).all() for tensor in weights)]
        return bool(torch.stack(finite).all())

    def on_batch_end(self, loop: Loop[FineTuningLearner], batch: Batch) -> None:
        self.unreadable.update(batch.unreadable)

    def on_epoch_end(self, loop: Loop[FineTuningLearner]) -> None:
        if not self.learner.learned and not loop.should_stop:
            raise UserError(f"{self._source.name}: too few of its images can be read to train on")
        if not self.learner.finite:  # read once an epoch, since a GPU is waited for
            loop.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"unreadable": sorted(self.unreadable)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.unreadable = set(state["unreadable"])


def _optimizer(backbone: Backbone, head: nn.Linear, plan: TuningPlan) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": list(backbone.parameters()), "lr": plan.lr},
        {"params": list(head.parameters()), "lr": plan.head_lr},
    ]
    decay = plan.weight_decay
    if plan.optimizer == "adam":
        return torch.optim.Adam(groups, lr=plan.lr, weight_decay=decay)
    return torch.optim.SGD(groups, lr=plan.lr, momentum=0.9, weight_decay=decay)
