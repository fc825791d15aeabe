"""Frozen values that modules pass to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

# Choices of settings are here, and not beside the code that they select, so that a command line can
# be read before torch is imported.
ActivationGradient = Literal["poly", "clip"]
WeightGradient = Literal["clip", "identity"]
WeightInit = Literal["fan_in", "small"]
TeacherBatchNorm = Literal["running", "batch"]


class Precision(StrEnum):
    """Parts of a network that are binary (paper, section 3.4)."""

    FLOAT = "float"
    BINARY_ACTIVATIONS = "binary_activations"  # stage 1
    BINARY = "binary"  # stage 2: activations and weights


@dataclass(frozen=True)
class CachedFeatures:
    """Teacher's features of a batch's views, as far as a cache holds them.

    Attributes:
        values: float16 (views, batch, dimension) for the views that the teacher sees; zeros where
            they are not in the cache.
        missing: int64, the rows of the batch that are not in the cache.
    """

    values: torch.Tensor
    missing: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """Batch that a data loader passes to a method.

    Attributes:
        views: One uint8 tensor (batch, 3, height, width) for each augmented view of the same
            images.
        indices: int64 (batch,), the images' positions in their source.
        unreadable: Positions of images that belonged in this batch and could not be decoded.
        labels: int64 (batch,), or None where the source has none; only method supervised uses them.
        epoch: Epoch of the stage, from 0, that the views were drawn for.
        teacher_views: The same views at the size that a teacher sees, where it has its own; with
            `cached`, of its missing rows alone. Empty where the teacher sees the student's views.
        cached: Teacher's features from a cache, or None without a cache.
    """

    views: tuple[torch.Tensor, ...]
    indices: torch.Tensor
    unreadable: tuple[int, ...] = ()
    labels: torch.Tensor | None = None
    epoch: int = 0
    teacher_views: tuple[torch.Tensor, ...] = ()
    cached: CachedFeatures | None = None

    def first(self, count: int) -> Batch:
        """Return the first `count` images of the batch."""
        cached, rows = self.cached, count
        if cached is not None:
            missing = cached.missing[cached.missing < count]
            cached, rows = CachedFeatures(cached.values[:, :count], missing), len(missing)
        return replace(
            self,
            views=tuple(view[:count] for view in self.views),
            indices=self.indices[:count],
            labels=None if self.labels is None else self.labels[:count],
            teacher_views=tuple(view[:rows] for view in self.teacher_views),
            cached=cached,
        )

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory, from which a GPU copies while it computes.

        Data loaders call this if they were made with `pin_memory`.
        """
        return self.mapped(lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> Batch:
        """Return the batch with everything that a method computes with on a device."""
        return self.mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Return the batch with every tensor changed but `indices`, which stay on the CPU."""
        cached = self.cached
        return replace(
            self,
            views=tuple(map(change, self.views)),
            labels=None if self.labels is None else change(self.labels),
            teacher_views=tuple(map(change, self.teacher_views)),
            cached=cached and CachedFeatures(change(cached.values), change(cached.missing)),
        )


@dataclass(frozen=True)
class Features:
    """Features of the readable images of a source, in its order.

    Attributes:
        values: float32 (images, dimension).
        labels: int64 (images,), or None where there are none.
        classes: Names of the classes.
        positions: int64 (images,), the images' positions in the source.
    """

    values: torch.Tensor
    labels: torch.Tensor | None
    classes: tuple[str, ...]
    positions: torch.Tensor

    def of(self, rows: torch.Tensor) -> Features:
        """Return the features of some of the images, boolean (images,)."""
        labels = None if self.labels is None else self.labels[rows]
        return Features(self.values[rows], labels, self.classes, self.positions[rows])


@dataclass(frozen=True)
class Checkpoint:
    """Weights and their description.

    Attributes:
        weights: Tensors by name; every name begins with the part that it belongs to ("backbone.",
            ...).
        meta: Plain JSON values, which `burn.checkpoints.native` lists.
        origin: The file, for messages.
        fingerprint: Of the network that was made of it, to see whether that has changed since.
        name: What a user gave for it; "" for the file itself.
    """

    weights: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]
    origin: str = "the checkpoint"
    fingerprint: str = ""
    name: str = ""


@dataclass(frozen=True)
class Part:
    """Named part of a method, and whether it is meant to learn.

    Attributes:
        name: Name of the part, for messages.
        module: The module.
        trained: Whether it is meant to learn.
        learning_rate: Factor of the recipe's learning rate.
    """

    name: str
    module: torch.nn.Module
    trained: bool
    learning_rate: float = 1.0
