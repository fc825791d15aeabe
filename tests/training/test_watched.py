"""The kNN accuracy that a run measures while it trains, in words."""

from __future__ import annotations

from typing import Any

import pytest

from burn.training.records.summary import WatchedKnn


@pytest.mark.parametrize(
    ("monitor", "words"),
    [
        ({"knn": 0.66, "knn_images": 60, "knn_chance": 0.117}, "66.0 % of 60 (chance 12 %)"),
        ({"knn": 1.0, "knn_images": 1200, "knn_chance": 1.0}, "100.0 % of 1,200 (chance 100 %)"),
        ({"knn": 0.5, "seconds": 3}, "50.0 %"),  # of an earlier burn
        ({"knn": None}, None),
        ({}, None),
    ],
)
def test_an_accuracy_says_of_how_many_images_it_is(monitor: dict[str, Any], words: str | None):
    watched = WatchedKnn.of(monitor)
    assert (None if watched is None else str(watched)) == words
    if watched is not None:
        assert WatchedKnn.of(watched.numbers()) == watched
