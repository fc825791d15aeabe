"""Optimizers, and the parameter groups they work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from burn.errors import UserError
from burn.types import Part


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its schedule, which starts afresh in every stage.

    Attributes:
        name: lars (timm's), adam or sgd.
        lr: learning rate after warm-up, for the recipe's whole batch.
        weight_decay: L2 penalty; biases, BN, shifts and slopes get none. lars adapts only what
            decays: at 0 it is sgd.
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
        for name in ("weight_decay", "warmup_epochs"):
            if getattr(self, name) < 0:
                raise UserError(f"optim.{name} {getattr(self, name)} is below 0")


def parameter_groups(parts: Sequence[Part], config: OptimConfig) -> list[dict[str, Any]]:
    """Two groups for each trained part: what decays (matrices and kernels) and what does not."""
    groups: list[dict[str, Any]] = []
    for part in parts:
        if not part.trained:
            continue
        params = list(part.module.parameters())
        for decays in (True, False):
            chosen = [p for p in params if (p.ndim > 1) == decays]
            if chosen:
                groups.append(
                    {
                        "params": chosen,
                        "lr": config.lr * part.learning_rate,
                        "weight_decay": config.weight_decay if decays else 0.0,
                    }
                )
    return groups


def build_optimizer(parts: Sequence[Part], config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer over the trained parts."""
    groups = parameter_groups(parts, config)
    if config.name == "adam":
        return torch.optim.Adam(
            groups, lr=config.lr, betas=(config.momentum, config.beta2), fused=True
        )
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    # timm is slow to import, and only LARS needs it
    from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]

    return create_optimizer_v2(groups, opt="lars", lr=config.lr, momentum=config.momentum)
