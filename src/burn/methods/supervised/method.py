"""Supervised baselines: learning from labels, or from a network that was trained with labels.

supervised_kl is ReActNet's "distributional loss" (Liu et al., ReActNet: Towards Precise Binary
Neural Network with Generalized Activation Functions, ECCV 2020, Eq. 6).
"""

from __future__ import annotations

from torch import nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.core.types import Batch, Part
from burn.methods.base import Method, StepOutput
from burn.methods.burn.method import kl_divergence
from burn.methods.shared.frozen import FrozenTarget


class Supervised(Method):
    """Cross-entropy of a linear classifier; a batch without labels is a UserError."""

    num_views = 1

    def __init__(self, backbone: Backbone, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = nn.Linear(backbone.num_features, num_classes)

    def parts(self) -> list[Part]:
        backbone = Part("backbone", self.backbone, trained=True)
        return [backbone, Part("classifier", self.classifier, trained=True)]

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        if batch.labels is None:
            raise UserError(
                "method supervised needs labels, but the images have none: give them in one "
                "folder per class, or choose a method that learns without labels"
            )
        features = self.backbone(batch.views[0])
        logits = self.classifier(features).float()
        loss = F.cross_entropy(logits, batch.labels)
        accuracy = (logits.detach().argmax(dim=1) == batch.labels).float().mean()
        terms = {"loss": loss.detach(), "accuracy": accuracy}
        return StepOutput(loss, terms, features.detach())


class SupervisedKl(Method):
    """KL(teacher's softmax || student's softmax), averaged over the batch, at temperature 1.

    It does not use labels.

    Raises:
        UserError: The teacher has no classifier.
    """

    num_views = num_taught = 1

    def __init__(self, backbone: Backbone, teacher: Teacher) -> None:
        super().__init__()
        if teacher.classifier is None:
            raise UserError(
                "method supervised_kl needs a teacher trained with labels, with its classifier: "
                "train one by recipe teacher_supervised_small, or give weights that have one"
            )
        self.backbone = backbone
        self.classifier = nn.Linear(backbone.num_features, teacher.classifier.out_features)
        self.teacher = FrozenTarget(teacher.network, head=teacher.classifier)

    def parts(self) -> list[Part]:
        return [
            Part("backbone", self.backbone, trained=True),
            Part("classifier", self.classifier, trained=True),
            Part("teacher", self.teacher, trained=False),
        ]

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        features = self.backbone(batch.views[0])
        target = self.teacher.of_view(batch, 0)
        loss = kl_divergence(target, self.classifier(features), temperature=1.0)
        return StepOutput(loss, {"loss": loss.detach()}, features.detach())
