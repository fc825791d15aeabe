"""Differences with their errors: against formulas by hand and repeated experiments."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from burn.core.results import Result, decode_right, encode_right
from reproduction.paired import Difference, Scores, holm

IMAGES = 500


def runs_of(
    model: str, *values: float, seeds: tuple[int, ...] | None = None, trained: bool = True
) -> list[Result]:
    """Without the answers."""
    settings = {"pretraining": {}} if trained else {}
    return [
        Result("linear", "top1", value, model, f"{model}-{seed}", "", "", seed, 1.0, settings)
        for seed, value in zip(seeds or range(len(values)), values, strict=True)
    ]


def answered(model: str, seed: int, right: np.ndarray) -> Result:
    (result,) = runs_of(model, 100 * float(right.mean()), seeds=(seed,))
    return replace(result, data={"test_images": len(right)}, right=encode_right(right))


@pytest.mark.parametrize("number", [1, 7, 8, 9, 500])
def test_answers_come_back(number: int):
    right = np.random.default_rng(number).random(number) < 0.5
    assert np.array_equal(decode_right(answered("a", 0, right)), right)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"right": None}, {"right": "!"}, {"right": "AA=="}, {"data": None},
        {"data": {"test_images": 12}}, {"data": {"test_images": "500"}},
    ],
)  # fmt: skip
def test_answers_that_cannot_be_are_none(changes: dict):
    result = answered("a", 0, np.ones(IMAGES, dtype=bool))
    assert decode_right(replace(result, **changes)) is None


def test_training_again_is_what_remains_of_a_table_of_models_and_seeds():
    table = {"a": (50.0, 52.0, 51.0), "b": (40.0, 44.0, 41.0), "c": (30.0, 33.0, 36.0)}
    scores = Scores([r for name, values in table.items() for r in runs_of(name, *values)], IMAGES)
    block = np.array(list(table.values()))
    fitted = (
        block.mean(axis=1, keepdims=True) + block.mean(axis=0, keepdims=True) - block.mean()
    )  # fmt: skip
    variance, freedom = scores.retraining()
    assert freedom == 4
    assert variance == pytest.approx(float(np.square(block - fitted).sum()) / 4)


def test_models_of_other_seeds_add_what_they_know():
    scores = Scores(
        [*runs_of("a", 50, 52), *runs_of("b", 40, 45), *runs_of("c", 30, 31, 32, seeds=(5, 6, 7))],
        IMAGES, runs_of("elsewhere", 10, 14),
    )  # fmt: skip
    # a and b: residuals of ±0.75; c: its own spread of three; elsewhere: of two.
    variance, freedom = scores.retraining()
    assert freedom == 1 + 2 + 1
    assert variance == pytest.approx((4 * 0.75**2 + 2 + 8) / 4)


def test_a_run_that_stands_for_several_names_counts_once():
    first = runs_of("frozen", 50, 52)
    twice = [replace(r, model="poly") for r in first]
    scores = Scores([*first, *twice, *runs_of("b", 40, 44)], IMAGES)
    assert scores.retraining()[1] == 1
    same = scores.difference("frozen", "poly")
    assert (same.points, same.p) == (0, 1)


def test_random_weights_displace_no_run_of_the_checkpoint_whose_network_they_have():
    (weights,) = runs_of("random weights", 10, trained=False)
    runs = [*runs_of("a", 50, 52, 51), *runs_of("b", 40, 44, 41)]
    scores = Scores([replace(weights, checkpoint=runs[0].checkpoint), *runs], IMAGES)
    assert scores.retraining() == Scores(runs, IMAGES).retraining()


@pytest.mark.parametrize(("networks", "critical"), [(5, 0.928), (10, 0.718), (15, 0.575)])
def test_a_variance_is_an_outlier_beyond_cochrans_critical_value(networks: int, critical: float):
    """The values are those of ISO 5725-2, table 4, for two seeds and 1 %."""
    rest = [r for i in range(networks - 1) for r in runs_of(f"n{i}", 40, 40 + (-1) ** i)]
    for share, uneven in ((critical - 0.01, False), (critical + 0.01, True)):
        apart = math.sqrt((networks - 1) * share / (1 - share))  # others differ by 1
        scores = Scores([*rest, *runs_of("diverging", 40, 40 + apart)], IMAGES)
        variance, freedom = scores.retraining()
        assert freedom == networks - (2 if uneven else 1)
        assert (variance > 0.7) == (not uneven)


def test_a_network_that_diverges_with_a_seed_makes_its_own_differences_uncertain_alone():
    even = [r for i in range(6) for r in runs_of(f"n{i}", 40 + i, 41 + i + (-1) ** i)]
    scores = Scores([*even, *runs_of("diverging", 10, 30)], IMAGES)
    alone = Scores(even, IMAGES)
    assert scores.retraining() == alone.retraining()
    assert scores.difference("n5", "n0") == alone.difference("n5", "n0")
    difference = scores.difference("n0", "diverging")
    common, freedom = scores.retraining()
    assert difference.seeds == pytest.approx(200 / 2 + common / 2)
    welch = difference.seeds**2 / (100**2 / 1 + (common / 2) ** 2 / freedom)
    assert difference.freedom == pytest.approx(welch)
    assert difference.p > 0.05


def test_the_error_is_that_of_seeds_and_of_images():
    scores = Scores([*runs_of("a", 50, 52), *runs_of("b", 40, 44)], IMAGES)
    difference = scores.difference("a", "b")
    variance, freedom = scores.retraining()
    assert difference.points == pytest.approx(9)
    assert difference.seeds == pytest.approx(variance)  # 2 · σ² / 2 seeds
    assert difference.images == pytest.approx((51 * 49 + 42 * 58) / IMAGES)
    assert difference.error == pytest.approx(math.sqrt(difference.images + variance))
    total = difference.images + difference.seeds
    welch = freedom * (total / difference.seeds) ** 2
    expected = 2 * stats.t.sf(9 / difference.error, welch)
    assert difference.p == pytest.approx(expected)
    assert difference.margin == pytest.approx(stats.t.ppf(0.975, welch) * difference.error)


def test_answers_pair_the_images():
    """Two networks that are right of nearly the same images differ surely by little."""
    random = np.random.default_rng(0)
    right = random.random(IMAGES) < 0.5
    better = right.copy()
    better[np.flatnonzero(~right)[:15]] = True
    both = [answered("a", s, better) for s in (0, 1)] + [answered("b", s, right) for s in (0, 1)]
    paired = Scores(both, IMAGES).difference("a", "b")
    unpaired = Scores([replace(r, right=None) for r in both], IMAGES).difference("a", "b")
    assert paired.points == unpaired.points == pytest.approx(3)
    apart = 100 * (better.astype(float) - right)
    assert paired.images == pytest.approx(apart.var(ddof=1) / IMAGES)
    assert paired.images < 0.2 * unpaired.images


def test_only_seeds_that_both_have_are_compared():
    results = [*runs_of("a", 50, 52, 90), *runs_of("b", 40, 44)]
    assert Scores(results, IMAGES).difference("a", "b").points == pytest.approx(9)

    results += [replace(each, protocol="knn") for each in results]
    assert Scores(results, IMAGES).told("a", "b") == "a 51.0 (51.0), b 42.0 (42.0)"


def test_runs_without_a_common_seed_decide_nothing():
    """An effect of a seed on all networks would be taken for a difference."""
    results = [*runs_of("a", 60, 70, seeds=(0, 1)), *runs_of("b", 50, 40, seeds=(2, 3))]
    difference = Scores(results, IMAGES, results).difference("a", "b")
    assert difference.points == pytest.approx(20)
    assert math.isinf(difference.margin)


def test_a_result_knows_its_own_number_of_images():
    runs = [*runs_of("a", 50, 52), *runs_of("b", 40, 44)]
    few = [replace(run, data={"test_images": IMAGES // 4}) for run in runs]
    images = [Scores(each, IMAGES).difference("a", "b").images for each in (runs, few)]
    assert images[1] == pytest.approx(4 * images[0])


def test_one_seed_of_a_trained_network_leaves_the_error_unknown():
    scores = Scores([*runs_of("a", 50), *runs_of("b", 40, 44), *runs_of("c", 40, 43)], IMAGES)
    difference = scores.difference("a", "b")
    assert difference.p == 1
    assert math.isinf(difference.margin)
    assert difference.seeds_needed() is None


def test_a_network_that_was_not_trained_here_has_no_seeds():
    results = [
        *runs_of("a", 50, 52),
        *runs_of("b", 40, 43),
        *runs_of("floor", 20, trained=False),
    ]
    scores = Scores(results, IMAGES)
    difference = scores.difference("a", "floor")
    assert difference.points == pytest.approx(31)
    assert difference.seeds == pytest.approx(scores.retraining()[0] / 2)
    assert difference.p < 0.01


def test_of_equal_networks_one_experiment_in_twenty_errs_at_most():
    """Networks with an accuracy of their own for each image, and noise of training again."""
    random = np.random.default_rng(1)
    false, experiments = 0, 400
    for _ in range(experiments):
        chance = random.beta(2, 2, IMAGES)
        results = [
            answered(
                model, seed, random.random(IMAGES) < np.clip(chance + random.normal() / 50, 0, 1)
            )
            for model in ("a", "b", "c", "d")
            for seed in (0, 1, 2)
        ]
        false += Scores(results, IMAGES).difference("a", "b").p < 0.05
    assert false / experiments < 0.07


def test_a_real_difference_is_found():
    random = np.random.default_rng(2)
    found, experiments = 0, 50
    for _ in range(experiments):
        chance = random.beta(2, 2, 5000)
        results = [
            answered(model, seed, random.random(5000) < np.clip(chance + shift, 0, 1))
            for model, shift in (("a", 0.03), ("b", 0.0), ("c", 0.0))
            for seed in (0, 1, 2)
        ]
        found += Scores(results, 5000).difference("a", "b").p < 0.05
    assert found > 0.9 * experiments


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([0.01, 0.04, 0.03, 0.005], [True, False, False, True]),  # of a textbook
        ([0.06], [False]),
        ([0.04], [True]),
        ([0.03, 0.04], [False, False]),
        ([0.02, 0.04], [True, True]),
        ([], []),
        ([1.0, 0.0], [False, True]),
    ],
)
def test_holm(probabilities: list[float], expected: list[bool]):
    assert holm(probabilities) == expected


def test_how_many_seeds_would_decide():
    """At n seeds of every network the difference is decided among twenty claims, at n - 1 not."""
    difference = Difference(2.0, images=0.1, seeds=1.0, freedom=10, runs=2)
    needed = difference.seeds_needed()
    assert needed is not None
    # 2 runs of variance 1 together, so n seeds leave 2 / n, with 10 (n - 1) degrees of freedom.
    few, enough = (
        replace(difference, seeds=2 / n, freedom=10 * (n - 1), runs=n).p
        for n in (needed - 1, needed)
    )
    assert enough <= 0.05 / 20 < few
    assert needed == 7
    assert replace(difference, images=0.5).seeds_needed() is None
    # A network with a variance of its own has few degrees of freedom, and needs more seeds.
    own = replace(difference, freedom=1).seeds_needed()
    assert own is not None
    assert own > needed
