"""What the paper claims, and what of it is decided."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from burn.core.results import Result
from reproduction.claims import Campaign, Claim, Evidence, claims


def results(
    model: str, *linear: float, knn: float = 30.0, checkpoint: str = "", collapsed: bool = False
) -> list[Result]:
    settings = {"pretraining": {"collapsed_stages": [1] if collapsed else []}}
    return [
        Result(protocol, "top1", value, model, checkpoint or model, "", "", seed, 1.0, settings)
        for seed, number in enumerate(linear)
        for protocol, value in (("linear", number), ("knn", knn))
    ]


def measured(ablated: list[Result]) -> list[Claim]:
    """The claims on variants that were run."""
    found = claims(Evidence(5000, ablated=ablated))
    others = [claim for claim in found if claim.here.startswith("Not measured: burn ablate")]
    assert all(claim.verdict == "inconclusive" for claim in others)
    return [claim for claim in found if claim not in others]


def test_a_claim_on_variants_that_were_not_run_says_how_to_run_them():
    found = claims(Evidence(5000, ablated=results("paper-kl", 40.0, 41.0)))
    assert len(found) == 12
    assert {claim.verdict for claim in found} == {"inconclusive"}
    needs = {claim.text: claim.here.removeprefix("Not measured: burn ablate ") for claim in found}
    assert needs["② feature similarity helps (frozen classifier)"] == "--groups components"
    assert needs["cosine before L1 and L2"] == "--groups similarity"
    joint = "training the classifier jointly is better than a fixed one"
    assert needs[joint] == "--groups joint,components"
    # The recipe's own variants are no part of the paper's method.
    assert claims(Evidence(5000, ablated=results("frozen", 40.0, 41.0))) == []


def test_a_single_seed_decides_nothing():
    ablated = [
        *results("paper-kl+fs+schedule", 60.0),
        *results("paper-l1", 40.0, 41.0),
        *results("paper-l2", 40.0, 41.0),
    ]
    (claim,) = measured(ablated)
    assert claim.verdict == "inconclusive"
    assert "one seed" in claim.here
    assert claim.here.endswith("A second seed is needed")


@pytest.mark.parametrize(
    ("cosine", "verdict"),
    [(60.0, "holds"), (50.5, "inconclusive"), (40.0, "does not hold")],
)
def test_a_claim_holds_where_all_are_clearly_behind(cosine: float, verdict: str):
    ablated = [
        *results("paper-kl+fs+schedule", cosine, cosine + 0.1, cosine + 0.3),
        *results("paper-l1", 50.0, 50.2, 50.1), *results("paper-l2", 50.0, 50.1, 50.3),
    ]  # fmt: skip
    (claim,) = measured(ablated)
    assert claim.text == "cosine before L1 and L2"
    assert claim.paper == "62.3 against 51.5 against 50.3"
    assert claim.verdict == verdict


def test_what_is_open_says_how_many_seeds_and_hours_would_decide_it():
    apart = [*results("paper-kl+fs", 46.0, 51.0), *results("paper-kl", 44.0, 44.0)]
    (claim,) = measured(apart)
    assert re.search(r"A difference of this size needs about \d+ seeds$", claim.here)
    # An hour of training and the second of each evaluation, of two networks.
    hour = {"pretraining": {"collapsed_stages": [], "seconds": 3598.0}}
    (claim,) = measured([replace(result, settings=hour) for result in apart])
    found = re.search(r"about (\d+) seeds, ([\d.]+) h of one core more$", claim.here)
    assert found is not None
    assert float(found[2]) == pytest.approx(2 * (int(found[1]) - 2), abs=0.1)


def test_one_clear_reversal_refutes_and_one_tie_leaves_open():
    def evaluated(l1: float, l2: float) -> str:
        ablated = [
            *results("paper-kl+fs+schedule", 50.0, 50.2, 50.1),
            *results("paper-l1", l1, l1 + 0.3, l1 + 0.1),
            *results("paper-l2", l2, l2 + 0.1, l2 + 0.2),
        ]  # fmt: skip
        (claim,) = measured(ablated)
        return claim.verdict

    assert evaluated(40, 50) == "inconclusive"
    assert evaluated(40, 60) == "does not hold"


def test_the_order_of_methods_names_both_and_the_papers_numbers():
    compared = [*results("burn", 46.0, 46.5), *results("s2bnn", 46.5, 47.0)]
    claim, *others = claims(Evidence(5000, compared=compared))
    assert claim.text == "BURN before S2-BNN"
    assert all(c.here.startswith("Not measured") for c in others)
    assert claim.paper == "BURN 62.3, S2-BNN 61.5"
    assert claim.here.startswith("burn 46.2 (30.0), s2bnn 46.8 (30.0): -0.5 ± ")
    assert claim.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("seeds", "here"),
    [
        ((0, 1), "Tiny: burn 15.2 (30.0), s2bnn 12.2 (30.0): +3.0 ± "),
        ((1, 2), "burn 46.2 (30.0), s2bnn 46.8 (30.0): -0.5 ± "),  # one in common decides nothing
        ((0,), "burn 46.2 (30.0), s2bnn 46.8 (30.0): -0.5 ± "),
    ],
)
def test_a_claim_is_evaluated_on_the_first_data_on_which_all_its_methods_have_two_seeds(
    seeds: tuple[int, ...], here: str
):
    s2bnn = [r for r in results("s2bnn", 12.0, 12.4, 12.2) if r.seed in seeds]
    elsewhere = [*results("burn", 15.0, 15.4), *s2bnn, *results("byol", 1.0, 1.0)]
    evidence = Evidence(
        5000,
        compared=[*results("burn", 46.0, 46.5), *results("s2bnn", 46.5, 47.0)],
        elsewhere=[Campaign("Tiny", 10_000, elsewhere)],
    )
    claim, momentum, *_ = claims(evidence)
    assert claim.text == "BURN before S2-BNN"
    assert claim.here.startswith(here)
    assert momentum.here == "Not measured"  # neither has all three of them


def test_a_claim_on_variants_is_evaluated_on_the_first_data_on_which_all_have_two_seeds():
    ablated = [*results("paper-kl+fs", 47.0, 47.5), *results("paper-kl", 40.0, 40.5)]
    elsewhere = [
        *results("paper-kl+fs", 12.0, 12.5), *results("paper-kl", 9.0, 9.5),
        *results("paper-kl+fs+schedule", 12.0),
        *(replace(r, settings={}) for r in results("random weights", 2.0)),
    ]  # fmt: skip
    evidence = Evidence(
        5000, ablated=ablated, elsewhere=[Campaign("Tiny", 10_000, ablated=elsewhere)]
    )
    here = {claim.text: claim.here for claim in claims(evidence)}
    helps = here["② feature similarity helps (frozen classifier)"]
    assert helps.startswith("Tiny: paper-kl+fs 12.2 (30.0), paper-kl 9.2 (30.0): +3.0 ± ")
    teaches = here["① KL with a random, frozen classifier teaches by itself"]
    assert teaches.startswith("Tiny: paper-kl 9.2 (30.0), random weights 2.0 (30.0): +7.2 ± ")
    weights = [r for r in elsewhere if not r.settings]
    alone = Campaign("Tiny", 10_000, ablated=[r for r in elsewhere if r.settings])
    here_alone = claims(replace(evidence, ablated=[*ablated, *weights], elsewhere=[alone]))
    told = [c.here for c in here_alone if c.text.startswith("① KL with a random, frozen")]
    assert told[0].startswith("paper-kl 40.2"), "no random weights there"
    # One seed there, and none here.
    changes = here["③ a λ that changes helps (frozen classifier)"]
    assert changes == "Not measured: burn ablate --groups components"


def by_table(compared: list[Result]) -> dict[tuple[str, str], Claim]:
    return {(c.where, c.text): c for c in claims(Evidence(5000, compared=compared))}


def test_the_papers_loss_stands_for_burn_where_it_was_trained():
    compared = [
        *results("burn", 60.0, 60.5), *results("s2bnn", 50.0, 50.5), *results("paper", 40.0, 40.5)
    ]  # fmt: skip
    assert by_table(compared)["Table 2", "BURN before S2-BNN"].verdict == "does not hold"


@pytest.mark.parametrize(
    ("metric", "protocol", "claim"),
    [
        ("1% top1", "semi", ("Table 2", "BURN before S2-BNN, 1% of the labels")),
        ("10% top1", "semi", ("Table 2", "BURN before S2-BNN, 10% of the labels")),
        ("k=16 mAP cv", "svm", ("Table 3", "BURN before S2-BNN, SVM of few shots")),
        ("top1", "transfer", ("Table 4", "BURN before S2-BNN, transfer")),
    ],
)
def test_other_protocols_decide_claims_of_their_own(
    metric: str, protocol: str, claim: tuple[str, str]
):
    linear = [*results("burn", 60.0, 60.5), *results("s2bnn", 50.0, 50.5)]
    assert by_table(linear)[claim].here.startswith("Not measured: burn compare --more ")
    others = [
        replace(r, protocol=protocol, metric=metric, value=90 - r.value)
        for r in linear if r.protocol == "linear"
    ]  # fmt: skip
    found = by_table([*linear, *others])
    assert found["Table 2", "BURN before S2-BNN"].verdict == "holds"
    assert found[claim].verdict == "does not hold"
    assert found[claim].here.startswith("burn 29.8, s2bnn 39.8: -10.0 ± ")


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(100.0, "holds"), (119.0, "holds"), (130.0, "inconclusive")]
)
def test_accuracy_at_equal_time_is_not_decided_by_unequal_times(seconds: float, verdict: str):
    def timed(model: str, seconds: float, *linear: float) -> list[Result]:
        settings = {"pretraining": {"seconds": seconds}}
        return [replace(r, settings=settings) for r in results(model, *linear)]

    compared = [*timed("burn", seconds, 60.0, 60.5), *timed("s2bnn", 100.0, 50.0, 50.5)]
    claim = by_table(compared)[
        "Figure 4", "BURN is more accurate than S2-BNN at a comparable training time"
    ]
    assert claim.verdict == verdict
    assert f"× {seconds / 100:.2f} of s2bnn's time" in claim.here
    assert claim.here.endswith("train s2bnn for longer") == (verdict == "inconclusive")
    longer = [*timed("burn", seconds, 60.0, 60.5), *timed("s2bnn", 300.0, 70.0, 70.5)]
    claim = by_table(longer)[
        "Figure 4", "BURN is more accurate than S2-BNN at a comparable training time"
    ]
    assert claim.verdict == "inconclusive"
    assert claim.here.endswith("s2bnn took longer")


def test_a_faster_method_is_compared_after_more_images():
    def seen(model: str, seconds: float, images: int, *linear: float) -> list[Result]:
        settings = {"pretraining": {"seconds": seconds, "images_seen": images}}
        return [replace(r, settings=settings) for r in results(model, *linear)]

    rivals = [*seen("mocov2", 50.0, 100, 40.0, 40.5), *seen("byol", 100.0, 100, 42.0, 42.5)]
    compared = [
        *seen("burn", 100.0, 100, 60.0, 60.5), *rivals, *seen("swav", 200.0, 100, 41.0, 41.5)
    ]  # fmt: skip
    about = "Figure 4", "BURN is more accurate than MoCo v2, BYOL and SwAV at no more training time"
    assert by_table(compared)[about].verdict == "inconclusive"
    # Of another machine, where an image took a tenth of the time.
    longer = seen("mocov2", 10.0, 200, 45.0, 45.5)
    found = claims(Evidence(5000, compared=compared, longer=longer))
    (claim,) = [claim for claim in found if (claim.where, claim.text) == about]
    assert claim.verdict == "holds"
    assert claim.here.startswith("+15.0 ± ")
    assert "in × 1.00 of mocov2's time with more images, × 1.00 of byol's time, " in claim.here


def test_fewer_negatives_that_hurt_a_float_network_are_as_the_paper_says():
    def row(network: str, count: int, linear: float, augmentation: str = "InfoMin's") -> dict:
        return {"network": network, "negatives": count, "linear": linear, "knn": 20.0, "seed": 0,
                "augmentation": augmentation, "seconds": 400.0}  # fmt: skip

    rows = [
        row("binary", 64, 30), row("binary", 4, 40), row("float", 64, 60), row("float", 4, 50),
        row("binary", 64, 31, "weak"),
    ]  # fmt: skip
    found = claims(Evidence(5000, negatives=rows))
    assert [claim.verdict for claim in found] == ["inconclusive"] * 3  # seeds may differ by more
    again = [{**r, "seed": 1, "linear": r["linear"] + 0.2} for r in rows]
    more = [*results("base", 40.0, 41.0), *results("other", 44.0, 44.8)]
    found = claims(Evidence(5000, ablated=more, negatives=[*rows, *again]))
    assert [claim.verdict for claim in found] == ["holds", "holds", "inconclusive"]
    assert "more test images" in found[2].here or "seeds" in found[2].here


@pytest.mark.parametrize(
    ("value", "verdict"), [(25.0, "inconclusive"), (10.0, "does not hold"), (40.0, "holds")]
)
def test_against_random_weights_a_tie_refutes_nothing(value: float, verdict: str):
    floor = [replace(r, settings={}) for r in results("random weights", 25.0)]
    ablated = [
        *results("paper-joint-kl", value, value + 0.1, value + 0.3, collapsed=True), *floor,
    ]  # fmt: skip
    (claim,) = measured(ablated)
    assert claim.verdict == verdict
    assert "collapsed in 3 of 3 runs" in claim.here


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
        (gradient_rows(), ["inconclusive", "inconclusive"]),
        (gradient_rows(later=0.5, growth=20.0), ["holds", "holds"]),
        (gradient_rows(later=2.0), ["does not hold", "inconclusive"]),
        (gradient_rows(later=0.5, seeds=1), ["inconclusive", "inconclusive"]),
        (gradient_rows(end=7), ["inconclusive", "holds"]),  # L1 and L2 end at what is no number
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
        ({"literal": 0.5, "lars": 3.0}, "inconclusive"),
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
