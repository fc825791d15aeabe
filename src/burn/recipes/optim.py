"""Settings of the optimizer, in a module of their own that needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from burn.core.errors import UserError
from burn.runtime.bounds import require_within


@dataclass(frozen=True)
class OptimConfig:
    """Settings of the optimizer and of the learning-rate schedule, which restarts in every stage.

    Attributes:
        name: lars (timm's), adam or sgd.
        lr: learning rate after warm-up, for the recipe's whole batch.
        weight_decay: L2 penalty; biases, BN, shifts and slopes get none. lars adapts only the
            parameters that decay, so that with 0 it is sgd.
        momentum: momentum of lars and sgd, beta1 of adam.
        beta2: beta2 of adam. Short runs with KL want 0.98: the first gradients are up to a hundred
            times later ones and would inflate the second moment for a thousand steps.
        schedule: course of the learning rate after warm-up.
        warmup_epochs: epochs of linear warm-up.
    """

    name: Literal["lars", "adam", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.9
    beta2: float = 0.999
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = 0.0

    def check(self) -> None:
        """Raise UserError for values out of range."""
        for name in ("momentum", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"optim.{name} {getattr(self, name)} is not in [0, 1)")
        if not 0 < self.lr <= 1e6:
            raise UserError(f"optim.lr {self.lr} is not in (0, 1e6]")
        require_within(0, 1e3, "optim.", weight_decay=self.weight_decay)
        require_within(0, 10**6, "optim.", warmup_epochs=self.warmup_epochs)
