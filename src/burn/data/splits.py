"""Subsets of a labelled source with a given number or share of the images of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from burn.core.errors import UserError
from burn.data.base import Source
from burn.data.fingerprint import digest

if TYPE_CHECKING:
    from torch import Tensor


class Subset:
    """A source that holds the images of another one, `whole`, at some positions, in their order."""

    def __init__(self, source: Source, indices: Sequence[int] | np.ndarray) -> None:
        self.whole = source
        self.indices = np.asarray(indices, dtype=np.int64)
        self.name, self.classes = source.name, source.classes
        self.labels: np.ndarray | None = (
            None if source.labels is None else source.labels[self.indices]
        )
        self.fingerprint = source.fingerprint
        if not np.array_equal(self.indices, np.arange(len(source))):
            self.fingerprint = digest(source.fingerprint, self.indices.tobytes())

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> Tensor:
        return self.whole.read(int(self.indices[index]))

    def describe(self, index: int) -> str:
        return self.whole.describe(int(self.indices[index]))


def balanced_share(source: Source, share: float, seed: int) -> Subset:
    """Draw the same number of images of every class, at least one, in all a share of a source."""
    labels, num_classes = source.labels, len(source.classes)
    assert labels is not None
    number = max(1, round(share * len(source) / num_classes))
    random = np.random.default_rng(seed)
    chosen = []
    for label, name in enumerate(source.classes):
        there = np.flatnonzero(labels == label)
        if len(there) < number:
            raise UserError(
                f"{source.name}: {100 * share:g} % are {number} images of each class, but class "
                f"{name} has {len(there)}"
            )
        chosen.append(random.permutation(there)[:number])
    return Subset(source, np.sort(np.concatenate(chosen)))


def hold_out(
    subset: Subset, share: float, seed: int, *, keep_single: bool = False
) -> tuple[Subset, Subset]:
    """Split a share of every class, at least one image, off a subset; return the others and these.

    A class with a single image is a UserError, or keeps the image if `keep_single` is set and
    another class has more.
    """
    assert subset.labels is not None
    random = np.random.default_rng((seed, 1))
    held = np.zeros(len(subset), dtype=bool)
    for label in np.unique(subset.labels):
        there = np.flatnonzero(subset.labels == label)
        if len(there) < 2 and not keep_single:
            raise UserError(
                f"{subset.name}: with one labelled image of class {subset.classes[label]} none can "
                "be held out: use more labels"
            )
        if len(there) > 1:
            held[random.permutation(there)[: max(1, round(share * len(there)))]] = True
    if not held.any():
        raise UserError(
            f"{subset.name}: with one labelled image of each class none can be held out: use more "
            "labels"
        )
    parts = [Subset(subset, np.flatnonzero(mask)) for mask in (~held, held)]
    return parts[0], parts[1]
