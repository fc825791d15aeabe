"""Settings of S2-BNN, and what is known of it before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from burn.methods.entries import MethodEntry, add_method
from burn.methods.shared.ranges import check_contrast


@dataclass(frozen=True)
class S2bnnConfig:
    """S2-BNN's distillation, and MoCo v2's loss beside it where that has a weight.

    Attributes:
        temperature: temperature of all softmaxes.
        hidden: hidden width of the projection head. Default: the backbone's width.
        contrastive: weight of MoCo v2's loss, added to the distillation; the settings below are
            those of MoCo v2's loss.
        queue: number of negatives, the newest keys of earlier batches.
        momentum: momentum of the momentum encoder, which follows after every step.
        shuffle_groups: parts into which each process's batch is cut for BN, queries in order and
            keys shuffled, so that BN does not tell which key belongs to which query.
    """

    temperature: float = 0.2
    hidden: int | None = None
    contrastive: float = 0.0
    queue: int = 65536
    momentum: float = 0.999
    shuffle_groups: int = 8

    def check(self) -> None:
        check_contrast("s2bnn", self)

    def without_effect(self) -> dict[str, str]:
        """Return the settings without effect, each with the setting that is the cause."""
        if self.contrastive:
            return {}
        return dict.fromkeys(("queue", "momentum", "shuffle_groups"), "s2bnn.contrastive 0")


add_method(
    MethodEntry(
        "s2bnn",
        "burn.methods.s2bnn.method:S2bnn",
        S2bnnConfig,
        needs=frozenset({"teacher"}),
        synchronize_norms=False,
        title="S2-BNN",
    )
)
