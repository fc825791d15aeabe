"""SVMs against LIBLINEAR itself, average precision against loops, and the protocol's rules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from liblinear.liblinearutil import predict, train

from burn.core.errors import UserError
from burn.evaluation.svm.solver import (
    COSTS,
    DEFAULT_COST,
    SvmData,
    SvmScores,
    average_precision,
    check_shots,
    fit_svm,
    possible_shots,
    sample_shots,
    svm_few_shot,
    svm_full,
)


def pooled(images: int, dimension: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positive, correlated, L2-normalised features, as a backbone's; classes that overlap."""
    random, basis = np.random.default_rng(seed), np.random.default_rng(99)
    present = random.random((images, classes)) < 0.25
    hidden = random.standard_normal((images, 16))
    hidden += present @ basis.standard_normal((classes, 16))
    features = np.maximum(hidden @ basis.standard_normal((16, dimension)) + 2, 0)
    features += random.random(features.shape)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return features.astype(np.float32), np.where(present, 1, -1).astype(np.int8)


def toy(images: int = 120, classes: int = 2) -> SvmData:
    names = tuple("abcdefgh"[:classes])
    return SvmData(*pooled(images, 24, classes, 0), *pooled(80, 24, classes, 1), names)


# --- The solver. ---


def decisions(weights: np.ndarray, features: np.ndarray) -> np.ndarray:
    return features.astype(np.float64) @ weights[:-1] + weights[-1]


def liblinear(
    features: np.ndarray, positive: np.ndarray, cost: float, tolerance: str
) -> np.ndarray:
    signs = np.where(positive, 1, -1)
    options = f"-s 1 -c {cost!r} -w1 2 -w-1 1 -B 1 -e {tolerance} -q"
    model: Any = train(signs, features.astype(np.float64), options)
    values = predict(signs, features.astype(np.float64), model, "-q")[2]
    return np.ravel(values) * model.get_labels()[0]


@pytest.mark.parametrize(
    ("images", "dimension"),
    [(60, 100), (150, 20)],  # with the Gram matrix and, since images > 2·(dimension + 1), without
)
@pytest.mark.parametrize("cost", [0.5**19, 0.5**10, 0.5**4, 1.0, 100.0])
def test_decision_values_are_liblinears(images: int, dimension: int, cost: float):
    features, targets = pooled(images, dimension, 1, 3)
    positive = targets[:, 0] > 0
    ours = decisions(fit_svm(features, positive, [cost])[:, 0], features)
    usual = liblinear(features, positive, cost, "1e-4")
    exact = liblinear(features, positive, cost, "1e-8")
    # Where LIBLINEAR stops is the looser end: at cost 100 it is 2e-3 from its own run at 1e-8.
    assert np.abs(ours - usual).max() < 1e-3 + np.abs(usual - exact).max() * (cost == 100)
    # |w - w*| <= 1e-4·min(1, |w|), rows have norm √2, and |w·x| reaches |w|/2 here.
    assert np.abs(ours - exact).max() < 1.5e-4 * min(1, 2 * np.abs(exact).max())


@pytest.mark.parametrize("images", [40, 90])
def test_the_solution_has_no_gradient_by_hand(images: int):
    features, targets = pooled(images, 30, 1, 4)
    signs = targets[:, 0].astype(np.float64)
    rows = np.column_stack((features, np.ones(images))).astype(np.float64)
    for cost, w in zip(COSTS, fit_svm(features, signs > 0).T, strict=True):
        gradient = w.copy()
        for x, y in zip(rows, signs, strict=True):
            gradient -= 2 * cost * (2 if y > 0 else 1) * y * max(0, 1 - y * (w @ x)) * x
        # The tolerance, and float32 features in the sum of β.
        assert np.linalg.norm(gradient) < 1.1e-4 * min(1, np.linalg.norm(w)) + 1e-6 * cost


def test_warm_starts_change_nothing():
    features, targets = pooled(80, 30, 1, 5)
    together = fit_svm(features, targets[:, 0] > 0)
    for cost, w in zip(COSTS, together.T, strict=True):
        alone = fit_svm(features, targets[:, 0] > 0, [cost])[:, 0]
        # Both lie within 1e-4 of the one solution.
        assert np.linalg.norm(alone - w) < 2.1e-4 * min(1, np.linalg.norm(w))


@pytest.mark.parametrize(
    "features",
    [
        np.full((90, 4), 0.5, np.float32),  # a collapsed backbone
        np.zeros((90, 200), np.float32),
        np.eye(3, dtype=np.float32)[np.arange(90) % 3],  # copies with contradicting labels
    ],
)
@pytest.mark.parametrize("positives", [0, 1, 30, 45, 90])  # 30 of 90 doubled cancel 60
def test_degenerate_features_converge(features: np.ndarray, positives: int):
    weights = fit_svm(features, np.random.default_rng(0).permutation(90) < positives)
    assert np.isfinite(weights).all()


# --- Average precision. ---


