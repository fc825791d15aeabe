"""A method of your own in one file: images that are similar for the teacher become similar.

For every image of a batch, teacher and student give a distribution over the other images by the
cosine of their features; the loss is the Kullback-Leibler divergence between the two. Unlike the
paper's feature similarity it needs no projection if the two networks have different widths.

    burn pretrain --import examples/own_method.py --recipe relations_small --data digits \\
        --teacher runs/teacher --relations.temperature 0.1 --out runs/relations
    burn compare --import examples/own_method.py --methods burn,relations --data digits \\
        --test digits --budget 20000 --teacher runs/teacher --out runs/compared
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

import burn


@dataclass(frozen=True)
class RelationsConfig:
    """Settings of the method, given as `--relations.temperature` and so on.

    Attributes:
        temperature: temperature of both softmaxes.
    """

    temperature: float = 0.1

    def check(self) -> None:
        """Raise UserError for values out of range."""
        if not 0.001 <= self.temperature <= 100:
            raise burn.UserError(f"relations.temperature {self.temperature} is not in 0.001 … 100")


def relations(features: Tensor, temperature: float) -> Tensor:
    """Return each image's log-probabilities over the other images of the batch.

    Args:
        features: (batch, dimension).
        temperature: Divisor of the cosines.

    Returns:
        (batch, batch); the image itself has next to no probability.
    """
    unit = F.normalize(features, dim=1)
    scores = unit @ unit.T / temperature
    itself = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return F.log_softmax(scores.masked_fill(itself, -1e4), dim=1)


# accumulates=False: in a batch cut into parts, an image would be compared with its part alone.
@burn.register_method("relations", config=RelationsConfig, needs=["teacher"], accumulates=False)
class Relations(burn.Method):
    """KL(teacher's relations || student's), mean over the batch.

    With several processes, an image is compared with the images of its own process.
    """

    num_views = 1  # augmented views of each image
    num_taught = 1  # number of views, from the first on, that the teacher sees

    def __init__(
        self, backbone: burn.Backbone, teacher: burn.Teacher, config: RelationsConfig
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.teacher = burn.FrozenTarget(teacher.network)
        self.temperature = config.temperature

    def parts(self) -> list[burn.Part]:
        return [
            burn.Part("backbone", self.backbone, trained=True),
            burn.Part("teacher", self.teacher, trained=False),
        ]

    def forward(self, batch: burn.Batch, progress: float) -> burn.StepOutput:
        features = self.backbone(batch.views[0])
        taught = self.teacher.of_view(batch, 0)
        # Cosines in bfloat16 err by 0.004, which a temperature of 0.1 makes ten times as much.
        with torch.autocast(features.device.type, enabled=False):
            target = relations(taught.float(), self.temperature)
            found = relations(features.float(), self.temperature)
            loss = F.kl_div(found, target, reduction="batchmean", log_target=True)
        return burn.StepOutput(loss, {"loss": loss.detach()}, features.detach())


@burn.register_recipe
def relations_small() -> burn.Recipe:
    """Return BURN's small recipe, for 32-pixel images, with this method."""
    return replace(burn.recipe("burn_small"), method="relations")
