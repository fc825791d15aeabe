"""S2-BNN: a binary network learns the output distribution of a frozen float network.

Shen et al., S2-BNN: Bridging the Gap Between Self-Supervised Real and 1-bit Neural Networks via
Guided Distribution Calibration, 2021.
"""

from __future__ import annotations

import torch
from lightly.models.modules.heads import MoCoProjectionHead
from torch import Tensor
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.core.types import Batch, Part
from burn.methods.base import Method, StepOutput
from burn.methods.s2bnn.settings import S2bnnConfig
from burn.methods.shared.contrast import MomentumContrast, l2_normalize
from burn.methods.shared.frozen import FrozenTarget


def distillation_loss(target: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Return -Σ p_t · log p_s, averaged over the batch, with p = softmax(z / (‖z‖ · temperature)).

    >>> target = torch.tensor([[1.0, 0.0]])
    >>> distillation_loss(target, 5 * target, 1.0) < distillation_loss(target, -target, 1.0)
    tensor(True)

    z are embeddings, (batch, dimension), whose dimensions are the softmax's classes; t is the
    teacher, s the student.
    """
    probabilities = F.softmax(l2_normalize(target) / temperature, dim=1)
    return F.cross_entropy(l2_normalize(student) / temperature, probabilities)


class S2bnn(Method):
    """Distillation alone, the paper's best, or L = L_distillation + contrastive · L_contrastive.

    L_contrastive is MoCo v2's loss. The paper's mix ("+ Guided Learning": 56.0 % on ImageNet,
    against 61.5 % for distillation alone) is the plain sum, `contrastive` 1. As in its authors'
    code, teacher and student see the query's view, batch.views[0], and the query is the embedding
    that is distilled: one head serves both losses, and its width is the teacher's. From a teacher
    that was trained with labels and has no projection head, the outputs of its classifier are
    distilled.

    Raises:
        UserError: The teacher has neither a projection head nor a classifier.
    """

    def __init__(self, backbone: Backbone, teacher: Teacher, config: S2bnnConfig) -> None:
        super().__init__()
        head = teacher.head or teacher.classifier
        if head is None:
            raise UserError(
                "method s2bnn needs a teacher with its projection head, or with its classifier: "
                "give a MoCo v2 file, a run by mocov2, simclr or byol, or lite0"
            )
        self.config = config
        self.num_views = 2 if config.contrastive else 1
        self.num_taught = 1
        self.backbone = backbone
        self.teacher = FrozenTarget(teacher.network, head=head)
        with torch.no_grad():
            some = next(head.parameters()).new_zeros(1, teacher.network.num_features)
            dimension = head(some).shape[1]
        width = backbone.num_features
        self.head = MoCoProjectionHead(width, config.hidden or width, dimension)
        self.contrast: MomentumContrast | None = None
        if config.contrastive:
            self.contrast = MomentumContrast(
                backbone,
                self.head,
                dimension,
                queue=config.queue,
                groups=config.shuffle_groups,
                temperature=config.temperature,
                momentum=config.momentum,
            )

    def parts(self) -> list[Part]:
        parts = [
            Part("backbone", self.backbone, trained=True),
            Part("projection head", self.head, trained=True),
        ]
        if self.contrast is not None:
            parts.append(Part("momentum encoder", self.contrast.target, trained=False))
        return [*parts, Part("teacher", self.teacher, trained=False)]

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        query = batch.views[0]
        if self.contrast is None:
            features = self.backbone(query)
        else:
            features = self.contrast.encode(self.backbone, query)
        embeddings = self.head(features)
        target = self.teacher.of_view(batch, 0)
        loss = distillation_loss(target, embeddings, self.config.temperature)
        terms = {"loss": loss.detach()}
        if self.contrast is not None:
            contrastive = self.contrast(embeddings, batch.views[1])
            terms = {"distillation": loss.detach(), "contrastive": contrastive.detach()}
            loss = loss + self.config.contrastive * contrastive
            terms["loss"] = loss.detach()
        return StepOutput(loss, terms, features.detach())

    def after_step(self, progress: float) -> None:
        if self.contrast is not None:
            self.contrast.follow(self.backbone, self.head)
