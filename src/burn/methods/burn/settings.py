"""Settings of BURN, and what is known of it before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from burn.core.errors import UserError
from burn.core.schedule import LambdaShape
from burn.core.types import TeacherBatchNorm
from burn.methods.entries import MethodEntry, add_method
from burn.runtime.bounds import require_within

KlDirection = Literal["target_first", "student_first"]
Similarity = Literal["cosine", "l1", "l2", "normalized_mse"]


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

    def without_effect(self) -> dict[str, str]:
        """Return the settings without effect, each with the setting that is the cause."""
        unread = {"cosine": (), "constant": ("lam_start",), "heaviside": ("lam_start", "lam_end")}
        reasons: dict[str, str] = dict.fromkeys(unread[self.lam], f"burn.lam {self.lam}")
        if self.classifier == "none":
            of_classifiers = ("num_classes", "hidden", "temperature", "kl_direction")
            of_lam = ("lam", "lam_start", "lam_end")
            reasons.update(dict.fromkeys((*of_classifiers, *of_lam), "burn.classifier none"))
        if self.projection == "linear":
            reasons["projection_hidden"] = "burn.projection linear"
        return reasons


add_method(
    MethodEntry(
        "burn",
        "burn.methods.burn.method:Burn",
        BurnConfig,
        needs=frozenset({"teacher"}),
        caches_teacher=lambda config: config.teacher_batch_norm == "running",
        title="BURN",
    )
)
