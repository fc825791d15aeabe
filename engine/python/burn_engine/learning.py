"""Learns a linear classifier from a handful of images of each class, in closed form.

Two kinds are tried, at several amounts of shrinkage: linear discriminant analysis with a shared
covariance that is shrunken towards a multiple of the identity, and ridge regression on the labels.
Each is judged by what it says of every image when it is learned from all the others. That takes no
learning anew: to leave an image out changes a class mean, and the inverse covariance by a matrix
of rank one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burn_engine.errors import shown
from burn_engine.format import MAX_OUTPUTS, Floats

Kind = Literal["lda", "ridge", "means"]
Doubles = NDArray[np.float64]
Whole = NDArray[np.intp]

# Amounts of shrinkage that are tried: what is added to the covariance's diagonal, in units of the
# mean variance of a feature over all images.
SHARES: tuple[float, ...] = tuple(float(10 ** (half / 2)) for half in range(-3, 5))
KNOWN_REFUSED = 0.05  # share of the known images for which the threshold is set
_LEAST_FOR_THRESHOLD = 10  # images
_MOST_SCORES = 2**27  # images times classes; there are up to eight numbers of 8 bytes for each

# Where a class has a single image. Chosen by what 1 image of each of 10 kinds of clothes and of 5
# kinds of flowers teaches: the cross-entropy of both is within 0.01 of the least.
_MOST = 3.0  # largest feature that counts, in standard deviations of all features
_CERTAINTY = 2.5  # what cosines are multiplied by

_SMALLEST, _LARGEST = 1e-20, 1e20  # largest of all features, so that sums of squares are numbers

_CONTROL = re.compile("[\x00-\x1f\x7f]")


class Way(NamedTuple):
    """One way to learn.

    Attributes:
        kind: "lda", linear discriminant analysis; "ridge", ridge regression; or "means", directions
            of the class means, where a class has a single image.
        equal_length: whether the features of the images that are learned from are scaled to one
            length before. Those of an image that is classified never are, because a packed file
            has no layer for it.
        share: the shrinkage, as in `SHARES`; 0 for "means".
    """

    kind: Kind
    equal_length: bool
    share: float


@dataclass(frozen=True, eq=False)
class Learned:
    """A linear classifier, and what is known of how good it is.

    Attributes:
        classes: names of the classes.
        weight: float32 (classes, features); the scores are weight · features + bias, and their
            softmax the probabilities.
        bias: float32 (classes,).
        counts: number of images of each class, (classes,).
        accuracy: share of images that are classified right when the classifier is learned from all
            others, in [0, 1]. Images that are the only one of their class do not count; None if
            there are no others.
        error: standard error of `accuracy`.
        largest: what `accuracy` would be for always answering the largest class.
        confusion: numbers of images, int64 (classes, classes): rows are the true classes, columns
            the answers, each learned from all other images.
        towards: the direction of the images' features, int8 (features,), of any length: the mean of
            the features, each scaled to norm 1, rounded.
        threshold: cosine with `towards` below which an image is taken to be none of these: it
            refuses at most 5 % of the images, when each is compared with the direction of all
            others. None if there are fewer than 10 images.
        way: how it was learned.
        temperature: what its scores were divided by to calibrate the probabilities.
    """

    classes: tuple[str, ...]
    weight: Floats
    bias: Floats
    counts: Whole
    accuracy: float | None
    error: float | None
    largest: float | None
    confusion: Whole
    towards: NDArray[np.int8]
    threshold: float | None
    way: Way
    temperature: float


def learn(features: ArrayLike, labels: ArrayLike, classes: Sequence[str]) -> Learned:
    """Learn to classify images by their features, from one to thousands of each class.

    The way to learn is the one of those with the least cross-entropy when each image is classified
    by what is learned from all the others, with probabilities calibrated by one temperature. If a
    class has a single image, nothing can be measured for it, and the way and the certainty of the
    probabilities are fixed: directions of the class means. Otherwise the share of a class among the
    images counts as its frequency.

    Args:
        features: (images, features), finite, such as `Model.features` returns.
        labels: Each image's class, integers (images,) from 0 to classes - 1.
        classes: Names of the classes, at least two; each has at least one image.

    Returns:
        The classifier; `write_classifier` puts it into a packed file.

    Raises:
        ValueError: Shapes or values are not as described, a class has no image, a name cannot be
            that of a class, all images have the same features, or images times classes are more
            than 134,217,728, for which memory might not suffice.
    """
    names = check_classes(classes)
    values, answers = _checked(features, labels, names)
    counts = np.bincount(answers, minlength=len(names))
    chosen, judged = _choose(values, answers, len(names))
    temperature = 1 / judged.factor
    weight, bias = judged.model.classifier(chosen.share)
    with np.errstate(over="ignore"):  # refused below
        weight = (judged.factor * weight).astype(np.float32)
        bias = (judged.factor * bias + judged.model.prior).astype(np.float32)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ValueError(
            "the classifier overflows float32: the features are too small or too large"
        )
    facts = _facts(judged, answers, counts)
    towards, threshold = _direction(values)
    return Learned(names, weight, bias, counts, *facts, towards, threshold, chosen, temperature)


def check_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes, checked as docs/project/pack-format.md requires.

    Raises:
        ValueError: There are fewer than two, a name occurs twice, or cannot be that of a class.
    """
    if isinstance(classes, str):
        raise ValueError(f"classes is one text, {shown(classes)}: give a list of names")  # noqa: TRY004
    names = tuple(classes)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"{shown(name)} is not the name of a class: give a text")
        if _CONTROL.search(name):
            raise ValueError(f"the name of class {shown(name)} has a control character")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the name of class {shown(name)} is not Unicode text") from None
    if len(names) < 2:
        raise ValueError(
            f"there {'is one class' if names else 'are no classes'}; it takes two to tell apart: "
            "add one of other things"
        )
    if len(names) > MAX_OUTPUTS:
        raise ValueError(f"{len(names)} classes; a packed file has at most {MAX_OUTPUTS}")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"two classes are named {shown(twice)}")
    return names


