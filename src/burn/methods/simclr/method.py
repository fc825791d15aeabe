"""SimCLR: two views of an image attract, all others repel (Chen et al., 2020).

A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020, and version 2,
with a deeper projection head: Big Self-Supervised Models are Strong Semi-Supervised Learners,
NeurIPS 2020.
"""

from __future__ import annotations

import torch
from lightly.models.modules import SimCLRProjectionHead
from lightly.utils import dist
from torch import Tensor
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.core.types import Batch, Part
from burn.methods.base import Method, StepOutput
from burn.methods.simclr.settings import SimclrConfig


class Simclr(Method):
    """SimCLR, to train a float teacher from the same images, or the student as a baseline.

    With several processes, the images of all of them repel each other; each process must bring the
    same number of images.
    """

    num_views = 2

    def __init__(self, backbone: Backbone, config: SimclrConfig) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.num_features
        self.head = SimCLRProjectionHead(
            width, config.hidden or width, config.dimension, config.layers
        )
        self.temperature = config.temperature

    def parts(self) -> list[Part]:
        backbone = Part("backbone", self.backbone, trained=True)
        return [backbone, Part("projection head", self.head, trained=True)]

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        features = [self.backbone(view) for view in batch.views]
        first, second = (self.head(f).float() for f in features)
        # Cosines in bfloat16 err by 0.004, which divided by T = 0.1 is 4 %.
        with torch.autocast(first.device.type, enabled=False):
            loss = nt_xent(first, second, self.temperature)
        return StepOutput(loss, {"loss": loss.detach()}, features[0].detach())


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent, a scalar: the mean over this process's projections (SimCLR, Eq. 1).

    Projections are (batch, dimension), those of the second view in the order of the first.
    It is lightly's NTXentLoss, which leaves out the similarity of a projection to itself by a mask.
    For the shape of what is left it waits for the GPU; and with several processes its mask is on
    the CPU, where indices on a GPU are an error.

    >>> images = torch.eye(4)  # two views that are alike, of images that are not
    >>> nt_xent(images, images, temperature=0.1)
    tensor(0.0003)
    """
    count = len(first)
    local = everyone = F.normalize(torch.stack([first, second]), dim=2)
    if dist.world_size() > 1:
        everyone = torch.cat(dist.gather(local), dim=1)

    def similarities(view: int, other: int) -> Tensor:
        return torch.einsum("nc,mc->nm", local[view], everyone[other]) / temperature

    places = dist.rank() * count + torch.arange(count, device=first.device)
    columns = torch.arange(everyone.shape[1] - 1, device=first.device)
    others = columns + (columns >= places[:, None])  # all columns but the row's own
    logits = [
        torch.cat([similarities(a, b), similarities(a, a).gather(1, others)], dim=1)
        for a, b in ((0, 1), (1, 0))
    ]
    return F.cross_entropy(torch.cat(logits), places.repeat(2))
