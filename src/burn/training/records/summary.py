"""The outcome of a stage, read from its checkpoint, and its kNN accuracy in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burn.checkpoints.native import images_seen
from burn.core.types import Precision


@dataclass(frozen=True)
class WatchedKnn:
    """A kNN accuracy with what it has to be compared with."""

    accuracy: float  # share of right answers, in [0, 1]
    images: int | None = None  # that were classified; None for a run of burn 0.2.0 or earlier
    chance: float | None = None  # accuracy if all were the images' most frequent class; likewise

    @classmethod
    def of(cls, monitor: Mapping[str, Any]) -> WatchedKnn | None:
        """Return what a monitor's numbers hold, or None without a measurement."""
        if monitor.get("knn") is None:
            return None
        return cls(monitor["knn"], monitor.get("knn_images"), monitor.get("knn_chance"))

    def numbers(self) -> dict[str, Any]:
        return {"knn": self.accuracy, "knn_images": self.images, "knn_chance": self.chance}

    def __str__(self) -> str:
        """Return, for example, "66.0 % of 60 (chance 12 %)"."""
        text = f"{100 * self.accuracy:.1f} %"
        if self.images is not None:
            text += f" of {self.images:,}"
        return text if self.chance is None else f"{text} (chance {100 * self.chance:.0f} %)"


@dataclass(frozen=True)
class StageSummary:
    """The outcome of a stage.

    Attributes:
        stage: Number of the stage, from 1.
        precision: Precision of its binary layers.
        checkpoint: The file of its weights.
        steps: Number of optimizer steps.
        images_seen: Number of images of all steps.
        seconds: Time of training, including the parts before a run was resumed.
        images_per_second: Mean rate over that time.
        knn: The last kNN accuracy, in [0, 1], or None.
        collapsed_at: The step at which the alarm about a collapsed target was raised, or None.
        features_collapsed_at: The same for the features of the backbone.
        teacher_cached: Share of the teacher's features that came from a cache, in [0, 1]; None
            without a teacher.
        numbers: The last numbers that the monitor wrote.
        knn_images: Number of images that the kNN accuracy is of, or None.
        knn_chance: The accuracy, in [0, 1], of always answering the most frequent class, or None.
    """

    stage: int
    precision: Precision
    checkpoint: Path
    steps: int
    images_seen: int
    seconds: float
    images_per_second: float
    knn: float | None
    collapsed_at: int | None
    features_collapsed_at: int | None
    teacher_cached: float | None
    numbers: Mapping[str, float]
    knn_images: int | None = None
    knn_chance: float | None = None

    @property
    def watched(self) -> WatchedKnn | None:
        """The last kNN accuracy with the images it is of, or None."""
        return WatchedKnn.of(vars(self))


def summary_of(number: int, file: Path, meta: Mapping[str, Any]) -> StageSummary:
    """Summarize a stage by the metadata of its checkpoint, which is in the file."""
    monitor = meta["monitor"]
    return StageSummary(
        stage=number,
        precision=Precision(meta["precision"]),
        checkpoint=file,
        steps=meta["steps"],
        images_seen=images_seen(meta),
        seconds=monitor.get("seconds", 0.0),
        images_per_second=monitor["images_per_second"],
        knn=monitor["knn"],
        collapsed_at=monitor["collapsed_at"],
        features_collapsed_at=monitor.get("features_collapsed_at"),  # earlier versions lack it
        teacher_cached=monitor.get("teacher_cached"),
        numbers=monitor["last"],
        knn_images=monitor.get("knn_images"),
        knn_chance=monitor.get("knn_chance"),
    )