def check_number(images: int, classes: int) -> None:
    """Raise ValueError if memory might not suffice for so many images of so many classes."""
    if images * classes > _MOST_SCORES:
        raise ValueError(
            f"{images:,} images times {classes:,} classes are more than the {_MOST_SCORES:,} that "
            "are learned at once: give fewer images of each class"
        )


def _checked(
    features: ArrayLike, labels: ArrayLike, names: tuple[str, ...]
) -> tuple[Doubles, Whole]:
    values = np.asarray(features)
    if values.ndim != 2 or values.dtype.kind not in "fiu" or not values.shape[1]:
        raise ValueError(
            f"features have shape {values.shape} and dtype {values.dtype}; expected numbers, "
            "(images, features)"
        )
    answers = np.asarray(labels)
    if answers.shape != values.shape[:1] or answers.dtype.kind not in (
        "iu" if len(values) else "iuf"
    ):
        raise ValueError(
            f"labels have shape {answers.shape} and dtype {answers.dtype}; expected an integer for "
            f"each of the {len(values)} images"
        )
    if not len(values):
        raise ValueError("there are no images to learn from")
    check_number(len(values), len(names))
    values = values.astype(np.float64)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise ValueError(f"the features of image {int(np.argmin(finite))} are not finite")
    if answers.min() < 0 or answers.max() >= len(names):
        raise ValueError(
            f"labels are from {answers.min()} to {answers.max()}, but there are "
            f"{len(names)} classes"
        )
    answers = answers.astype(np.intp)
    for name, count in zip(names, np.bincount(answers, minlength=len(names)), strict=True):
        if not count:
            raise ValueError(f"class {shown(name)} has no image")
    if not (values != values[0]).any():
        raise ValueError("all images have the same features, so nothing tells them apart")
    largest = abs(values).max()
    if not _SMALLEST <= largest <= _LARGEST:
        raise ValueError(
            f"the largest feature is {largest:.3g}; scale them to {_SMALLEST:g} to {_LARGEST:g}"
        )
    return values, answers


# --- The two kinds, and what they say of an image that is left out. ---


@dataclass(frozen=True)
class Rows:
    """Images to learn from, in as few coordinates as lose nothing.

    The coordinates are relative to the rows' mean, which is no less exact for images that are left
    out: neither kind of classifier depends on the origin.

    Attributes:
        points: the rows' coordinates, (images, rank).
        zero: those of the features 0, without what is orthogonal to all rows, (rank,).
        back: what maps coordinates to features, (rank, features); its rows are orthonormal.
        mean: the rows' mean, (features,).
        lengths: what each row is multiplied by to give the image's features, (images,).
        labels: each row's class, (images,).
        counts: number of rows of each class, (classes,).
        unit: sum of the points' squares divided by the number of features.
    """

    points: Doubles
    zero: Doubles
    back: Doubles
    mean: Doubles
    lengths: Doubles
    labels: Whole
    counts: Whole
    unit: float


