"""Groups of similar images in the JavaScript package: those of burn_engine.cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from burn_engine import cluster
from nodejs import answers, needs_node

ENGINE = Path(__file__).parents[1]
RANDOM = np.random.default_rng(5)

pytestmark = needs_node


def ask(*requests):
    """Return the groups that the package makes, as js/clustering.mjs prints them."""
    return answers("clustering.mjs", ENGINE / "js", requests)


def drawn(count, features, kinds=1, spread=1.0):
    """Return features around some middles, float32 (count, features)."""
    middles = RANDOM.normal(size=(kinds, features))
    noise = RANDOM.normal(size=(count, features)) * spread
    return (middles[RANDOM.integers(0, kinds, count)] + noise).astype(np.float32)


CASES = {
    "clouds": (drawn(120, 16, 5, 0.1), 5, 0),
    "nothing but noise": (drawn(400, 24), 9, 0),
    "the usual number": (drawn(300, 64, 8), None, 0),
    "another seed": (drawn(150, 8, 3), 7, 12),
    "a large seed": (drawn(90, 8, 3), 4, 2**53 - 1),
    "many features": (drawn(60, 700, 4), 6, 0),
    "two features": (drawn(500, 2), 12, 0),
    "one group": (drawn(40, 5), 1, 0),
    "a group for each": (drawn(20, 6), 20, 0),
    "one image": (drawn(1, 6), None, 0),
    "the same": (np.ones((5, 4), np.float32), 3, 0),
    "few that differ": (np.eye(4, dtype=np.float32)[RANDOM.integers(0, 4, 30)], 9, 0),
    "opposites": (np.eye(3, dtype=np.float32)[[0, 0, 1]] * [[1], [-1], [1]], 1, 0),
    "signs": (np.sign(drawn(200, 96, 6)), 8, 0),
    "of many lengths": (drawn(50, 12) * 10.0 ** RANDOM.integers(-9, 9, (50, 1)), 5, 0),
}


@pytest.fixture(scope="module")
def found():
    requests = ({"features": v.tolist(), "k": k, "seed": seed} for v, k, seed in CASES.values())
    return dict(zip(CASES, ask(*requests), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_groups_are_pythons(found, name):
    values, k, seed = CASES[name]
    expected, one = cluster(values, k, seed), found[name]
    assert one["labels"] == expected.labels.tolist()
    np.testing.assert_array_equal(np.float32(one["centrality"]), expected.centrality)
    assert one["progress"] == sorted(one["progress"])
    assert one["progress"][0] == 0


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"features": []}, "there are no images to divide into groups"),
        ({"k": 0}, "k 0 is not a number of groups from 1 to 3, the images"),
        ({"k": 4}, "k 4 is not a number of groups from 1 to 3, the images"),
        ({"k": 1.5}, "k 1.5 is not a number of groups from 1 to 3, the images"),
        ({"seed": -1}, "seed -1 is not an integer from 0 to 9007199254740991"),
        ({"features": [[1, 2], [1]]}, "the features of some images are more than those of others"),
        ({"features": [[1, 2], [0, 0]]}, "all features of an image are 0"),
        ({"features": [[1, 2], [1, "nan"]]}, "features are not finite"),
        ({"features": [[1e200, 1]]}, "the features of an image are too large or too small"),
    ],
)
def test_what_cannot_be_divided_is_refused(changed, sentence):
    (one,) = ask({"features": [[1, 2], [2, 1], [3, 1]], "k": 1, **changed})
    assert one == {"refused": f"Error: {sentence}"}
