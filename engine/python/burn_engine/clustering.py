"""Groups of similar images: spherical k-means on features of length 1.

Features and centres are rounded to whole numbers, which changes cosines by 1e-4. All sums of their
products are then exact, so that every machine, and JavaScript (engine/js/clustering.js), makes the
same groups whatever the order in which it adds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burn_engine.errors import shown
from burn_engine.format import Floats
from burn_engine.vectors import normalized, parts

MOST_ROUNDS = 50
_MOST_GROUPS = 100  # that are made if nobody says how many
_AT_ONCE = 8192  # images that are compared with all centres at once
_LENGTH = 2048  # of the whole features; their products are below 2^24, which float32 holds exactly


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

    The first centres are drawn by k-means++. The same input and seed give the same groups.

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
    images = _whole(normalized(given))
    centres = _drawn(images, int(count), _random(int(seed)))
    labels, products = _nearest(images, centres)
    for done in range(MOST_ROUNDS):
        progress(done)
        sums = _sums(images, labels, len(centres))
        kept = sums.any(axis=1)  # an empty group keeps its centre
        lengths = np.sqrt(_squares(sums[kept]))[:, None]
        centres[kept] = _whole(sums[kept] / lengths)
        before = labels
        labels, products = _nearest(images, centres)
        if (labels == before).all():
            break
    cosines = products / np.sqrt(_squares(images) * _squares(centres)[labels])
    sizes = np.bincount(labels, minlength=len(centres))
    place = np.empty(len(sizes), np.int64)
    place[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    return Clusters(place[labels], cosines.astype(np.float32))


def _sums(images: Floats, labels: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return the sums of the images of each group, (count, d); exact, since all are whole."""
    sums = np.zeros((count, images.shape[1]), np.float64)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=count)).tolist()
    for group, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
        if begin < end:
            sums[group] = images[order[begin:end]].sum(axis=0, dtype=np.float64)
    return sums


def _random(seed: int) -> Iterator[float]:
    """Yield random numbers, at least 0 and less than 1: the upper half of Knuth's MMIX."""
    state = seed % 2**64
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (state >> 32) / 2**32


def _whole(units: NDArray[np.floating[Any]]) -> Floats:
    """Return vectors of length 1 as whole numbers of about _LENGTH."""
    return np.rint(units * _LENGTH).astype(np.float32)


def _squares(rows: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the squares of the lengths of rows, (n,)."""
    return np.concatenate([
        np.einsum("nd,nd->n", values, values)
        for values in (rows[part].astype(np.float64) for part in parts(len(rows)))
    ])  # fmt: skip


def _drawn(images: Floats, count: int, random: Iterator[float]) -> Floats:
    """Return centres: images drawn with a chance that grows with their distance from the others.

    Of a few that are drawn each time, the one is kept to which most of the distance is due.
    """
    squares = _squares(images)
    chosen = [int(next(random) * len(images))]
    distance = _distances(images, squares, chosen)[:, 0]
    tries = 2 + int(np.log(count))
    while len(chosen) < count and (total := distance.sum()) > 0:
        places = [next(random) * total for _ in range(tries)]
        drawn = np.searchsorted(distance.cumsum(), places, side="right")
        left = np.minimum(distance[:, None], _distances(images, squares, drawn.tolist()))
        best = int(left.sum(axis=0).argmin())
        chosen.append(int(drawn[best]))
        distance = left[:, best]
    return images[chosen].copy()


def _distances(
    images: Floats, squares: NDArray[np.float64], others: list[int]
) -> NDArray[np.float64]:
    """Return the squares of the distances of all images from some, (n, m)."""
    products = (images @ images[others].T).astype(np.float64)
    return squares[:, None] + squares[others] - 2 * products


def _nearest(images: Floats, centres: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Return the nearest centre of each image and its product with it, both (n,)."""
    labels, products = np.empty(len(images), np.int64), np.empty(len(images), np.float32)
    for begin in range(0, len(images), _AT_ONCE):
        part = slice(begin, begin + _AT_ONCE)
        between = images[part] @ centres.T
        labels[part] = between.argmax(axis=1)
        products[part] = between.max(axis=1)
    return labels, products
