"""The mean of a number over seeds, and how much it varies between them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class OverSeeds:
    """A number that was measured with several seeds; `values` holds each seed's, at least one."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> OverSeeds:
        return cls(tuple(values))

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """The sample's standard deviation; None with one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None with one seed."""
        deviation = self.deviation
        return None if deviation is None else deviation / math.sqrt(len(self.values))

    def __str__(self) -> str:
        """The mean, and ± the standard deviation if there are several seeds, as in 52.1 ± 0.4."""
        deviation = self.deviation
        return f"{self.mean:.1f}" if deviation is None else f"{self.mean:.1f} ± {deviation:.1f}"
