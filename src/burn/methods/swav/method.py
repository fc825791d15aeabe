"""SwAV: predict the cluster of one crop of an image from another crop (Caron et al., 2020).

Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

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
from burn.methods.shared.contrast import gather
from burn.methods.swav.settings import SwavConfig


class Swav(Method):
    """SwAV, whose views are two of full size and then the small ones.

    The codes of each of the two are predicted from all other views. The prototypes have length 1
    when a step begins. All processes share one queue, of which each brings an equal part to the
    assignment: a checkpoint holds the whole queue, whatever the number of processes.
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
        self._is_full = False  # known to be: to look at the queue of a GPU is to wait for it
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
            # Unequal parts would make the codes depend on the process that holds an embedding:
            # in each process Sinkhorn's step divides by the number of its own embeddings.
            raise UserError(
                f"swav.queue {self.config.queue} is not a multiple of the {dist.world_size()} "
                "processes, each of which brings an equal share of it"
            )
        # Crops of one size go through the backbone together, as in the authors' code, so that BN
        # sees them all.
        sizes = groupby(batch.views, key=lambda view: view.shape)
        features = torch.cat([self.backbone(torch.cat(list(views))) for _, views in sizes])
        outputs = self.head(features)
        count = len(batch.views[0])
        # Cosines in bfloat16 err by 0.004, which divided by ε is 8 %.
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
        if self._frozen is not None:  # weight decay also moves weights without gradients
            self.prototypes.weight.copy_(self._frozen)
            self._frozen = None
        self._normalize_prototypes()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(weights)
        self.queue.zero_()  # its embeddings are of the previous stage's network

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._is_full = False

    @torch.no_grad()
    def _normalize_prototypes(self) -> None:
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))

    def _scores(self, embeddings: Tensor, progress: float) -> Tensor:
        """Return cosines with prototypes: (embeddings, dimension) -> (embeddings, prototypes)."""
        weight = self.prototypes.weight
        if progress < self.config.freeze_prototypes:
            self._frozen = weight.detach().clone()
            # This gives a gradient of zero instead of none: DistributedDataParallel waits for the
            # gradient of every parameter.
            weight = self._frozen + 0 * weight
        return F.linear(embeddings, weight)

    def queue_is_full(self) -> bool:
        """Return whether the queue takes part in the assignment."""
        self._is_full = self._is_full or bool(self.queue[:, -1].any())
        return self._is_full

    @torch.no_grad()
    def _queue_scores(self) -> list[Tensor] | None:
        """Score this process's part of the queue, for each large crop; None until it is full."""
        if not self.queue_is_full():
            return None
        share = self.queue[:, dist.rank() :: dist.world_size()]
        return [self.prototypes(embeddings) for embeddings in share]

    def _enqueue(self, embeddings: Tensor) -> None:
        """Put the large crops' embeddings of all processes, (2 · batch, dimension), in front."""
        everyone = [rows.view(2, -1, rows.shape[1]) for rows in gather(embeddings)]
        self.queue.copy_(torch.cat([*everyone, self.queue], dim=1)[:, : self.config.queue])
