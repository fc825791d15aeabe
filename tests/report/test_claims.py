"""What the paper claims: judged by margins of two standard errors."""

from __future__ import annotations

import math

import pytest

from burn.report.claims import Evidence, Scores, claims
from burn.results import Result


def results(
    model: str, *linear: float, knn: float = 30.0, checkpoint: str = "", collapsed: bool = False
) -> list[Result]:
    settings = {"pretraining": {"collapsed_stages": [1] if collapsed else []}}
    return [
        Result(protocol, "top1", value, model, checkpoint or model, "", "", seed, 1.0, settings)
        for seed, number in enumerate(linear)
        for protocol, value in (("linear", number), ("knn", knn))
    ]


def test_the_margin_is_two_standard_errors_of_seeds_and_images():
    found = Scores([*results("a", 50, 52), *results("b", 40, 44), *results("c", 30)], 1000)
    spread = math.sqrt(((1 + 1) + (4 + 4)) / 2)  # squares of both, two degrees of freedom
    assert found.spread() == pytest.approx(spread)
    difference = found.difference("a", "c")
    images = (51 * 49 + 30 * 70) / 1000
    assert difference.points == pytest.approx(21)
    assert difference.margin == pytest.approx(2 * math.sqrt(spread**2 / 2 + spread**2 + images))


def test_the_spread_of_seeds_is_learned_from_other_campaigns_too():
    lonely = Scores([*results("a", 50)], 1000, [*results("b", 40, 44)])
    assert lonely.spread() == pytest.approx(math.sqrt(8))


def test_a_run_that_stands_for_several_variants_counts_once():
    same = [
        *results("frozen", 50, 52, checkpoint="run"),
        *results("poly", 50, 52, checkpoint="run"),
    ]
    found = Scores([*same, *results("b", 40, 44)], 1000)
    assert found.spread() == pytest.approx(math.sqrt(((1 + 1) + (4 + 4)) / 2))


def test_nothing_is_told_where_no_run_has_a_second_seed():
    ablated = [*results("cosine", 60.0), *results("l1", 40.0), *results("l2", 40.0)]
    (claim,) = claims(Evidence(5000, ablated=ablated))
    assert claim.verdict == "cannot be told"
    assert "+20.0, one seed" in claim.here


@pytest.mark.parametrize(
    ("cosine", "verdict"),
    [(60.0, "holds"), (51.0, "cannot be told"), (40.0, "does not hold")],
)
def test_a_claim_holds_where_all_are_behind_by_more_than_the_margin(cosine: float, verdict: str):
    ablated = [*results("cosine", cosine), *results("l1", 50.0, 50.2), *results("l2", 50.0)]
    (claim,) = claims(Evidence(5000, ablated=ablated))
    assert claim.text == "cosine before L1 and L2"
    assert claim.paper == "62.3 against 51.5 against 50.3"
    assert claim.verdict == verdict


def test_one_clear_reversal_refutes_and_one_tie_leaves_open():
    def judged(l1: float, l2: float) -> str:
        ablated = [*results("cosine", 50.0, 50.2), *results("l1", l1), *results("l2", l2)]
        (claim,) = claims(Evidence(5000, ablated=ablated))
        return claim.verdict

    assert judged(40, 50) == "cannot be told"
    assert judged(40, 60) == "does not hold"


def test_the_order_of_methods_names_both_and_the_papers_numbers():
    compared = [*results("burn", 46.0, 46.5), *results("s2bnn", 46.5, 47.0)]
    (claim,) = claims(Evidence(5000, compared=compared))
    assert claim.paper == "BURN 62.3, S2-BNN 61.5"
    assert claim.here.startswith("burn 46.2 (30.0), s2bnn 46.8 (30.0): -0.5 ± ")
    assert claim.verdict == "cannot be told"


def test_fewer_negatives_that_hurt_a_float_network_are_as_the_paper_says():
    def row(network: str, count: int, linear: float, augmentation: str = "InfoMin's") -> dict:
        return {"network": network, "negatives": count, "linear": linear, "knn": 20.0, "seed": 0,
                "augmentation": augmentation}  # fmt: skip

    rows = [
        row("binary", 64, 30), row("binary", 4, 40), row("float", 64, 60), row("float", 4, 50),
        row("binary", 64, 31, "weak"),
    ]  # fmt: skip
    found = claims(Evidence(5000, negatives=rows))
    assert [claim.verdict for claim in found] == ["cannot be told"] * 3  # seeds may differ by more
    found = claims(Evidence(5000, ablated=results("base", 40.0, 41.0), negatives=rows))
    assert [claim.verdict for claim in found] == ["holds", "holds", "cannot be told"]


@pytest.mark.parametrize(
    ("value", "verdict"), [(25.0, "does not hold"), (26.0, "does not hold"), (40.0, "holds")]
)
def test_what_does_not_stand_above_random_weights_did_not_learn(value: float, verdict: str):
    ablated = [
        *results("joint-kl", value, collapsed=True), *results("kl", 44.0, 44.2),
        *results("random weights", 25.0),
    ]  # fmt: skip
    (claim,) = claims(Evidence(5000, ablated=ablated))
    assert claim.verdict == verdict
    assert "collapsed in 1 of 1 runs" in claim.here


def gradient_rows(
    *, later: float = 1.0, growth: float = 1.0, end: int = 40, seeds: int = 2
) -> list[dict]:
    """Step 1, and later: of cosine's classifier, and of L1's and L2's extractor up to `end`."""
    return [
        {
            "teacher_classifier": "frozen", "similarity": similarity, "seed": seed, "step": step,
            "classifier": (1.0 if similarity == "none" else 0.1) * classifier,
            "classifier_per_weight": classifier,
            "extractor": growth if similarity in ("l1", "l2") and step > 1 else 1.0,
            "loss": math.nan if similarity in ("l1", "l2") and step == end < 40 else 1.0,
        }
        for similarity in ("none", "cosine", "l1", "l2")
        for seed in range(seeds)
        for step in range(1, (end if similarity in ("l1", "l2") else 40) + 1)
        if (classifier := later if similarity == "cosine" and step > 1 else 1.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "verdicts"),
    [
        (gradient_rows(), ["cannot be told", "cannot be told"]),
        (gradient_rows(later=0.5, growth=20.0), ["holds", "holds"]),
        (gradient_rows(later=2.0), ["does not hold", "cannot be told"]),
        (gradient_rows(later=0.5, seeds=1), ["cannot be told", "cannot be told"]),
        (gradient_rows(end=7), ["cannot be told", "holds"]),  # L1 and L2 end at what is no number
    ],
)
def test_a_smaller_gradient_counts_where_the_weight_is_divided_away(
    rows: list[dict], verdicts: list[str]
):
    found = claims(Evidence(5000, gradients=rows))
    assert [claim.verdict for claim in found] == verdicts
    assert "× 0.100 at step 1" in found[0].here


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        ({"literal": 2.0, "lars": 3.0}, "holds"),
        ({"literal": 0.5, "lars": 3.0}, "cannot be told"),
        ({"literal": 0.5, "lars": 0.5}, "does not hold"),
    ],
)
def test_drift_is_told_where_all_readings_agree(readings: dict[str, float], verdict: str):
    rows = [
        {"reading": name, "title": name, "step": 100, "binary_many": factor, "float_many": 1.0}
        for name, factor in readings.items()
    ]
    (claim,) = claims(Evidence(5000, ema_toy=rows))
    assert claim.verdict == verdict
