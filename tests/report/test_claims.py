"""What the paper claims: judged by margins of two standard errors."""

from __future__ import annotations

import math

import pytest

from burn.report.claims import Evidence, Scores, claims
from burn.results import Result


def results(model: str, *linear: float, knn: float = 30.0) -> list[Result]:
    return [
        Result(protocol, "top1", value, model, "", "", "", seed, 1.0, {})
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


@pytest.mark.parametrize(
    ("cosine", "verdict"),
    [(60.0, "holds"), (51.0, "cannot be told"), (40.0, "does not hold")],
)
def test_a_claim_holds_where_all_are_behind_by_more_than_the_margin(cosine: float, verdict: str):
    ablated = [*results("cosine", cosine), *results("l1", 50.0), *results("l2", 50.0)]
    (claim,) = claims(Evidence(ablated=ablated, test_images=5000))
    assert claim.text == "cosine before L1 and L2"
    assert claim.paper == "62.3 against 51.5 against 50.3"
    assert claim.verdict == verdict


def test_one_clear_reversal_refutes_and_one_tie_leaves_open():
    def judged(l1: float, l2: float) -> str:
        ablated = [*results("cosine", 50.0), *results("l1", l1), *results("l2", l2)]
        (claim,) = claims(Evidence(ablated=ablated, test_images=5000))
        return claim.verdict

    assert judged(40, 50) == "cannot be told"
    assert judged(40, 60) == "does not hold"


def test_the_order_of_methods_names_both_and_the_papers_numbers():
    compared = [*results("burn", 46.0, 46.5), *results("s2bnn", 46.5, 47.0)]
    (claim,) = claims(Evidence(compared=compared, test_images=5000))
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
    found = claims(Evidence(negatives=rows, test_images=5000))
    assert [claim.verdict for claim in found] == ["holds", "holds", "cannot be told"]


def gradient_row(similarity: str, step: int, classifier: float, extractor: float) -> dict:
    weight = 1.0 if similarity == "none" else 0.1
    return {"teacher_classifier": "frozen", "similarity": similarity, "seed": 0, "step": step,
            "classifier": weight * classifier, "classifier_per_weight": classifier,
            "extractor": extractor}  # fmt: skip


@pytest.mark.parametrize(
    ("later", "growth", "verdicts"),
    [
        (1.0, 1.0, ["cannot be told", "does not hold"]),
        (0.5, 20.0, ["holds", "holds"]),
        (2.0, 1.0, ["does not hold", "does not hold"]),
    ],
)
def test_a_smaller_gradient_counts_where_the_weight_is_divided_away(
    later: float, growth: float, verdicts: list[str]
):
    rows = [
        gradient_row(
            similarity, step,
            later if similarity == "cosine" and step > 1 else 1.0,
            growth if similarity in ("l1", "l2") and step > 1 else 1.0,
        )
        for similarity in ("none", "cosine", "l1", "l2") for step in range(1, 41)
    ]  # fmt: skip
    found = claims(Evidence(gradients=rows))
    assert [claim.verdict for claim in found] == verdicts
    assert "× 0.100 at step 1, which is the weight" in found[0].here