def rows_of(features: Doubles, labels: Whole, classes: int, *, equal_length: bool) -> Rows:
    """Return images as rows to learn from.

    Args:
        features: Finite, (images, features).
        labels: Each image's class, (images,).
        classes: Number of classes.
        equal_length: Whether the features are scaled to their mean length.
    """
    lengths = np.ones(len(features))
    if equal_length:
        norms = np.linalg.norm(features, axis=1)
        lengths = np.where(norms > 0, norms, norms.mean()) / norms.mean()
    rows = features / lengths[:, None]
    mean = rows.mean(axis=0)
    rows = rows - mean
    few = len(rows) <= rows.shape[1]
    values, vectors = np.linalg.eigh(rows @ rows.T if few else rows.T @ rows)
    kept = values > 1e-10 * values[-1] + 1e-300
    values, vectors = values[kept], vectors[:, kept]
    back = (rows.T @ (vectors / np.sqrt(values))).T if few else vectors.T
    return Rows(
        points=rows @ back.T,
        zero=-(back @ mean),
        back=back,
        mean=mean,
        lengths=lengths,
        labels=labels,
        counts=np.bincount(labels, minlength=classes),
        unit=float((rows**2).sum() / rows.shape[1]),
    )


class _Model(Protocol):
    prior: Doubles

    def left_out(self, share: float) -> Doubles:
        """Return each image's scores, (images, classes), by what the other images teach.

        Of an image that is alone in its class they say nothing.
        """
        ...

    def classifier(self, share: float) -> tuple[Doubles, Doubles]:
        """Return the weights, (classes, features), and the biases, (classes,)."""
        ...


class Lda:
    """Linear discriminant analysis.

    With W the scatter within the classes and n images, the covariance is A = (W + γ·1) / n, and the
    score of class j, with mean μⱼ, is μⱼᵀ A⁻¹ x - ½ μⱼᵀ A⁻¹ μⱼ. Without image i of class c, W
    loses k·u·uᵀ and μ_c loses u / (m - 1), where u = xᵢ - μ_c, m is the class's number of images
    and k = m / (m - 1).

    Attributes:
        prior: logarithms of the classes' shares, which are added to the calibrated scores.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.prior: Doubles = np.log(rows.counts / len(rows.labels))
        means = np.stack(
            [rows.points[rows.labels == c].mean(axis=0) for c in range(len(self.prior))]
        )
        within = rows.points - means[rows.labels]
        values, self._vectors = np.linalg.eigh(within.T @ within)
        self._values = np.maximum(values, 0)
        self._means, self._points = means @ self._vectors, rows.points @ self._vectors
        self._zero = rows.zero @ self._vectors

    def left_out(self, share: float) -> Doubles:
        rows, means, points = self.rows, self._means, self._points
        number = len(points)
        at = np.arange(number), rows.labels  # each image's own class
        inverse = 1 / (self._values + share * rows.unit)
        others = np.maximum(rows.counts[rows.labels] - 1, 1)
        step = 1 / others
        u = points - means[rows.labels]
        scaled = u * inverse
        leverage = (scaled * u).sum(axis=1)
        k = (others + 1) / others
        k = k / (1 - k * leverage)
        # Of the means without the image: uᵀ A⁻¹ μ and μᵀ A⁻¹ μ, with the whole A.
        along = scaled @ means.T
        squares = np.tile((means**2) @ inverse, (number, 1))
        squares[at] += step * (step * leverage - 2 * along[at])
        along[at] -= step * leverage
        constant = squares + k[:, None] * along**2

        def scores(products: Doubles, own: Doubles) -> Doubles:
            """Return the scores at points x, from μᵀ A⁻¹ x (images, classes) and uᵀ A⁻¹ x."""
            products[at] -= step * own
            return products + (k * own)[:, None] * along - constant / 2

        here = scores(points @ (means * inverse).T, (scaled * points).sum(axis=1))
        at_zero = (means * inverse) @ self._zero
        zero = scores(np.tile(at_zero, (number, 1)), scaled @ self._zero)
        return (number - 1) * _stretched(here, zero, rows.lengths)

    def classifier(self, share: float) -> tuple[Doubles, Doubles]:
        rows, number = self.rows, len(self.rows.labels)
        scaled = number * self._means / (self._values + share * rows.unit)
        weight = scaled @ self._vectors.T @ rows.back
        return weight, -0.5 * (scaled * self._means).sum(axis=1) - weight @ rows.mean


class Ridge:
    """Ridge regression on the labels, 1 for an image's class and 0 for the others.

    The intercept is not shrunken. Without image i, what is predicted of it is its label minus
    its residual / (1 - hᵢᵢ), where h is the matrix that maps labels to predictions.

    Attributes:
        prior: zeros: the intercepts already count the classes' shares.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.prior: Doubles = np.zeros(len(rows.counts))
        self._values = (rows.points**2).sum(axis=0)  # the coordinates are uncorrelated
        self._labels = np.eye(len(rows.counts))[rows.labels]
        self._mean = self._labels.mean(axis=0)
        self._cross = rows.points.T @ (self._labels - self._mean)

    def left_out(self, share: float) -> Doubles:
        rows, number = self.rows, len(self.rows.labels)
        inverse = 1 / (self._values + share * rows.unit)
        fitted = self._mean + (rows.points * inverse) @ self._cross
        leverage = 1 / number + (rows.points**2) @ inverse
        residual = (self._labels - fitted) / (1 - leverage)[:, None]
        zero = self._mean + (rows.zero * inverse) @ self._cross
        influence = 1 / number + rows.points @ (inverse * rows.zero)
        at_zero = zero - influence[:, None] * residual
        return _stretched(self._labels - residual, at_zero, rows.lengths)

    def classifier(self, share: float) -> tuple[Doubles, Doubles]:
        rows = self.rows
        weight = (self._cross / (self._values + share * rows.unit)[:, None]).T @ rows.back
        return weight, self._mean - weight @ rows.mean


