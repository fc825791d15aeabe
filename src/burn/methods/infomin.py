"""InfoMin: contrast between views that share no more than the task needs.

Tian et al., What Makes for Good Views for Contrastive Learning?, 2020. Its findings are about
views: the stronger augmentation is its recipe's, the loss that of momentum contrast. Without the
jigsaw branch of its code.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from burn.backbones import Backbone
from burn.methods.contrast import check_ranges
from burn.methods.mocov2 import Mocov2, Mocov2Config


@dataclass(frozen=True)
class InfominConfig:
    """InfoMin's head, negatives and momentum.

    Attributes:
        temperature: of the contrastive softmax.
        negatives: their number, the newest keys of earlier batches.
        momentum: of the momentum encoder, which follows after every step.
        hidden: hidden width of the projection head; default: the backbone's.
        dimension: output width of the projection head.
        shuffle_groups: parts into which each process's batch is cut for BN, queries in order and
            keys shuffled, so that BN does not tell which key is whose.
    """

    temperature: float = 0.15
    negatives: int = 65536
    momentum: float = 0.999
    hidden: int | None = None
    dimension: int = 128
    shuffle_groups: int = 8

    def check(self) -> None:
        """Raise UserError for values out of range."""
        check_ranges("infomin", self)


class Infomin(Mocov2):
    """MoCo v2's loss, and its momentum encoder and queue, at InfoMin's settings."""

    def __init__(self, backbone: Backbone, config: InfominConfig) -> None:
        shared = asdict(config)
        super().__init__(backbone, Mocov2Config(queue=shared.pop("negatives"), **shared))
