"""The values that travel between modules: frozen, and without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

# Names of settings stand here, and not beside the code that they choose, so that a command line is
# read before torch is imported.
ActivationGradient = Literal["poly", "clip"]
WeightGradient = Literal["clip", "identity"]
TeacherBatchNorm = Literal["running", "batch"]


class Precision(StrEnum):
    """What is a single bit in a network (paper, section 3.4)."""

    FLOAT = "float"
    BINARY_ACTIVATIONS = "binary_activations"  # stage 1
    BINARY = "binary"  # stage 2: activations and weights


@dataclass(frozen=True)
class Batch:
    """What a data loader hands to a method.

    views: one uint8 tensor (batch, 3, height, width) for each augmented view of the same images;
    where a teacher sees a size of its own, its renderings of the same views follow.
    indices: int64 (batch,), the images' positions in their source.
    unreadable: positions of images that belonged in this batch and could not be decoded.
    labels: int64 (batch,), or None where the source has none; method supervised alone looks.
    """

    views: tuple[torch.Tensor, ...]
    indices: torch.Tensor
    unreadable: tuple[int, ...] = ()
    labels: torch.Tensor | None = None


@dataclass(frozen=True)
class Features:
    """Features of the readable images of a source, in its order.

    values: float32 (images, dimension); labels: int64 (images,), or None where there are none;
    positions: int64 (images,), which images of the source these are.
    """

    values: torch.Tensor
    labels: torch.Tensor | None
    classes: tuple[str, ...]
    positions: torch.Tensor


@dataclass(frozen=True)
class Checkpoint:
    """Weights and what is known about them.

    weights: name -> tensor, every name prefixed by the part it belongs to ("backbone.", ...).
    meta: plain JSON values; `burn.checkpoint` says which. origin: the file, for messages.
    """

    weights: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]
    origin: str = "the checkpoint"


@dataclass(frozen=True)
class Part:
    """A named part of what a method holds, and whether it is meant to learn.

    learning_rate: factor of the recipe's learning rate.
    """

    name: str
    module: torch.nn.Module
    trained: bool
    learning_rate: float = 1.0