def average_precision_by_loops(scores: list[float], targets: list[int]) -> float:
    """For each positive, the best precision at any threshold that reaches it or lower ones."""
    pairs = [(s, t) for s, t in zip(scores, targets, strict=True) if t != 0]
    positives = [s for s, t in pairs if t > 0]
    total = 0.0
    for own in positives:
        best = 0.0
        for threshold in scores:
            if threshold <= own:
                above = [t for s, t in pairs if s >= threshold]
                if above:
                    best = max(best, sum(t > 0 for t in above) / len(above))
        total += best
    return total / len(positives)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-3, 6), st.sampled_from([-1, 0, 1])), min_size=1, max_size=25)
)
def test_average_precision_by_loops(pairs: list[tuple[int, int]]):
    scores, targets = [s / 4 for s, _ in pairs], [t for _, t in pairs]
    found = average_precision(np.array(scores, np.float32), np.array(targets, np.int8))
    if 1 not in targets or -1 not in targets:
        assert math.isnan(found)
    else:
        expected = average_precision_by_loops(scores, targets)
        assert found == pytest.approx(expected, abs=1e-12)  # float64 in another order


def test_average_precision_of_a_constant_is_the_share_of_positives():
    targets = np.array([1, 1, -1, -1, -1, 0], np.int8)
    assert average_precision(np.zeros(6), targets) == pytest.approx(2 / 5, abs=1e-15)


# --- The protocol. ---


def test_the_costs_of_the_paper():
    assert sorted(COSTS) == sorted([1, 10, 100, *(0.5**power for power in range(4, 20))])
    assert list(COSTS) == sorted(COSTS)


def test_full_by_hand():
    """The oracle's APs from one fit for each cost and class; cv's among them and no better."""
    data = toy()
    scores = svm_full(data, seed=0)
    for index in range(2):
        weights = fit_svm(data.train, data.train_targets[:, index] > 0)
        values = [decisions(w, data.test) for w in weights.T]
        aps = [average_precision(v, data.test_targets[:, index]) for v in values]
        # Two runs of the solver may swap neighbours of 80 images whose scores differ by 1e-4.
        assert scores.ap_oracle[index] == pytest.approx(max(aps), abs=5e-3)
        chosen = aps[COSTS.index(scores.cost_cv[index])]
        assert scores.ap_cv[index] == pytest.approx(chosen, abs=5e-3)
        assert scores.ap_oracle[index] >= scores.ap_cv[index] > 0.25
        assert scores.negatives[index] == (data.train_targets[:, index] < 0).sum()
    assert scores.mean_ap("cv") == pytest.approx(np.mean(scores.ap_cv), abs=1e-12)
    assert scores.mean_ap("oracle") >= scores.mean_ap("cv")


def test_cross_validation_holds_out(monkeypatch: pytest.MonkeyPatch):
    random, data = np.random.default_rng(0), toy(90, 1)
    noise = np.where(random.random((90, 1)) < 0.5, 1, -1).astype(np.int8)
    seen = []
    monkeypatch.setattr(
        "burn.evaluation.svm.solver.average_precision",
        lambda scores, targets: (
            seen.append((scores, targets)) or average_precision(scores, targets)
        ),
    )
    svm_full(replace(data, train_targets=noise), seed=0)
    folds = [(s, t) for s, t in seen if len(t) < 80]
    assert len(folds) == 3 * len(COSTS)
    for number in range(len(COSTS)):
        three = folds[3 * number : 3 * number + 3]
        assert sum(len(t) for _, t in three) == 90, "every row is held out once"
        positives = [int((t > 0).sum()) for _, t in three]
        assert sum(positives) == (noise > 0).sum()
        assert max(positives) - min(positives) <= 1, "stratified"


def test_cross_validation_finds_nothing_in_noise(monkeypatch: pytest.MonkeyPatch):
    """Random labels: were the rows held out learnt from, their AP would be near 1."""
    data, found = SvmData(*pooled(90, 200, 1, 0), *pooled(80, 200, 1, 1), ("a",)), []

    def record(scores: np.ndarray, targets: np.ndarray) -> float:
        ap = average_precision(scores, targets)
        if len(targets) < 80:
            found.append(ap)
        return ap

    monkeypatch.setattr("burn.evaluation.svm.solver.average_precision", record)
    for seed in range(4):
        noise = np.where(np.random.default_rng(seed).random((90, 1)) < 0.5, 1, -1).astype(np.int8)
        svm_full(replace(data, train_targets=noise), seed)
        inside = decisions(fit_svm(data.train, noise[:, 0] > 0, [100.0])[:, 0], data.train)
        assert average_precision(inside, noise[:, 0]) > 0.99
    # Permuted scores give 0.60 (interpolation lifts it); one draw's spread is 0.09.
    assert np.mean(found) < 0.73


