"""Networks small enough to run in passing."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from burn.backbones.config import BackboneConfig
from burn.backbones.reactnet import ReActNet
from burn.backbones.registry import build_backbone
from burn.core.types import Precision

M = TypeVar("M", bound=nn.Module)


def tiny_reactnet(
    precision: Precision = Precision.BINARY, *, seed: int = 0, **settings: Any
) -> ReActNet:
    """ReActNet-A with 256 features, and a 2×2 map from 32 pixels."""
    torch.manual_seed(seed)
    chosen = {"width": 0.25, "stage_strides": (2, 2, 2, 1), **settings}
    backbone = build_backbone(BackboneConfig(**chosen), precision)
    assert isinstance(backbone, ReActNet)
    return backbone


def shallow_reactnet(
    precision: Precision = Precision.BINARY, *, seed: int = 0, **settings: Any
) -> ReActNet:
    """`tiny_reactnet` with one block in each stage: a test trains it in half of the time."""
    return tiny_reactnet(precision, seed=seed, **{"depths": (1, 1, 1, 1, 1), **settings})


def randomize(module: M) -> M:
    """Move what initialisation leaves at 0 or 1, so that forgetting it shows in the output."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(0.2 * torch.randn(buffer.shape, generator=generator))
            elif name.endswith("running_var"):
                buffer.mul_(0.5 + torch.rand(buffer.shape, generator=generator))
    return module
