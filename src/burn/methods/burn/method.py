"""BURN: a binary network learns from a frozen float network with a classifier on top (Eq. 4)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.core.schedule import loss_balance
from burn.core.types import Batch, Part
from burn.methods.base import Method, StepOutput, mlp
from burn.methods.burn.settings import BurnConfig, KlDirection, Similarity
from burn.methods.shared.frozen import FrozenTarget
from burn.methods.shared.standardize import Standardize


def kl_divergence(
    target: Tensor, student: Tensor, temperature: float, direction: KlDirection = "target_first"
) -> Tensor:
    """Return KL(p1 || p2), or KL(p2 || p1), averaged over the batch (Eq. 1).

    >>> target, student = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> kl_divergence(target, student, temperature=1.0)
    tensor(0.3278)
    >>> kl_divergence(target, target, temperature=1.0)
    tensor(0.)

    Args:
        target: Logits (batch, classes) of p1 = softmax(logits / temperature).
        student: Logits (batch, classes) of p2.
        temperature: Temperature of both softmaxes.
        direction: target_first for KL(p1 || p2), student_first for KL(p2 || p1).
    """
    log_p1 = F.log_softmax(target.float() / temperature, dim=1)
    log_p2 = F.log_softmax(student.float() / temperature, dim=1)
    if direction == "student_first":
        log_p1, log_p2 = log_p2, log_p1
    return (log_p1.exp() * (log_p1 - log_p2)).sum(dim=1).mean()


def feature_similarity(v1: Tensor, v2: Tensor, kind: Similarity = "cosine") -> Tensor:
    """Return L_FS, a distance between features, averaged over the batch (Eq. 2 and Table 6).

    >>> feature_similarity(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
    tensor(1.)

    Args:
        v1: Features (batch, dimension).
        v2: Features (batch, dimension).
        kind: cosine is 1 - cos, in [0, 2]; l1 and l2 are norms of v1 - v2, unbounded;
            normalized_mse is ‖v1/‖v1‖ - v2/‖v2‖‖², in [0, 4].
    """
    v1, v2 = v1.float(), v2.float()
    if kind == "l1":
        return (v1 - v2).abs().sum(dim=1).mean()
    if kind == "l2":
        return (v1 - v2).norm(dim=1).mean()
    cosine = 1 - F.cosine_similarity(v1, v2, dim=1).mean()
    return cosine if kind == "cosine" else 2 * cosine


class Burn(Method):
    """The paper's method; `config` selects its ablations.

    The teacher h gives v1, and the classifier g on it the logits behind p1; the student k gives v2,
    and the classifier l on it the logits behind p2. Where v1 and v2 differ in width, the feature
    similarity compares v1 with a linear projection of v2, which is used in training alone. g
    normalizes by each batch's statistics whether it learns or not, so that a random one gives
    targets of a stable spread whatever the scale of the teacher's features.
    """

    def __init__(self, backbone: Backbone, teacher: Teacher, config: BurnConfig) -> None:
        super().__init__()
        self.config = config
        self.num_views = self.num_taught = 2 if config.views == "cross" else 1
        self.backbone = backbone
        self.teacher = FrozenTarget(teacher.network, config.teacher_batch_norm)
        wide, narrow = teacher.network.num_features, backbone.num_features
        self.projection: nn.Module | None = None
        self.standardize = Standardize(wide) if config.standardize else None
        if config.projection == "mlp":
            self.projection = mlp(narrow, config.projection_hidden, wide)
        elif config.similarity_of == "features" and wide != narrow:
            self.projection = nn.Linear(narrow, wide)
        self.classifier: nn.Module | None = None
        self.teacher_classifier: nn.Module | None = None
        if config.classifier != "none":
            self.classifier = mlp(narrow, config.hidden, config.num_classes)
            self.teacher_classifier = mlp(wide, config.hidden, config.num_classes)
            self.teacher_classifier.requires_grad_(config.classifier == "joint")

    def parts(self) -> list[Part]:
        parts = [Part("student backbone", self.backbone, trained=True)]
        if self.projection is not None:
            parts.append(Part("projection", self.projection, trained=True))
        if self.classifier is not None and self.teacher_classifier is not None:
            joint, factor = self.config.classifier == "joint", self.config.classifier_lr
            parts.append(Part("student classifier", self.classifier, trained=True))
            parts.append(Part("teacher classifier", self.teacher_classifier, joint, factor))
        return [*parts, Part("teacher", self.teacher, trained=False)]

    def begin_from(self, weights: Mapping[str, Tensor]) -> None:
        if not self.config.carry_classifier:
            fresh = self.weights()
            weights = {
                name: fresh[name] if name.startswith("teacher_classifier.") else tensor
                for name, tensor in weights.items()
            }
        super().begin_from(weights)

    def lam(self, progress: float) -> float:
        """Return λ(t), the weight of the feature similarity, which is 1 without classifiers.

        In a step that is recorded (`burn.training.graphs`) it is a float64 scalar on the GPU.
        """
        c = self.config
        if c.classifier == "none":
            return 1.0
        return loss_balance(progress, c.lam, c.lam_start, c.lam_end)

    def reached(self, progress: float) -> set[str]:
        names = super().reached(progress)
        lam = self.lam(progress)
        if lam == 0:
            names.discard("projection")
        if lam == 1 and self.config.similarity_of == "features":
            names -= {"student classifier", "teacher classifier"}
        return names

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        last = self.num_views - 1
        features = self.backbone(batch.views[last])
        output = self._compare(self.teacher.of_view(batch, 0), features, progress)
        if self.config.views == "same":
            return output
        target = self.teacher.of_view(batch, last)
        crossed = self._compare(target, self.backbone(batch.views[0]), progress)
        return StepOutput(
            loss=(output.loss + crossed.loss) / 2,
            terms={name: (term + crossed.terms[name]) / 2 for name, term in output.terms.items()},
            features=output.features,
            target_probabilities=output.target_probabilities,
        )

    def _compare(self, v1: Tensor, v2: Tensor, progress: float) -> StepOutput:
        c = self.config
        lam = self.lam(progress)
        kl = v2.new_zeros(())
        probabilities = None
        target = v1 if self.standardize is None else self.standardize(v1)
        compared = (target, v2 if self.projection is None else self.projection(v2))
        if self.classifier is not None and self.teacher_classifier is not None:
            logits1, logits2 = self.teacher_classifier(v1), self.classifier(v2)
            kl = kl_divergence(logits1, logits2, c.temperature, c.kl_direction)
            probabilities = F.softmax(logits1.detach().float() / c.temperature, dim=1)
            if c.similarity_of == "logits":
                compared = (logits1, logits2)
        similarity = feature_similarity(*compared, c.similarity)
        loss = (1 - lam) * kl + lam * similarity
        terms = {
            "loss": loss.detach(),
            "feature_similarity": similarity.detach(),
            "lambda": torch.as_tensor(lam),
        }
        if self.classifier is not None:
            terms["kl"] = kl.detach()
        return StepOutput(loss, terms, v2.detach(), probabilities)
