"""Settings of `burn finetune`, in a module of its own that does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from burn.core.errors import UserError
from burn.runtime.bounds import require_processes, require_within
from burn.runtime.compute import Compute, Device


@dataclass(frozen=True)
class FinetuneConfig:
    """How a network is fine-tuned.

    Attributes:
        epochs: number of passes over the training images.
        batch_size: number of images of a step.
        lrs: learning rates of the backbone (Adam's, falling as half a cosine) to choose from.
        head_lrs: learning rates of the classifier to choose from. It begins as the linear
            classifier on the frozen features, so it needs little.
        budget: what the choice may cost, as a share of the training after it. Each rate gets as
            many epochs as this allows, at least one, on four fifths of the training images, and is
            compared on the others. Then the whole training takes the best, on all images. A single
            rate costs nothing.
        label_smoothing: share of the target that all classes have in common.
        class_weights: weight of the images of each class in the loss. none weighs all images alike,
            balanced all classes alike, and sqrt lies between: rare classes are found more often,
            frequent ones less.
        teacher: float network whose answers the network learns besides the labels, as for `burn
            pretrain`; its classes are those of a linear classifier that is trained on its features
            first.
        teacher_size: side of its views in pixels (default: that of pretraining; otherwise its own
            if it is a checkpoint of burn's, and twice the network's, up to 224).
        kl: weight of the KL divergence from the teacher; the labels have the rest.
        temperature: temperature of both softmaxes in it.
        crop_scale: least and greatest share of an image's area in a random crop.
        flip: probability of a horizontal flip; 0 for digits and signs.
        jitter: probability of colour jitter, as strong as in pretraining.
    """

    epochs: int = 30
    batch_size: int = 64
    lrs: tuple[float, ...] = (5e-4, 2e-3, 8e-3)
    head_lrs: tuple[float, ...] = (1e-3,)
    budget: float = 0.5
    label_smoothing: float = 0.1
    class_weights: Literal["none", "sqrt", "balanced"] = "none"
    teacher: str | None = None
    teacher_size: int | None = None
    kl: float = 0.7
    temperature: float = 2.0
    crop_scale: tuple[float, float] = (0.4, 1.0)
    flip: float = 0.5
    jitter: float = 0.0

    def check(self, *, resumed: bool = False) -> None:
        """Check all values.

        An earlier version may have begun a run that goes on (`resumed`) with settings of a teacher
        and no teacher.
        """
        require_within(1, 10**6, epochs=self.epochs)
        require_within(2, 2**20, batch_size=self.batch_size)
        for name in ("lrs", "head_lrs"):
            values, option = getattr(self, name), f"--{name}".replace("_", "-")
            if not 1 <= len(values) <= 100 or not all(0 < value <= 1e3 for value in values):
                raise UserError(f"{option} {list(values)}: give 1 to 100 numbers in (0, 1000]")
            if len(set(values)) < len(values):
                raise UserError(f"{option} {list(values)}: a rate is there twice")
        require_within(0, 100, budget=self.budget)
        require_within(0, 0.9, label_smoothing=self.label_smoothing)
        require_within(8, 4096, teacher_size=self.teacher_size)
        if self.teacher is None and self.teacher_size is not None:
            raise UserError("--teacher-size without --teacher: give both, or leave it out")
        require_within(0, 1, kl=self.kl, flip=self.flip, jitter=self.jitter)
        require_within(0.1, 100, temperature=self.temperature)
        usual = FinetuneConfig()
        for name in ("kl", "temperature"):
            given = getattr(self, name) != getattr(usual, name)
            if self.teacher is None and given and not resumed:
                raise UserError(f"--{name} without --teacher: give both, or leave it out")
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise UserError(f"--crop-scale [{low}, {high}] is not an interval in (0, 1]")

    @property
    def trials(self) -> int:
        """The number of trainings that choose the learning rates; 0 where there is no choice."""
        number = len(self.lrs) + len(self.head_lrs) - 1
        return number if number > 1 else 0

    @property
    def trial_epochs(self) -> int:
        """The number of epochs of each of these, by the budget."""
        return max(1, math.floor(self.budget * self.epochs / max(1, self.trials)))


@dataclass(frozen=True)
class FinetuneRequest:
    """What to fine-tune, on which images, where and how.

    Attributes:
        checkpoint: the network to begin from.
        train: labelled images to learn from.
        test: labelled images to test on, once, at the end.
        out: folder for the run, a new one.
        random_init: begin from random weights of the same network, for comparison.
        seed: random seed.
        resume: continue the run in `out` where it stopped, or start it.
        overwrite: restart the run in `out`.
        device: where the network runs; auto is the GPU, if there is one.
        compute: number format of training; auto is bfloat16 if the hardware is faster in it.
        workers: data-loader workers (default: by the device).
        save_every: minutes between two resume files.
    """

    checkpoint: str
    train: str = ""
    test: str = ""
    out: str = ""
    random_init: bool = False
    seed: int = 0
    resume: bool = False
    overwrite: bool = False
    device: Device = "auto"
    compute: Compute = "auto"
    workers: int | None = None
    save_every: float = 5.0

    def check(self) -> None:
        for name in ("train", "test"):
            if not getattr(self, name):
                raise UserError(f"give --{name}: labelled images")
        if not self.out:
            raise UserError("give --out, a folder for the run")
        if self.resume and self.overwrite:
            raise UserError("--resume and --overwrite contradict each other: give one")
        require_within(0, 2**32 - 1, seed=self.seed)
        require_processes(0, workers=self.workers)
        require_within(0, 1e6, save_every=self.save_every)


def epochs_in_words(number: int) -> str:
    """Return "1 epoch", "30 epochs"."""
    return f"{number:,} epoch{'' if number == 1 else 's'}"
