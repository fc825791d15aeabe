"""Linear SVMs on frozen features: VOC07 classification, full and few-shot (Goyal et al., 2019).

The SVM is LIBLINEAR's `-s 1 -w1 2 -w-1 1 -B 1`: with x a row of features and a constant 1, it
minimises ½|w|² + Σ cᵢ max(0, 1 - yᵢ w·xᵢ)², where cᵢ is the cost, doubled for positives. This is
strongly convex with modulus 1, so any w lies within |gradient| of the unique solution; fitting ends
when that distance is small. The module works on arrays only, without paths or images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import joblib
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from threadpoolctl import threadpool_limits

from burn.core.errors import UserError

Floats = NDArray[np.float64]
Choice = Literal["cv", "oracle"]

# Ascending, so that each fit can start from the previous one.
COSTS = (*(0.5**power for power in range(19, 3, -1)), 1.0, 10.0, 100.0)
DEFAULT_COST = 1.0  # LIBLINEAR's own, for a class that has too few images to hold any out
SHOTS = (1, 2, 4, 8, 16, 32, 64, 96)
NEGATIVES_PER_SHOT = 19
NUM_FOLDS = 3

# Classes fitted together. A constant, so that numbers do not depend on the number of cores. 4
# classes × (3 folds + 1) are 16 columns, enough for efficient products with a Gram matrix that is
# larger than the cache.
_GROUP = 4
_TOLERANCE = 1e-4  # of w, relative if |w| < 1; rows have norm √2
_EXACT_SHARE = 0.5  # share of active rows up to which Cholesky is faster than conjugate gradients


@dataclass(frozen=True)
class SvmData:
    """What SVMs learn from and are evaluated on: finite, L2-normalised features, and targets.

    A target is 1 if the class is present, -1 if it is absent, and 0 if it is present only in
    difficult instances, which counts as negative in training and is ignored in the test. Every
    class has a positive and a negative training image.
    """

    train: NDArray[np.float32]  # (images, dimension)
    train_targets: NDArray[np.int8]  # (images, classes)
    test: NDArray[np.float32]
    test_targets: NDArray[np.int8]
    classes: tuple[str, ...]  # names, in the order of the targets' columns


@dataclass(frozen=True)
class SvmScores:
    """Average precision, in [0, 1], and cost of every class, for both choices of the cost.

    Cross-validation on the training images chooses one, the test images the other. Of equally good
    costs it is the lowest; where fewer than two positives or negatives leave none to hold out,
    cost_cv is DEFAULT_COST. A class without positive or without negative test images has NaN in
    ap_cv, ap_oracle and cost_oracle.
    """

    ap_cv: tuple[float, ...]
    ap_oracle: tuple[float, ...]
    cost_cv: tuple[float, ...]
    cost_oracle: tuple[float, ...]
    negatives: tuple[int, ...]  # number of training images without the class that were used

    def mean_ap(self, choice: Choice) -> float:
        """Return mAP, in [0, 1], over the classes with positive and negative test images."""
        return float(np.nanmean(self.ap_cv if choice == "cv" else self.ap_oracle))


def svm_full(
    data: SvmData, seed: int, advance: Callable[[int], None] = lambda _: None
) -> SvmScores:
    """Fit and evaluate SVMs on all training images.

    `advance` is called, in the caller's thread, with the number of classes that were finished since
    the last call.
    """
    gram = _Gram(data.train)
    everything = np.arange(len(data.train))
    groups = [range(len(data.classes))[i : i + _GROUP] for i in range(0, len(data.classes), _GROUP)]
    tasks = (joblib.delayed(_evaluate)(data, gram, everything, group, (seed,)) for group in groups)
    return SvmScores(*zip(*_run(tasks, advance), strict=True))


def svm_few_shot(
    data: SvmData,
    shots: int,
    seed: int,
    num_samples: int = 5,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[SvmScores, ...]:
    """Fit and evaluate SVMs on `shots` positives and 19 times as many negatives, or all if fewer.

    The independent samples are scored one by one. Below three shots, cross-validation has as many
    folds as positives. `advance` is as for `svm_full`, out of classes × num_samples.
    """

    def evaluate(sample: int, index: int) -> list[_ClassScore]:
        key = (seed, shots, sample)
        rows = sample_shots(data.train_targets[:, index], shots, (*key, index))
        return _evaluate(data, _Gram(data.train[rows]), rows, range(index, index + 1), key)

    num_classes = len(data.classes)
    pairs = [(sample, index) for sample in range(num_samples) for index in range(num_classes)]
    scores = _run((joblib.delayed(evaluate)(*pair) for pair in pairs), advance)
    of_samples = (scores[i : i + num_classes] for i in range(0, len(pairs), num_classes))
    return tuple(SvmScores(*zip(*of_sample, strict=True)) for of_sample in of_samples)


def check_shots(data: SvmData, shots: int) -> None:
    """Raise UserError unless every class has `shots` positive training images."""
    for name, count in zip(data.classes, (data.train_targets > 0).sum(axis=0), strict=True):
        if count < shots:
            raise UserError(f"class {name} has {count} positive training images, not {shots}")


def possible_shots(train_targets: NDArray[np.int8]) -> list[int]:
    """Return those of `SHOTS` for which every class has enough positives."""
    fewest = (train_targets > 0).sum(axis=0).min()
    return [k for k in SHOTS if k <= fewest]


def sample_shots(
    targets: NDArray[np.int8], shots: int, seed: int | tuple[int, ...]
) -> NDArray[np.intp]:
    """Draw `shots` positives and 19·shots negatives (or all, if fewer) of a class's targets.

    The rows that are returned ascend.
    """
    random = np.random.default_rng(seed)
    positives, negatives = np.flatnonzero(targets > 0), np.flatnonzero(targets <= 0)
    wanted = min(NEGATIVES_PER_SHOT * shots, len(negatives))
    drawn = random.choice(positives, shots, False), random.choice(negatives, wanted, False)
    return np.sort(np.concatenate(drawn))


def average_precision(scores: NDArray[np.floating], targets: NDArray[np.int8]) -> float:
    """Compute the area under the interpolated precision-recall curve over all points (VOC 2010).

    Equal scores enter the curve together. Images with target 0 are ignored. The area is in [0, 1],
    or NaN without a positive or without a negative, where it would be the same for any ranking.

    >>> average_precision(np.array([3.0, 2.0, 1.0]), np.array([1, -1, 1]))
    0.8333333333333333
    """
    counted = targets != 0
    scores, positive = scores[counted], targets[counted] > 0
    if positive.all() or not positive.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    scores, true_positives = scores[order], np.cumsum(positive[order])
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))  # last of equal scores
    true_positives = true_positives[ends]
    precision = np.maximum.accumulate((true_positives / (ends + 1))[::-1])[::-1]
    return float((precision * np.diff(true_positives, prepend=0)).sum() / true_positives[-1])


def fit_svm(
    features: NDArray[np.float32], positive: NDArray[np.bool_], costs: Sequence[float] = COSTS
) -> Floats:
    """Fit one class's SVM at every cost; ascending ones are faster.

    The weights are (dimension + 1, costs), the intercept last.
    """
    gram, signs = _Gram(features), np.where(positive, 1.0, -1.0)[:, None]
    beta = values = np.zeros_like(signs)
    weights = []
    for cost in costs:
        beta, values = _fit(gram, signs, cost * _class_weights(signs), beta, values)
        weights.append(gram.weights(beta))
    return np.concatenate(weights, axis=1)


# --- Classes, folds and costs. ---


_ClassScore = tuple[float, float, float, float, int]  # a class's values in `SvmScores`


def _run(tasks: Iterator, advance: Callable[[int], None]) -> list[_ClassScore]:
    """Run tasks on all cores, in threads that share the Gram matrix, each with one BLAS thread."""
    scores = []
    with threadpool_limits(1, user_api="blas"):
        for group in joblib.Parallel(-1, backend="threading", return_as="generator")(tasks):
            assert isinstance(group, list)
            scores += group
            advance(len(group))
    return scores


def _evaluate(
    data: SvmData, gram: _Gram, rows: NDArray[np.intp], classes: range, seed: tuple[int, ...]
) -> list[_ClassScore]:
    """Fit and evaluate the SVMs of some classes on some training images, at every cost."""
    positive = data.train_targets[rows][:, classes] > 0
    folds = [
        _folds(column, (*seed, index, 1)) for index, column in zip(classes, positive.T, strict=True)
    ]
    # A column is a fit: each class on all rows, then each class without each of its folds. A row
    # that is held out has weight 0, and the fit still computes its decision value.
    owner = list(range(len(classes)))
    held_out = [np.zeros(len(rows), bool) for _ in classes]
    for i, fold in enumerate(folds):
        owner += [i] * (fold.max() + 1)
        held_out += [fold == number for number in range(fold.max() + 1)]
    signs = np.where(positive, 1.0, -1.0)[:, owner]
    weights = _class_weights(signs) * ~np.array(held_out).T

    cv, test = np.zeros((2, len(classes), len(COSTS)))
    beta = values = np.zeros_like(signs)
    betas = []
    for number, cost in enumerate(COSTS):
        beta, values = _fit(gram, signs, cost * weights, beta, values)
        for column in range(len(classes), len(owner)):
            out = held_out[column]
            truth = signs[out, column].astype(np.int8)
            ap = average_precision(values[out, column], truth)
            cv[owner[column], number] += ap / (folds[owner[column]].max() + 1)
        betas.append(beta[:, : len(classes)])
    # At once, since the test images may be large: each product would read them again.
    normals = gram.weights(np.concatenate(betas, axis=1)).astype(np.float32)
    scores = data.test @ normals[:-1] + normals[-1]
    for column, ranked in enumerate(scores.T):
        number, i = divmod(column, len(classes))
        test[i, number] = average_precision(ranked, data.test_targets[:, classes[i]])

    results: list[_ClassScore] = []
    for i, fold in enumerate(folds):
        chosen = int(cv[i].argmax()) if fold.max() >= 0 else COSTS.index(DEFAULT_COST)
        best = int(test[i].argmax())
        ap_cv, ap_oracle = float(test[i, chosen]), float(test[i, best])
        cost_oracle = float("nan") if np.isnan(ap_oracle) else COSTS[best]
        negatives = int((~positive[:, i]).sum())
        results.append((ap_cv, ap_oracle, COSTS[chosen], cost_oracle, negatives))
    return results


def _folds(positive: NDArray[np.bool_], seed: tuple[int, ...]) -> NDArray[np.intp]:
    """Assign each row to a fold, 0 … 2, with equal shares of the class in each.

    There are fewer folds if there are fewer positives or negatives, and all rows get -1 if nothing
    can be held out.
    """
    num_folds = min(NUM_FOLDS, positive.sum(), (~positive).sum())
    folds = np.full(len(positive), -1)
    if num_folds > 1:
        random = np.random.default_rng(seed)
        for members in (np.flatnonzero(positive), np.flatnonzero(~positive)):
            folds[random.permutation(members)] = np.arange(len(members)) % num_folds
    return folds


def _class_weights(signs: Floats) -> Floats:
    return np.where(signs > 0, 2.0, 1.0)


# --- The solver. ---
#
# Newton's method in the primal. w = Σ βᵢ xᵢ is represented by β, so that with the Gram matrix K a
# step of conjugate gradients is one product K·ρ, and a batch of fits is one matrix product. If few
# rows are active (large costs), Newton's system on them is solved exactly instead. Both use
# float64: in float32, rounding errors in the part of β that does not affect w (K is singular for
# duplicate images and for images > dimension) dominate the part that does.
#
# Measured on one core (AVX-512) with overlapping classes of pooled ReLU-like features, 2,400 ×
# 4,096, at costs 10 and 100: an exact step took 11 to 22 ms; a step by conjugate gradients took 25
# ms for a fit, even in float32, to reduce the gradient to a tenth. Truncated conjugate gradients on
# the dual's active set cycled from cost 0.03 on, since their steps need not descend.


class _Gram:
    """The Gram matrix K of rows of features with a 1 appended; calling it returns K·v."""

    def __init__(self, features: NDArray[np.float32]) -> None:
        ones = np.ones((len(features), 1), np.float32)
        self._rows = np.concatenate((features, ones), axis=1)
        rows = self._rows.astype(np.float64)
        self.matrix: Floats | None = None
        if len(rows) <= 2 * rows.shape[1]:  # otherwise K is larger than the rows, and slower
            self.matrix = rows @ rows.T
        self._double = rows if self.matrix is None else None

    def __call__(self, columns: Floats) -> Floats:
        if self._double is None:
            assert self.matrix is not None
            return self.matrix @ columns
        return self._double @ (self._double.T @ columns)

    def weights(self, beta: Floats) -> Floats:
        """Return w, (dimension + 1, columns), from β, (images, columns)."""
        return self._rows.T @ beta


def _fit(
    gram: _Gram, signs: Floats, costs: Floats, beta: Floats, values: Floats
) -> tuple[Floats, Floats]:
    """Minimise ½ βᵀKβ + Σ cᵢ max(0, 1 - yᵢ(Kβ)ᵢ)² in every column, and return β and values K·β.

    All are (images, columns). It begins with the given β and values.
    """
    beta, values = beta.copy(), values.copy()
    live = np.arange(signs.shape[1])
    for _ in range(200):
        y, c, b, f = (array[:, live] for array in (signs, costs, beta, values))
        slack = np.maximum(1 - y * f, 0)
        gradient = b - 2 * c * y * slack  # in β's coordinates: its length is that of Σ gᵢ xᵢ
        image = gram(gradient)
        length = np.sqrt(np.maximum((gradient * image).sum(axis=0), 0))
        norm = np.sqrt(np.maximum((b * f).sum(axis=0), 0))
        # 1e-9 ends a fit whose solution is 0: its gradient then consists of rounding errors only.
        more = length > _TOLERANCE * np.minimum(norm, 1) + 1e-9
        live = live[more]
        if not len(live):
            return beta, values
        y, c, b, f, slack, gradient, image = (
            array[:, more] for array in (y, c, b, f, slack, gradient, image)
        )
        step, active = np.empty_like(b), (slack > 0) & (c > 0)
        exact = (gram.matrix is not None) & (active.sum(axis=0) <= _EXACT_SHARE * len(b))
        for column in np.flatnonzero(exact):
            assert gram.matrix is not None
            rows, costs_of = np.flatnonzero(active[:, column]), c[:, column]
            step[:, column] = _exact_step(gram.matrix, rows, y[:, column], costs_of, b[:, column])
        if not exact.all():
            curvature = 2 * (c * active)[:, ~exact]
            step[:, ~exact] = _step(gram, curvature, gradient[:, ~exact], image[:, ~exact])
        change = gram(step)
        length = _line_search(step, change, y, c, f)
        beta[:, live] = b + length * step
        values[:, live] = f + length * change
    raise AssertionError(f"the SVM did not converge: gradient {length.max()} after 200 steps")


def _step(gram: _Gram, curvature: Floats, gradient: Floats, image: Floats) -> Floats:
    """Solve (I + diag(curvature)·K) step = -gradient roughly, to a tenth of the gradient.

    These are conjugate gradients for the Hessian I + Σ curvatureᵢ xᵢxᵢᵀ in w's space, in β's
    coordinates.
    """
    d, r, kr = curvature, -gradient, -image
    result, live = np.zeros_like(gradient), np.arange(gradient.shape[1])
    x, p, kp = np.zeros_like(r), r.copy(), kr.copy()
    square = (r * kr).sum(axis=0)
    goal = 0.01 * square
    for iteration in range(300):
        hp = p + d * kp
        bend = (hp * kp).sum(axis=0)
        # Not above 0 if only rounding errors are left: end then, but not without a first step.
        fine = (bend > 0) & (square > 0)
        rate = np.where(fine, square, iteration == 0) / np.where(fine, bend, 1)
        x += rate * p
        r = r - rate * hp
        kr = gram(r)
        before, square = square, (r * kr).sum(axis=0)
        ratio = square / np.where(fine, before, 1)
        p, kp = r + ratio * p, kr + ratio * kp  # K·p without another product
        more = fine & (square > goal)
        if not more.all():
            result[:, live[~more]] = x[:, ~more]
            live = live[more]
            if not len(live):
                return result
            d, x, r, kr, p, kp = (array[:, more] for array in (d, x, r, kr, p, kp))
            square, goal = square[more], goal[more]
    result[:, live] = x
    return result


def _exact_step(
    gram: Floats, rows: NDArray[np.intp], y: Floats, costs: Floats, beta: Floats
) -> Floats:
    """Return Newton's step of one fit, which solves a system on the active rows exactly.

    It leads to (K + diag(1 / 2c)) β = y on these rows and β = 0 elsewhere.
    """
    step = -beta
    if len(rows):
        system = gram[np.ix_(rows, rows)]
        system[np.diag_indices(len(rows))] += 0.5 / costs[rows]
        step[rows] += solve(system, y[rows], assume_a="pos", overwrite_a=True, check_finite=False)
    return step


def _line_search(step: Floats, change: Floats, y: Floats, c: Floats, f: Floats) -> Floats:
    """Find the length of the step that minimises each column.

    It is the root of a rising, piecewise linear slope, found by Newton's method from 1, or by
    bisection if Newton's method leaves the bracket.
    """
    first, second = (step * f).sum(axis=0), (step * change).sum(axis=0)
    margin, speed = 1 - y * f, y * change
    weighted = 2 * c * speed
    low, high = np.zeros(len(first)), np.full(len(first), np.inf)
    length = np.ones(len(first))
    for _ in range(30):
        slack = margin - length * speed
        slope = first + length * second - (weighted * np.maximum(slack, 0)).sum(axis=0)
        rise = second + (weighted * speed * (slack > 0)).sum(axis=0)
        low, high = np.where(slope < 0, length, low), np.where(slope < 0, high, length)
        following = length - slope / rise
        middle = np.where(np.isinf(high), 2 * length, (low + high) / 2)
        inside = (following > low) & (following < high)
        following = np.where(inside, following, middle)
        if (np.abs(following - length) < 1e-6 * length).all():
            break
        length = following
    return length
