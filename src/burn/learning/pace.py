"""The speed of a run and the time that is left, measured and formatted."""

from __future__ import annotations

import math
import statistics
from collections import deque

_FEWEST = 3  # batches after the first one that an estimate needs
_KEPT = 400  # batches whose times are kept one by one
_PARTS = 4  # parts of a run so far whose mean times are compared
_SETTLED, _UNSETTLED = 1.25, 1.6  # ratios of the ends of a range, below and above which it changes


class Pace:
    """An estimate of the time per batch that is robust against single slow batches.

    The first batch is left out: it starts data-loader workers, allocates memory and compiles. The
    times of the n others are averaged, each limited to max(3, n/4) times their median. One slow
    batch thus changes an early estimate by about a quarter, while regular delays, such as the
    evaluation after an epoch, count in full once there are many batches.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._newest: deque[float] = deque(maxlen=_KEPT)
        self._count = self._images = 0
        self._total = 0.0  # seconds of all batches, once there are more than are kept
        self._settled = False

    def batch(self, images: int, now: float) -> None:
        """Record the end of a batch, at the time `now` in seconds on any clock."""
        last, self._last = self._last, now
        if last is None:
            return
        if self._count == _KEPT:
            self._total = self._sum()
        self._newest.append(now - last)
        self._count, self._images = self._count + 1, self._images + images
        if self._count > _KEPT:
            self._total += min(now - last, self._most())

    def _most(self) -> float:
        """Return the limit in seconds to which the time of a batch is reduced."""
        return statistics.median_low(self._newest) * max(3.0, len(self._newest) / 4)

    def _sum(self) -> float:
        most = self._most()
        return sum(min(seconds, most) for seconds in self._newest)

    @property
    def seconds(self) -> float | None:
        """Seconds per batch, or None before there are enough batches."""
        if self._count < _FEWEST:
            return None
        return (self._total if self._count > _KEPT else self._sum()) / self._count

    def _bounds(self, seconds: float) -> tuple[float, float]:
        """Return the least and the greatest seconds per batch to expect; `seconds` are the mean.

        The newest batches are cut into four parts, whose means show how much the speed changes; n
        batches that are alike may still differ from the later ones by a share of 1/√n.
        """
        most, times = self._most(), list(self._newest)
        size = math.ceil(len(times) / _PARTS)
        parts = (times[start : start + size] for start in range(0, len(times), size))
        means = [seconds, *(sum(min(t, most) for t in part) / len(part) for part in parts)]
        doubt = 1 + len(times) ** -0.5
        return min(means) / doubt, max(means) * doubt

    def left(self, batches: float) -> str | None:
        """Return in words how long so many batches take, or None before there are enough batches.

        It is a range until the speed was the same for so long that one number says what to expect,
        and again when the speed changes.
        """
        seconds = self.seconds
        if seconds is None:
            return None
        least, most = self._bounds(seconds)
        self._settled = most <= least * (_UNSETTLED if self._settled else _SETTLED)
        if self._settled:
            return time_left(seconds * batches)
        return time_range(least * batches, most * batches)

    @property
    def images_per_second(self) -> float | None:
        """Images per second, or None before there are enough batches."""
        seconds = self.seconds
        return self._images / self._count / seconds if seconds else None


def rate(images_per_second: float) -> str:
    """Format a rate: "79 images/s", "2.5 images/s", or "4.0 s/image" for less than one a second."""
    if images_per_second >= 10:
        return f"{images_per_second:.0f} images/s"
    if images_per_second >= 1:
        return f"{images_per_second:.1f} images/s"
    if images_per_second <= 0:
        return "0 images/s"
    seconds = 1 / images_per_second
    return f"{seconds:.1f} s/image" if seconds < 10 else f"{seconds:.0f} s/image"


def time_left(seconds: float) -> str:
    """Format a duration: "40 s", "12 min", "3 h 20 min", "30 h", "5 days 4 h", "12 days"."""
    if seconds < 90:
        return f"{max(0, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 10:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    if hours < 48:
        return f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days:,} days {hours} h" if days < 10 and hours else f"{days:,} days"


def time_range(least: float, most: float) -> str:
    """Format a duration that is not certain: "20 to 30 min", "50 s to 2 min", "up to 10 s".

    Both ends are rounded outwards, to 10 s, 1 min, 5 min, half an hour, an hour or a day.
    """
    first, last = (
        time_left(towards(seconds / step) * step)
        for seconds, towards in ((max(0.0, least), math.floor), (max(0.0, most), math.ceil))
        for step in [next(step for step, below in _STEPS if seconds < below)]
    )
    if first == "0 s":
        return f"up to {last}"
    number, unit = first.rsplit(" ", 1)
    same = " " not in number and last.count(" ") == 1 and last.endswith(f" {unit}")
    return first if first == last else f"{number if same else first} to {last}"


_STEPS = ((10, 85), (60, 900), (300, 5100), (1800, 36_000), (3600, 172_800), (86_400, math.inf))


def rough_time(seconds: float) -> str:
    """Format a rough estimate of a duration in one unit: "about 5 days"."""
    for size, name in ((365 * 86_400, "years"), (86_400, "days"), (3600, "hours")):
        if seconds >= 1.5 * size:
            return f"about {round(seconds / size):,} {name}"
    return f"about {max(1, round(seconds / 60))} min"
