"""Settings of the methods, separate from their computation so that they need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from burn.core.errors import UserError
from burn.core.schedule import LambdaShape
from burn.core.types import TeacherBatchNorm
from burn.runtime.bounds import require_within

KlDirection = Literal["target_first", "student_first"]
Similarity = Literal["cosine", "l1", "l2", "normalized_mse"]

_QUEUE = (1, 2**24)
_CONTRAST_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.001, 1000),
    "queue": _QUEUE,
    "negatives": _QUEUE,
    "momentum": (0, 1),
    "hidden": (1, 2**16),
    "dimension": (1, 2**16),
    "shuffle_groups": (1, 2**10),
    "contrastive": (0, 1000),
}
_SWAV_RANGES: dict[str, tuple[float, float]] = {
    "small_crops": (0, 64),
    "small_size": (8, 4096),
    "prototypes": (2, 2**20),
    "temperature": (1e-3, 1e3),
    # exp(±1/ε), and its share of all prototypes and embeddings, must fit float32: e^-67 / 10^8.
    "epsilon": (0.03, 1e3),
    "sinkhorn_iterations": (1, 1000),
    "queue": (0, 2**24),
    "queue_from": (0, 1),
    "hidden": (1, 2**16),
    "dimension": (1, 2**16),
    "freeze_prototypes": (0, 1),
}


def _check_ranges(method: str, config: Any) -> None:
    """Raise UserError naming the first field of a contrastive config that is out of range."""
    for name, value in vars(config).items():
        require_within(*_CONTRAST_RANGES[name], f"{method}.", **{name: value})


@dataclass(frozen=True)
class BurnConfig:
    """BURN's loss, (1 - λ)·KL + λ·FS, and its classifiers.

    Attributes:
        classifier: the teacher's classifier is trained with the student (joint, the paper), stays
            random (frozen), or is left out, with the student's, so that the loss is FS alone
            (none).
        classifier_lr: factor of the learning rate for a joint teacher's classifier.
        carry_classifier: stage 2 begins with the joint teacher's classifier of stage 1, as in the
            paper (section 3.4); false: with random weights again.
        num_classes: number of outputs of both classifiers.
        hidden: hidden width of both classifiers.
        temperature: temperature of both softmaxes.
        kl_direction: KL(teacher || student), or KL(student || teacher) as in the paper's algorithm.
        similarity: distance between features; normalized_mse is 2·cosine, as in the release.
        similarity_of: what FS compares; the release compares the outputs of the classifiers.
        standardize: FS compares with standardized features of the teacher: their mean over the
            images so far is subtracted, and each is divided by its standard deviation, so that all
            of them count.
        projection: network from the student's features to the teacher's, in training alone: linear
            where their widths differ, or mlp, a hidden layer of `projection_hidden` with BN.
        projection_hidden: width of the mlp's hidden layer.
        lam: shape of λ(t).
        lam_start: λ at the start of a stage.
        lam_end: λ at the end of a stage (and throughout, if constant).
        views: both networks see the same view (the paper), or two views crossed (the release).
        teacher_batch_norm: whether the teacher normalizes by running statistics or by each batch's.
    """

    classifier: Literal["joint", "frozen", "none"] = "frozen"
    classifier_lr: float = 1.0
    carry_classifier: bool = True
    num_classes: int = 2000
    hidden: int = 2000
    temperature: float = 0.2
    kl_direction: KlDirection = "target_first"
    similarity: Similarity = "cosine"
    similarity_of: Literal["features", "logits"] = "features"
    standardize: bool = False
    projection: Literal["linear", "mlp"] = "linear"
    projection_hidden: int = 1024
    lam: LambdaShape = "cosine"
    lam_start: float = 0.9
    lam_end: float = 0.7
    views: Literal["same", "cross"] = "same"
    teacher_batch_norm: TeacherBatchNorm = "running"

    def check(self) -> None:
        """Check that the values are in range and do not contradict each other.

        Raises:
            UserError: One does not; the message names it.
        """
        for name in ("lam_start", "lam_end"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"burn.{name} {getattr(self, name)} is not in [0, 1]")
        if not 1e-3 <= self.temperature <= 1e3:
            raise UserError(f"burn.temperature {self.temperature} is not in 0.001 … 1000")
        require_within(2, 2**16, "burn.", num_classes=self.num_classes, hidden=self.hidden)
        require_within(1, 2**16, "burn.", projection_hidden=self.projection_hidden)
        if self.similarity_of == "logits" and (self.standardize or self.projection != "linear"):
            raise UserError("burn.standardize and burn.projection need burn.similarity_of features")
        if self.classifier_lr <= 0:
            raise UserError(f"burn.classifier_lr {self.classifier_lr}: use burn.classifier frozen")
        if self.classifier_lr != 1 and self.classifier != "joint":
            raise UserError("burn.classifier_lr needs burn.classifier joint: only that one learns")
        if not self.carry_classifier and self.classifier != "joint":
            raise UserError(
                "burn.carry_classifier false needs burn.classifier joint: a frozen one is the same "
                "in both stages"
            )
        if self.classifier == "none" and self.similarity_of == "logits":
            raise UserError("burn.similarity_of logits needs a classifier: set burn.classifier")


@dataclass(frozen=True)
class ByolConfig:
    """BYOL's momentum and heads.

    Attributes:
        momentum: momentum of the target at the start of a stage; it rises to 1 by half a cosine.
        hidden: hidden width of the projection head and of the predictor.
        dimension: output width of both.
    """

    momentum: float = 0.996
    hidden: int = 4096
    dimension: int = 256

    def check(self) -> None:
        """Raise UserError for values out of range."""
        require_within(0, 1, "byol.", momentum=self.momentum)
        require_within(1, 2**16, "byol.", hidden=self.hidden, dimension=self.dimension)


@dataclass(frozen=True)
class InfominConfig:
    """InfoMin's head, negatives and momentum.

    Attributes:
        temperature: temperature of the contrastive softmax.
        negatives: number of negatives, the newest keys of earlier batches.
        momentum: momentum of the momentum encoder, which follows after every step.
        hidden: hidden width of the projection head. Default: the backbone's width.
        dimension: output width of the projection head.
        shuffle_groups: parts into which each process's batch is cut for BN, queries in order and
            keys shuffled, so that BN does not tell which key belongs to which query.
    """

    temperature: float = 0.15
    negatives: int = 65536
    momentum: float = 0.999
    hidden: int | None = None
    dimension: int = 128
    shuffle_groups: int = 8

    def check(self) -> None:
        """Raise UserError for values out of range."""
        _check_ranges("infomin", self)


@dataclass(frozen=True)
class Mocov2Config:
    """MoCo v2's head, queue and momentum.

    Attributes:
        temperature: temperature of the contrastive softmax.
        queue: number of negatives, the newest keys of earlier batches.
        momentum: momentum of the momentum encoder, which follows after every step.
        hidden: hidden width of the projection head. Default: the backbone's width.
        dimension: output width of the projection head.
        shuffle_groups: parts into which each process's batch is cut for BN, queries in order and
            keys shuffled, so that BN does not tell which key belongs to which query.
    """

    temperature: float = 0.2
    queue: int = 65536
    momentum: float = 0.999
    hidden: int | None = None
    dimension: int = 128
    shuffle_groups: int = 8

    def check(self) -> None:
        """Raise UserError for values out of range."""
        _check_ranges("mocov2", self)


@dataclass(frozen=True)
class S2bnnConfig:
    """S2-BNN's distillation, and MoCo v2's loss beside it where that has a weight.

    Attributes:
        temperature: temperature of all softmaxes.
        hidden: hidden width of the projection head. Default: the backbone's width.
        contrastive: weight of MoCo v2's loss, added to the distillation; the settings below are
            those of MoCo v2's loss.
        queue: number of negatives, the newest keys of earlier batches.
        momentum: momentum of the momentum encoder, which follows after every step.
        shuffle_groups: parts into which each process's batch is cut for BN, queries in order and
            keys shuffled, so that BN does not tell which key belongs to which query.
    """

    temperature: float = 0.2
    hidden: int | None = None
    contrastive: float = 0.0
    queue: int = 65536
    momentum: float = 0.999
    shuffle_groups: int = 8

    def check(self) -> None:
        """Raise UserError for values out of range."""
        _check_ranges("s2bnn", self)


@dataclass(frozen=True)
class SimclrConfig:
    """SimCLR's head and temperature.

    Attributes:
        temperature: temperature of the contrastive softmax.
        hidden: hidden width of the projection head. Default: the backbone's width.
        dimension: output width of the projection head.
        layers: number of layers of the projection head: 3 as in version 2, 2 as in version 1.
    """

    temperature: float = 0.5
    hidden: int | None = None
    dimension: int = 128
    layers: Literal[2, 3] = 3

    def check(self) -> None:
        """Raise UserError for values out of range."""
        require_within(1e-3, 1e3, "simclr.", temperature=self.temperature)
        require_within(1, 2**16, "simclr.", hidden=self.hidden, dimension=self.dimension)
        if self.layers not in (2, 3):
            raise UserError(f"simclr.layers {self.layers} is not 2 or 3")


@dataclass(frozen=True)
class SwavConfig:
    """SwAV's crops, prototypes and queue.

    Attributes:
        small_crops: number of small views of an image, besides two of full size.
        small_size: height and width of the small views in pixels.
        small_scale: smallest and largest share of the image's area that a small view shows.
        prototypes: number of clusters.
        temperature: temperature of the softmax that predicts clusters.
        epsilon: smoothness of the assignment to clusters by Sinkhorn's algorithm.
        sinkhorn_iterations: number of iterations of Sinkhorn's algorithm.
        queue: number of embeddings of earlier images, for each view of full size, that take part in
            the assignment. All processes share them, so it is a multiple of the number of
            processes; 0 for large batches.
        queue_from: share of a stage after which the queue starts to fill; it is used once it is
            full.
        hidden: hidden width of the projection head.
        dimension: output width of the projection head.
        freeze_prototypes: share of a stage during which the prototypes stay as they are.
    """

    small_crops: int = 6
    small_size: int = 96
    small_scale: tuple[float, float] = (0.05, 0.14)
    prototypes: int = 3000
    temperature: float = 0.1
    epsilon: float = 0.05
    sinkhorn_iterations: int = 3
    queue: int = 3840
    queue_from: float = 0.075  # 15 of 200 epochs, as the paper
    hidden: int = 2048
    dimension: int = 128
    freeze_prototypes: float = 0.005  # 1 of 200 epochs, as the paper

    def check(self) -> None:
        """Raise UserError for values out of range."""
        for name, (low, high) in _SWAV_RANGES.items():
            require_within(low, high, "swav.", **{name: getattr(self, name)})
        if not 0 < self.small_scale[0] <= self.small_scale[1] <= 1:
            raise UserError(
                f"swav.small_scale {list(self.small_scale)} is not a range of shares of the "
                "image's area, such as [0.05, 0.14]"
            )
