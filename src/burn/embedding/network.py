"""What `burn embed` needs of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Unfit(Exception):
    """Raised for an image that a network cannot take, such as one of too many pixels."""


@dataclass(frozen=True)
class Outputs:
    """Outputs for some images.

    Attributes:
        features: float32 (images, features).
        scores: float32 (images, classes), or None without a classifier.
    """

    features: np.ndarray
    scores: np.ndarray | None


class Network(Protocol):
    """A network that embeds images in two steps: one for each image, and one for a batch.

    `prepare` is called in several threads, with a tensor or an array as `tensors` says; it raises
    Unfit for an image that the network cannot take. `finish` is called in one thread, with what
    `prepare` returned for the images of a batch.

    Attributes:
        fingerprint: A string that changes with the weights, the classifier and the preparation of
            images.
        classes: Names of the scores; empty without a classifier.
        settings: Other settings, as plain values, that the outputs depend on.
        tensors: Whether `prepare` takes tensors (3, height, width), not arrays (height, width, 3).
        threads: Number of threads that call `prepare`.
    """

    name: str
    fingerprint: str
    num_features: int
    classes: tuple[str, ...]
    settings: dict[str, Any]
    notes: tuple[str, ...]
    tensors: bool
    batch_size: int
    threads: int

    def prepare(self, image: Any) -> Any: ...
    def finish(self, prepared: Sequence[Any]) -> Outputs: ...
