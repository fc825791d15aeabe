"""SwAV: predict the cluster of one crop of an image from another crop (Caron et al., 2020).

Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import torch
from lightly.loss import SwaVLoss
from lightly.models.modules import SwaVProjectionHead
from lightly.utils import dist
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.core.errors import UserError
from burn.core.types import Batch, Part
from burn.methods.base import Method, StepOutput
from burn.methods.configs import SwavConfig
from burn.methods.shared.contrast import gather


class Swav(Method):
    """The views are two of full size, whose codes all others predict, and then the small ones.

    The prototypes have length 1 when a step begins. The queue is one for all processes, a share of
    which each brings to the assignment: a checkpoint holds it whole, whatever their number.
    """

    queue: Tensor  # (2, config.queue, dimension), newest first; zeros until it is full

    def __init__(self, backbone: Backbone, config: SwavConfig) -> None:
        super().__init__()
        self.config = config
        self.num_views = 2 + config.small_crops
        self.backbone = backbone
        self.head = SwaVProjectionHead(backbone.num_features, config.hidden, config.dimension)
        self.prototypes = nn.Linear(config.dimension, config.prototypes, bias=False)
        self._normalize_prototypes()
        self._frozen: Tensor | None = None
        self.register_buffer("queue", torch.zeros(2, config.queue, config.dimension))
        self.criterion = SwaVLoss(
            config.temperature,
            config.sinkhorn_iterations,
            config.epsilon,
            sinkhorn_gather_distributed=True,
        )

    def parts(self) -> list[Part]:
        return [
            Part("backbone", self.backbone, trained=True),
            Part("projection head", self.head, trained=True),
            Part("prototypes", self.prototypes, trained=True),
        ]

    def reached(self, progress: float) -> set[str]:
        names = super().reached(progress)
        if progress < self.config.freeze_prototypes:
            names.discard("prototypes")
        return names

    def forward(self, batch: Batch, progress: float) -> StepOutput:
        if self.config.queue % dist.world_size():
            # The codes would depend on whose embedding it is: Sinkhorn's step of each process
            # divides by the number of its own.
            raise UserError(
                f"swav.queue {self.config.queue} is not a multiple of the {dist.world_size()} "
                "processes, each of which brings an equal share of it"
            )
        # Crops of one size together, so that BN sees them all, as in the authors' code.
        sizes = groupby(batch.views, key=lambda view: view.shape)
        features = torch.cat([self.backbone(torch.cat(list(views))) for _, views in sizes])
        outputs = self.head(features)
        count = len(batch.views[0])
        # Cosines in bfloat16 err by 0.004, over ε by 8 %.
        with torch.autocast(outputs.device.type, enabled=False):
            embeddings = F.normalize(outputs.float(), dim=1)
            scores = list(self._scores(embeddings, progress).split(count))
            queued = None
            if self.config.queue and progress >= self.config.queue_from:
                queued = self._queue_scores()
                self._enqueue(embeddings.detach()[: 2 * count])
            loss = self.criterion(scores[:2], scores[2:], queued).squeeze()
        return StepOutput(loss, {"loss": loss.detach()}, features[:count].detach())

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        if self._frozen is not None:  # weight decay moves what has no gradient
            self.prototypes.weight.copy_(self._frozen)
            self._frozen = None
        self._normalize_prototypes()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(weights)
        self.queue.zero_()  # embeddings by the last stage's network

    @torch.no_grad()
    def _normalize_prototypes(self) -> None:
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))

    def _scores(self, embeddings: Tensor, progress: float) -> Tensor:
        """Cosines with the prototypes: (embeddings, dimension) -> (embeddings, prototypes)."""
        weight = self.prototypes.weight
        if progress < self.config.freeze_prototypes:
            self._frozen = weight.detach().clone()
            # A zero gradient and not none: DistributedDataParallel waits for every parameter's.
            weight = self._frozen + 0 * weight
        return F.linear(embeddings, weight)

    @torch.no_grad()
    def _queue_scores(self) -> list[Tensor] | None:
        """Scores of this process's part of the queue by large crop; None until it is full."""
        if not self.queue[:, -1].any():
            return None
        share = self.queue[:, dist.rank() :: dist.world_size()]
        return [self.prototypes(embeddings) for embeddings in share]

    def _enqueue(self, embeddings: Tensor) -> None:
        """Put the large crops' embeddings of all processes, (2 · batch, dimension), in front."""
        everyone = [rows.view(2, -1, rows.shape[1]) for rows in gather(embeddings)]
        self.queue.copy_(torch.cat([*everyone, self.queue], dim=1)[:, : self.config.queue])
