"""Groups of similar images: spherical k-means on features of length 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burn_engine.errors import shown
from burn_engine.format import Floats
from burn_engine.vectors import normalized

MOST_ROUNDS = 50
_MOST_GROUPS = 100  # that are made if nobody says how many
_AT_ONCE = 8192  # images that are compared with all centres at once


class Clusters(NamedTuple):
    """Groups of images.

    Attributes:
        labels: group of each image, int64 (n,), from 0 for the largest group.
        centrality: cosine between each image and the centre of its group, float32 (n,).
    """

    labels: NDArray[np.int64]
    centrality: Floats


def usual_number(count: int) -> int:
    """Return how many groups are made of images if nobody says: √(n / 2), from 1 to 100."""
    return max(1, min(_MOST_GROUPS, round((count / 2) ** 0.5)))


def cluster(
    vectors: ArrayLike,
    k: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Clusters:
    """Divide images into groups of similar ones by spherical k-means.

    The first centres are drawn by k-means++. The same input and seed give the same groups on the
    same machine.

    Args:
        vectors: Features or embeddings, floats (n, d).
        k: Number of groups, 1 to n; None for `usual_number`. Fewer are made if fewer images differ.
        seed: Of the random numbers, at least 0.
        progress: Called with the number of rounds that are done.

    Returns:
        The groups, by size, and how central each image is in its own.

    Raises:
        ValueError: A number is not finite, all features of an image are 0, or k or seed is out of
            range.

    Example:
        >>> cluster([[1.0, 0.1], [0.1, 1.0], [1.0, 0.0]], k=2).labels.tolist()
        [0, 1, 0]
    """
    if isinstance(seed, bool) or not (isinstance(seed, int | np.integer) and seed >= 0):
        raise ValueError(f"seed {shown(seed)} is not an integer of at least 0")
    try:
        given = np.asarray(vectors)
    except ValueError:  # NumPy's own text for lists of different lengths is hard to read
        raise ValueError("the features of some images are more than those of others") from None
    if given.ndim != 2 or given.dtype.kind != "f" or not len(given):
        raise ValueError(f"features have shape {given.shape} and dtype {given.dtype}; expected "
                         "floats (n, d) of one image or more")  # fmt: skip
    count = usual_number(len(given)) if k is None else k
    if isinstance(count, bool) or not (
        isinstance(count, int | np.integer) and 1 <= count <= len(given)
    ):
        raise ValueError(
            f"k {shown(k)} is not a number of groups from 1 to {len(given)}, the images"
        )
    units = normalized(given)
    centres = _drawn(units, int(count), np.random.default_rng(seed))
    labels, cosines = _nearest(units, centres)
    for done in range(MOST_ROUNDS):
        progress(done)
        sums = np.zeros(centres.shape, np.float64)
        np.add.at(sums, labels, units)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        kept = lengths[:, 0] > 1e-6  # an empty group keeps its centre
        centres[kept] = (sums[kept] / lengths[kept]).astype(np.float32)
        before = labels
        labels, cosines = _nearest(units, centres)
        if (labels == before).all():
            break
    sizes = np.bincount(labels, minlength=len(centres))
    place = np.empty(len(sizes), np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return Clusters(place[labels], cosines)


def _drawn(units: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return centres: images drawn with a chance that grows with their distance from the others.

    Of a few that are drawn each time, the one is kept to which most of the distance is due.
    """
    chosen = [int(random.integers(len(units)))]
    distance = _distances(units, units[chosen])[:, 0]
    tries = 2 + int(np.log(count))
    while len(chosen) < count and (total := distance.sum()) > 0:
        drawn = random.choice(len(units), tries, p=distance / total)
        left = np.minimum(distance[:, None], _distances(units, units[drawn]))
        best = int(left.sum(axis=0).argmin())
        chosen.append(int(drawn[best]))
        distance = left[:, best]
    return units[chosen].copy()


def _distances(units: Floats, centres: Floats) -> NDArray[np.float64]:
    """Return 1 - cosine, float64 (n, m); what float32 rounds to above 0 is 0."""
    found = 1 - (units @ centres.T).astype(np.float64)
    return np.where(found < 1e-6, 0, found)


def _nearest(units: Floats, centres: Floats) -> tuple[NDArray[np.int64], Floats]:
    labels, cosines = np.empty(len(units), np.int64), np.empty(len(units), np.float32)
    for begin in range(0, len(units), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        between = units[part] @ centres.T
        labels[part] = between.argmax(axis=1)
        cosines[part] = between.max(axis=1)
    return labels, cosines
