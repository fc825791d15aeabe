"""The kNN accuracy that a run measures while it trains, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WatchedKnn:
    """A kNN accuracy with what it has to be compared with.

    Attributes:
        accuracy: Share of right answers, in [0, 1].
        images: Number of images that were classified; None for a run of burn 0.2.0 or earlier.
        chance: Share of right answers, in [0, 1], if all were the most frequent class of the
            images; None likewise.
    """

    accuracy: float
    images: int | None = None
    chance: float | None = None

    @classmethod
    def of(cls, monitor: Mapping[str, Any]) -> WatchedKnn | None:
        """Return what a monitor's numbers hold, or None without a measurement."""
        if monitor.get("knn") is None:
            return None
        return cls(monitor["knn"], monitor.get("knn_images"), monitor.get("knn_chance"))

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that `of` reads."""
        return {"knn": self.accuracy, "knn_images": self.images, "knn_chance": self.chance}

    def __str__(self) -> str:
        """Return, for example, "66.0 % of 60 (chance 12 %)"."""
        text = f"{100 * self.accuracy:.1f} %"
        if self.images is not None:
            text += f" of {self.images:,}"
        return text if self.chance is None else f"{text} (chance {100 * self.chance:.0f} %)"
