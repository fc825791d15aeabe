"""Speed and time left, estimated and in words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from burn.training.callbacks.pace import Pace, rate, rough_time, time_left


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
