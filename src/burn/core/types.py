"""The values that travel between modules, frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

# Names of settings stand here, and not beside the code that they choose, so that a command line is
# read before torch is imported.
ActivationGradient = Literal["poly", "clip"]
WeightGradient = Literal["clip", "identity"]
WeightInit = Literal["fan_in", "small"]
TeacherBatchNorm = Literal["running", "batch"]


class Precision(StrEnum):
    """What is a single bit in a network (paper, section 3.4)."""

    FLOAT = "float"
    BINARY_ACTIVATIONS = "binary_activations"  # stage 1
    BINARY = "binary"  # stage 2: activations and weights


@dataclass(frozen=True)
class Known:
    """A teacher's features of a batch's views, as far as a cache knows them.

    values: float16 (views, batch, dimension), those of the views that the teacher sees; zeros where
    they are not known. unknown: int64, the rows of the batch of which they are not.
    """

    values: torch.Tensor
    unknown: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """What a data loader hands to a method.

    views: one uint8 tensor (batch, 3, height, width) for each augmented view of the same images.
    indices: int64 (batch,), the images' positions in their source.
    unreadable: positions of images that belonged in this batch and could not be decoded.
    labels: int64 (batch,), or None where the source has none; method supervised alone looks.
    epoch: the epoch of the stage that the views were drawn for, from 0.
    teacher_views: the same views as a teacher of a size of its own sees them; with `known`, of its
    unknown rows alone. Empty where the teacher sees the student's views.
    known: what a cache knows of the teacher's features, or None without a cache.
    """

    views: tuple[torch.Tensor, ...]
    indices: torch.Tensor
    unreadable: tuple[int, ...] = ()
    labels: torch.Tensor | None = None
    epoch: int = 0
    teacher_views: tuple[torch.Tensor, ...] = ()
    known: Known | None = None

    def first(self, count: int) -> Batch:
        """The first `count` images of it."""
        known, teacher_views = self.known, self.teacher_views
        rows = count
        if known is not None:
            unknown = known.unknown[known.unknown < count]
            known, rows = Known(known.values[:, :count], unknown), len(unknown)
        return replace(
            self,
            views=tuple(view[:count] for view in self.views),
            indices=self.indices[:count],
            labels=None if self.labels is None else self.labels[:count],
            teacher_views=tuple(view[:rows] for view in teacher_views),
            known=known,
        )

    def to(self, device: torch.device) -> Batch:
        """With everything that a method computes with on a device."""

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=True)

        known = self.known
        return replace(
            self,
            views=tuple(map(move, self.views)),
            labels=None if self.labels is None else move(self.labels),
            teacher_views=tuple(map(move, self.teacher_views)),
            known=known and Known(move(known.values), move(known.unknown)),
        )


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
    meta: plain JSON values; `burn.checkpoints.native` says which. origin: the file, for messages.
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