def test_difficult_is_a_negative_in_training_and_no_image_in_the_test():
    data = toy()
    train_targets, test_targets = data.train_targets.copy(), data.test_targets.copy()
    train_targets[np.flatnonzero(train_targets[:, 0] < 0)[:20], 0] = 0
    assert svm_full(replace(data, train_targets=train_targets), 0) == svm_full(data, 0)
    test_targets[10:30] = 0
    kept = np.r_[:10, 30:80]
    fewer = replace(data, test=data.test[kept], test_targets=data.test_targets[kept])
    marked = svm_full(replace(data, test_targets=test_targets), 0)
    expected = svm_full(fewer, 0)
    # A product with fewer rows may round differently, but not by the distance of two scores.
    assert marked.ap_cv == pytest.approx(expected.ap_cv, abs=1e-12)
    assert marked.ap_oracle == pytest.approx(expected.ap_oracle, abs=1e-12)


@pytest.mark.parametrize("left", [-1, 1])
def test_a_class_with_one_kind_of_test_images_is_left_out(left: int):
    data = toy()
    targets = data.test_targets.copy()
    targets[:, 1] = np.where(targets[:, 1] == left, left, 0)
    scores = svm_full(replace(data, test_targets=targets), 0)
    assert math.isnan(scores.ap_cv[1])
    assert math.isnan(scores.ap_oracle[1])
    assert math.isnan(scores.cost_oracle[1])
    assert scores.mean_ap("cv") == scores.ap_cv[0]
    assert scores.mean_ap("oracle") == scores.ap_oracle[0]


@pytest.mark.parametrize(("negatives", "known"), [(1, True), (2, False)])
def test_a_class_that_is_nearly_everywhere(negatives: int, known: bool):
    data = toy()
    targets = np.ones_like(data.train_targets)
    targets[:negatives] = -1
    scores = svm_full(replace(data, train_targets=targets), 0)
    assert scores.negatives == (negatives, negatives)
    assert not known or scores.cost_cv == (DEFAULT_COST, DEFAULT_COST)


def test_groups_of_classes_and_progress():
    data, told = toy(60, 6), []
    scores = svm_full(data, 0, told.append)
    assert told == [4, 2]
    assert len(scores.ap_cv) == 6
    columns = {"train_targets": data.train_targets[:, :4], "test_targets": data.test_targets[:, :4]}
    alone = svm_full(replace(data, **columns, classes=data.classes[:4]), 0)
    assert scores.ap_cv[:4] == alone.ap_cv


# --- Few shots. ---


def test_samples_have_k_positives_and_19_k_negatives():
    targets = np.random.default_rng(0).permutation(
        np.repeat([1, 0, -1], [30, 20, 500]).astype(np.int8)
    )
    for shots in (1, 2, 16, 27):
        rows = sample_shots(targets, shots, (0, shots))
        assert len(set(rows.tolist())) == len(rows) == 20 * shots
        assert (targets[rows] > 0).sum() == shots
        assert (targets[rows] <= 0).sum() == 19 * shots
        assert np.array_equal(rows, sample_shots(targets, shots, (0, shots)))
        assert not np.array_equal(rows, sample_shots(targets, shots, (1, shots)))
    rows = sample_shots(targets, 30, 0)  # 570 wanted, 520 there
    assert (targets[rows] > 0).sum() == 30
    assert (targets[rows] <= 0).sum() == 520


def test_few_shots():
    data, told = toy(100), []
    found = {k: svm_few_shot(data, k, 0, 3, told.append) for k in (1, 2, 4)}
    assert told == [1] * 18
    for shots, scores in found.items():
        assert len(scores) == 3
        assert len({sample.ap_oracle for sample in scores}) == 3, "independent"
        for sample in scores:
            assert all(o >= c for o, c in zip(sample.ap_oracle, sample.ap_cv, strict=True))
            most = (data.train_targets < 0).sum(axis=0)
            assert sample.negatives == tuple(min(19 * shots, int(n)) for n in most)
            assert set(sample.cost_cv) <= ({DEFAULT_COST} if shots == 1 else set(COSTS))
    assert svm_few_shot(data, 2, 0, 3) == found[2]
    assert svm_few_shot(data, 2, 1, 3) != found[2]


def test_the_test_images_are_read_once_for_all_costs():
    """They are the largest matrix by far where there are few shots."""
    products = []

    class Counted(np.ndarray):
        def __matmul__(self, other: Any) -> Any:
            products.append(other.shape)
            return np.asarray(self) @ other

    data = toy(100)
    counted = replace(data, test=data.test.view(Counted))
    assert svm_few_shot(counted, 2, 0, 3) == svm_few_shot(data, 2, 0, 3)
    assert products == [(24, len(COSTS))] * 6


def test_possible_shots():
    targets = np.full((300, 2), -1, np.int8)
    targets[:40, 0], targets[:9, 1], targets[9:80, 1] = 1, 1, 0
    assert possible_shots(targets) == [1, 2, 4, 8]
    assert possible_shots(targets[20:]) == []


def test_results_depend_on_the_seed_alone():
    data = toy()
    first: SvmScores = svm_full(data, 3)
    np.random.default_rng()
    assert svm_full(data, 3) == first


# --- Errors. ---


def test_an_error_names_the_class_and_the_numbers():
    data = toy()
    count = int((data.train_targets[:, 0] > 0).sum())
    with pytest.raises(UserError, match=f"class a has {count} positive training images, not 96"):
        check_shots(data, 96)
