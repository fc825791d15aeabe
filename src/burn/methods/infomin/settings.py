"""Settings of InfoMin, and what is known of it before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from burn.methods.entries import MethodEntry, add_method
from burn.methods.shared.ranges import check_contrast


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
        check_contrast("infomin", self)


add_method(
    MethodEntry(
        "infomin",
        "burn.methods.infomin.method:Infomin",
        InfominConfig,
        synchronize_norms=False,
        title="InfoMin",
    )
)
