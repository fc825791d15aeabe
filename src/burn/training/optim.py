"""Optimizers and their parameter groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from burn.core.types import Part
from burn.recipes.schema import OptimConfig


def parameter_groups(parts: Sequence[Part], config: OptimConfig) -> list[dict[str, Any]]:
    """Return two parameter groups for each trained part: with weight decay and without.

    Matrices and convolution kernels decay; biases and the parameters of BN do not. A part's
    `learning_rate` multiplies that of the optimizer.
    """
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
    groups = parameter_groups(parts, config)
    if config.name == "adam":
        return torch.optim.Adam(
            groups, lr=config.lr, betas=(config.momentum, config.beta2), fused=True
        )
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=True)
    # timm is slow to import, and only LARS needs it.
    from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]

    return create_optimizer_v2(groups, opt="lars", lr=config.lr, momentum=config.momentum)