class Means:
    """Directions of the class means, for classes with a single image, where no spread is known.

    The rows are the images' features, cut at a few standard deviations and scaled to norm 1. The
    score of a class is the scalar product of the image with the direction from the mean of the
    class means to the class's own: its length would say more of how many images the class has.

    Attributes:
        prior: zeros: of so few images the classes' shares are chance.
    """

    def __init__(self, features: Doubles, labels: Whole, classes: int) -> None:
        self.prior: Doubles = np.zeros(classes)
        self._features, self._labels = features, labels
        self._length = float(np.linalg.norm(features, axis=1).mean())
        most = _MOST * features.std()
        cut = np.clip(features, -most, most)
        self._rows = cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-300)
        self._counts = np.bincount(labels, minlength=classes)
        self._means = np.stack([self._rows[labels == c].mean(axis=0) for c in range(classes)])

    def _from(self, means: Doubles) -> tuple[Doubles, Doubles]:
        middle = means.mean(axis=0)
        away = means - middle
        away /= np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-300)
        return away / self._length, -(away @ middle)

    def left_out(self, share: float) -> Doubles:
        del share
        scores = np.zeros((len(self._rows), len(self._means)))
        for i, label in enumerate(self._labels):
            count = self._counts[label]
            if count > 1:
                means = self._means.copy()
                means[label] += (means[label] - self._rows[i]) / (count - 1)
                weight, bias = self._from(means)
                scores[i] = weight @ self._features[i] + bias
        return scores

    def classifier(self, share: float) -> tuple[Doubles, Doubles]:
        del share
        return self._from(self._means)


def _stretched(scores: Doubles, zero: Doubles, lengths: Doubles) -> Doubles:
    """Return the scores of images, from those of their rows and of the features 0."""
    return zero + lengths[:, None] * (scores - zero)


# --- The choice. ---


class _Judged(NamedTuple):
    model: _Model
    factor: float  # of the scores
    scores: Doubles  # calibrated, of the images left out, (images, classes)


