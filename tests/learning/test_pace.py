"""Speed and time left, estimated and in words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from burn.learning.pace import Pace, rate, rough_time, time_left, time_range


def paced(*seconds: float, images: int = 8) -> Pace:
    """After batches that took so long, the first of which ends at 0."""
    pace = Pace()
    for now in np.cumsum([0, *seconds]):
        pace.batch(images, float(now))
    return pace


def test_there_is_no_estimate_before_four_batches():
    assert paced().seconds is None
    assert paced(1, 1).seconds is None
    assert paced(1, 1).images_per_second is None
    assert paced(1, 1, 1).seconds == pytest.approx(1)
    assert paced(1, 1, 1).images_per_second == pytest.approx(8)


@pytest.mark.parametrize("place", range(12))
def test_one_slow_batch_moves_an_estimate_by_no_factor(place: int):
    """The first batches are the ones that stumble: files that are not cached, a second compile."""
    times = [1.0] * 12
    times[place] = 50.0
    estimates = [paced(*times[:count]).seconds for count in range(3, 13)]
    assert all(seconds is not None and 1 <= seconds <= 1.7 for seconds in estimates)
    following = itertools.pairwise(estimates)
    assert all(1 / 1.7 < (a or 0) / (b or 0) < 1.7 for a, b in following)


def test_what_happens_after_every_epoch_counts_in_full():
    times = ([1.0] * 99 + [31.0]) * 10  # 1.3 s on average
    assert paced(*times[:400]).seconds == pytest.approx(1.3)
    assert paced(*times).seconds == pytest.approx(1.3)


def test_a_pause_of_hours_does_not_count():
    assert paced(*[1.0] * 1000, 36_000.0).seconds == pytest.approx(1.1, abs=0.01)


def test_batches_of_unlike_sizes():
    pace = Pace()
    for now, images in enumerate((100, 8, 4, 8, 4)):
        pace.batch(images, now)
    assert pace.images_per_second == pytest.approx(6)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([1.0] * 2, None),
        ([1.0] * 3, "10 to 30 min"),  # 1000 s in truth
        ([1.0] * 20, "13 to 25 min"),
        ([1.0] * 72, "17 min"),
        (([1.0] * 46 + [10.0]) * 3, "15 to 25 min"),  # a measurement ends each epoch: 20 min
        (([1.0] * 46 + [10.0]) * 10, "20 min"),
        ([4.0] * 20 + [1.0] * 60, "14 to 75 min"),  # it becomes faster
        ([1.0] * 300 + [3.0] * 100, "15 to 55 min"),  # something else began
    ],
)
def test_the_time_left_is_a_range_until_the_speed_is_stable(times: list[float], words: str | None):
    assert paced(*times).left(1000) == words


def test_a_settled_time_becomes_a_range_only_after_a_large_change():
    pace, now = paced(*[1.0] * 400), 400.0
    assert pace.left(1000) == "17 min"
    said = []
    for _ in range(100):
        now += 1.5  # half as slow again
        pace.batch(8, now)
        said.append(pace.left(1000) or "")
    assert not any(" to " in words for words in said[:60])
    assert " to " in said[-1]


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [(3, 8, "up to 10 s"), (25, 38, "20 to 40 s"), (50, 110, "50 s to 2 min"),
     (1200, 1750, "20 to 30 min"), (1200, 1200, "20 min"), (5000, 7300, "80 min to 2 h 30 min"),
     (7300, 9100, "2 to 3 h"), (3 * 3600, 5 * 3600, "3 to 5 h"), (30_000, 40_000, "8 to 12 h"),
     (1e5, 2e5, "27 h to 3 days"), (2e5, 9e5, "2 to 11 days"), (-5, 0, "up to 0 s")],
)  # fmt: skip
def test_ranges_of_time(least: float, most: float, words: str):
    assert time_range(least, most) == words


@pytest.mark.parametrize(
    ("images_per_second", "words"),
    [(1234.4, "1234 images/s"), (79.3, "79 images/s"), (2.46, "2.5 images/s"),
     (0.25, "4.0 s/image"), (0.02, "50 s/image"), (0.0, "0 images/s")],
)  # fmt: skip
def test_rates(images_per_second: float, words: str):
    assert rate(images_per_second) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0 s"), (40.4, "40 s"), (91, "2 min"), (3599, "60 min"), (3 * 3600 + 1200, "3 h 20 min"),
     (7200, "2 h"), (30 * 3600, "30 h"), (2 * 86_400, "2 days"), (124 * 3600, "5 days 4 h"),
     (700 * 86_400, "700 days"), (5e8, "5,787 days")],
)  # fmt: skip
def test_time_left(seconds: float, words: str):
    assert time_left(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(20, "about 1 min"), (400, "about 7 min"), (4 * 3600, "about 4 hours"),
     (5.2 * 86_400, "about 5 days"), (9e7, "about 3 years")],
)  # fmt: skip
def test_rough_time(seconds: float, words: str):
    assert rough_time(seconds) == words