def _choose(features: Doubles, labels: Whole, classes: int) -> tuple[Way, _Judged]:
    """Return the best way to learn."""
    if np.bincount(labels, minlength=classes).min() == 1:
        means = Means(features, labels, classes)
        return Way("means", True, 0.0), _Judged(means, _CERTAINTY, _CERTAINTY * means.left_out(0))
    best: tuple[float, Way, _Judged] | None = None
    for equal_length in (False, True):
        rows = rows_of(features, labels, classes, equal_length=equal_length)
        models: dict[Kind, _Model] = {"lda": Lda(rows), "ridge": Ridge(rows)}
        for kind, model in models.items():
            for share in SHARES:
                scores = model.left_out(share)
                factor, loss = calibrate(scores, labels, model.prior)
                if best is None or loss < best[0]:
                    judged = _Judged(model, factor, factor * scores + model.prior)
                    best = loss, Way(kind, equal_length, share), judged
    assert best is not None
    return best[1:]


def calibrate(scores: Doubles, labels: Whole, prior: Doubles) -> tuple[float, float]:
    """Return the factor for which softmax(factor · scores + prior) has the least cross-entropy.

    With n images, a label counts as 1 - 1 / (n + 2) of an answer and the other classes share the
    rest (after Platt, 1999), so that the factor is finite where every label has the highest score.

    Args:
        scores: Scores of images that they were not learned from, (images, classes).
        labels: The images' classes, (images,).
        prior: Added to the scores, (classes,).

    Returns:
        The factor, and the cross-entropy. Where the scores say nothing about the labels, the factor
        is small enough for the prior to decide.
    """
    number, classes = scores.shape
    answers = np.full(scores.shape, 1 / (number + 2) / (classes - 1))
    answers[np.arange(number), labels] = 1 - 1 / (number + 2)
    scores = scores - scores.max(axis=1, keepdims=True)
    target = (answers * scores).sum()
    spread = max(float(scores.std()), 1e-300)
    low, high = np.log(1e-3 / spread), np.log(1e4 / spread)
    if (softmax(np.exp(low) * scores + prior) * scores).sum() >= target:
        high = low
    while high - low > 1e-4:
        middle = (low + high) / 2
        slope = (softmax(np.exp(middle) * scores + prior) * scores).sum() - target
        low, high = (middle, high) if slope < 0 else (low, middle)
    factor = float(np.exp(high))
    probabilities = np.maximum(softmax(factor * scores + prior), 1e-300)
    return factor, float(-(answers * np.log(probabilities)).sum() / number)


def softmax(scores: Doubles) -> Doubles:
    """Return the probabilities of scores, each (images, classes)."""
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def standard_error(right: float, number: int) -> float:
    """Return the standard error of the share of right answers among a number of images.

    One right and one wrong answer are added, so that the error of 0 and of 1 is not 0.
    """
    share = (right + 1) / (number + 2)
    return float(np.sqrt(share * (1 - share) / number))


_Facts = tuple[float | None, float | None, float | None, Whole]


def _facts(judged: _Judged, labels: Whole, counts: Whole) -> _Facts:
    """Return accuracy, its error, the largest class's share and the confusions."""
    confusion = np.zeros((len(counts), len(counts)), np.intp)
    is_checked = counts[labels] > 1
    number = int(is_checked.sum())
    if not number:
        return None, None, None, confusion
    answers = judged.scores.argmax(axis=1)
    np.add.at(confusion, (labels[is_checked], answers[is_checked]), 1)
    right = int(np.trace(confusion))
    error = standard_error(right, number)
    largest = float(confusion.sum(axis=1).max() / number)
    return right / number, error, largest, confusion


def _direction(features: Doubles) -> tuple[NDArray[np.int8], float | None]:
    """Return the images' direction, and the threshold of the cosine with it."""
    rows = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-300)
    total = rows.sum(axis=0)
    towards = np.rint(127 * total / max(float(np.abs(total).max()), 1e-300)).astype(np.int8)
    if len(rows) < _LEAST_FOR_THRESHOLD:
        return towards, None
    cosines = np.sort([cosine_to(total - row, row[None])[0] for row in rows])
    return towards, float(cosines[int(KNOWN_REFUSED * len(rows))])


def cosine_to(towards: ArrayLike, features: ArrayLike) -> Doubles:
    """Return the cosine of each image's features, (images, features), with a direction."""
    direction, rows = np.asarray(towards, np.float64), np.asarray(features, np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(direction)
    return (rows @ direction) / np.maximum(lengths, 1e-300)
