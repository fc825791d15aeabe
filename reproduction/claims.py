"""The paper's claims, each with the measurements made here and whether it holds.

A comparison of accuracies is decided by the difference, paired over test images and seeds, at a
level of 5 % for the whole table (Holm's correction). A network with a single seed decides nothing,
and a tie refutes nothing. Linear evaluation decides, as in the paper; kNN is shown beside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from burn.core.results import Result
from burn.paper.ablations import GROUPS, Group
from burn.paper.numbers import METHODS, OF_RECIPE, ablation_figure, figures
from reproduction.paired import Difference, Scores, holm

Verdict = Literal["holds", "does not hold", "inconclusive"]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with its verdict.

    Attributes:
        text: The claim.
        where: Its place in the paper.
        paper: The paper's numbers.
        here: The measurements made here.
        verdict: Whether it holds.
    """

    text: str
    where: str
    paper: str
    here: str
    verdict: Verdict


@dataclass(frozen=True)
class Campaign:
    """Comparisons on data of their own.

    Attributes:
        data: Name of the data, which stands before its numbers.
        test_images: Number of test images.
        compared: Results of `burn compare`.
        ablated: Results of `burn ablate`.
    """

    data: str
    test_images: int
    compared: Sequence[Result] = ()
    ablated: Sequence[Result] = ()


@dataclass(frozen=True)
class Evidence:
    """The measurements by which claims are evaluated; empty ones evaluate no claim.

    Attributes:
        test_images: Number of test images of `compared`, `ablated` and `negatives`.
        compared: Results of `burn compare`.
        ablated: Results of `burn ablate`.
        gradients: Rows of `burn analyze gradients`.
        ema_toy: Rows of `burn analyze ema-toy`.
        negatives: Rows of `burn analyze negatives`.
        elsewhere: Comparisons on other data, those with most test images first. Each claim on
            methods or variants is evaluated on the first data on which all of them have two seeds
            in common by its measure, and on `compared` or `ablated` if there are none.
        longer: Results of methods of `compared` that saw more images, for the comparison at equal
            training times.
    """

    test_images: int
    compared: Sequence[Result] = ()
    ablated: Sequence[Result] = ()
    gradients: Sequence[Row] = ()
    ema_toy: Sequence[Row] = ()
    negatives: Sequence[Row] = ()
    elsewhere: Sequence[Campaign] = ()
    longer: Sequence[Result] = ()


def claims(evidence: Evidence) -> list[Claim]:
    """Evaluate every claim for whose part of the paper there is evidence.

    If methods were compared, claims on them by protocols that were not run are included as not
    measured; so are claims on variants that were not run, if other variants of the paper's method
    were.

    Returns:
        The claims, in the paper's order.
    """
    longer = [replace(result, model=result.model + _LONGER) for result in evidence.longer]
    compared = Scores([*evidence.compared, *longer], evidence.test_images, evidence.ablated)
    methods = [(c.data, Scores(c.compared, c.test_images, c.ablated)) for c in evidence.elsewhere]
    ablated = Scores(evidence.ablated, evidence.test_images, evidence.compared)
    variants = [(c.data, Scores(c.ablated, c.test_images, c.compared)) for c in evidence.elsewhere]
    return _decided(
        [
            *(_order(compared, methods) if evidence.compared else ()),
            *_ablations(ablated, variants),
            *_joint(ablated, variants),
            *_gradients(evidence.gradients),
            *_drift(evidence.ema_toy),
            *_negatives(evidence),
        ]
    )


_LONGER = " with more images"  # after the name of a method
_Elsewhere = Sequence[tuple[str, Scores]]


def _ours(scores: Scores) -> str:
    """Return the model that stands for BURN: the paper's loss if it was trained."""
    return "paper" if scores.has("paper") else "burn"


def _named(models: Sequence[str], scores: Scores) -> list[str]:
    """Return models under the names that they have in some scores."""
    return [_ours(scores) if model == "burn" else model for model in models]


def _repeated(scores: Scores, models: Sequence[str], measure: str) -> bool:
    """Return whether all models have two seeds in common by a measure, and kNN beside linear."""
    measures = ("linear", "knn") if measure == "linear" else (measure,)
    return all(len(scores.common_seeds(*models, by=by)) > 1 for by in measures)


def _first(
    elsewhere: _Elsewhere,
    otherwise: Scores,
    models: Sequence[str],
    measure: str = "linear",
    beside: Sequence[str] = (),
) -> tuple[str, Scores]:
    """Return the scores by which a claim on some models is evaluated, and how its numbers begin.

    Args:
        elsewhere: Scores on other data, each with the name of its data.
        otherwise: The scores to fall back to.
        models: The models of the claim.
        measure: Its measure.
        beside: Networks that were not trained, to which they are compared.
    """
    for data, scores in elsewhere:
        if scores.has(*beside, by=measure) and _repeated(scores, _named(models, scores), measure):
            return f"{data}: ", scores
    return "", otherwise


@dataclass(frozen=True)
class _Finding:
    """A claim on accuracies, before it is decided together with all others.

    Attributes:
        text: The claim.
        where: Its place in the paper.
        paper: The paper's numbers.
        here: The measurements made here.
        differences: Difference of each pair of networks in the claim, which says that all are above
            zero.
        seconds: What one more seed of all its networks takes, or None if it is not known.
    """

    text: str
    where: str
    paper: str
    here: str
    differences: Sequence[Difference]
    seconds: float | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim if its finding stands."""
        return "holds" if all(d.points > 0 for d in self.differences) else "does not hold"

    @property
    def p(self) -> float:
        """The probability that the finding is due to chance.

        A claim on several pairs holds if every difference is above zero, so the largest probability
        counts. It falls with any reversed difference, so the smallest counts, with Bonferroni's
        correction for the choice of that one.
        """
        if self.verdict == "holds":
            return max(d.p for d in self.differences)
        return min(1.0, len(self.differences) * min(d.p for d in self.differences if d.points <= 0))

    def claim(self, *, stands: bool) -> Claim:
        """Return the claim with its verdict or, if it does not stand, with what would decide it."""
        if stands:
            return Claim(self.text, self.where, self.paper, self.here, self.verdict)
        here = f"{self.here}. {self._needs()}"
        return Claim(self.text, self.where, self.paper, here, "inconclusive")

    def _needs(self) -> str:
        if any(d.runs < 2 for d in self.differences):
            return "A second seed is needed"
        weakest = max(self.differences, key=lambda d: d.p)
        if any(d.points <= 0 for d in self.differences):
            weakest = min((d for d in self.differences if d.points <= 0), key=lambda d: d.p)
        needed = weakest.seeds_needed()
        if needed is None:
            return "Differences as small as this one need more test images"
        if needed <= weakest.runs:
            return "A seed or two more would decide it"
        more = ""
        if self.seconds is not None:
            more = f", {(needed - weakest.runs) * self.seconds / 3600:,.1f} h of one core more"
        return f"A difference of this size needs about {needed:,} seeds{more}"


def _decided(findings: Sequence[_Finding | Claim]) -> list[Claim]:
    """Return all claims; those on accuracies are decided by Holm's correction over all of them."""
    stands = iter(holm([f.p for f in findings if isinstance(f, _Finding)]))
    return [f.claim(stands=next(stands)) if isinstance(f, _Finding) else f for f in findings]


def _by(difference: Difference) -> str:
    if math.isinf(difference.margin):
        return f"{difference.points:+.1f}, one seed"
    return f"{difference.points:+.1f} ± {difference.margin:.1f}"


# --- methods -------------------------------------------------------------------------------------

_MOMENTUM = ("mocov2", "byol", "swav")


@dataclass(frozen=True)
class _Order:
    """The claim that one method is ahead of others by a measure of `measure_of`.

    Attributes:
        text: The claim.
        table: Its table in the paper.
        measure: The measure.
        ahead: Method that is said to be ahead.
        behind: Methods that are said to be behind.
        cited: Of the paper's numbers: pretraining data, task, data set, setting and metric.
        needs: Value of `burn compare --more` that adds the measure, if an option is needed.
    """

    text: str
    table: str
    measure: str
    ahead: str
    behind: tuple[str, ...]
    cited: tuple[str, str, str, str, str]
    needs: str = ""


_LINEAR = ("imagenet", "linear", "imagenet", "full", "top1")
_LINEAR_100 = ("imagenet100", "linear", "imagenet100", "full", "top1")
_SVM = ("imagenet", "svm", "voc07", "k=16", "mAP")
_TRANSFER = ("imagenet", "transfer", "cifar10", "full", "top1")


def _semi(share: str) -> tuple[_Order, ...]:
    cited = ("imagenet", "semi", "imagenet", share, "top1")
    cited_100 = ("imagenet100", "semi", "imagenet100", share, "top1")
    measure, needs, end = f"semi {share}", f"semi{share[:-1]}", f", {share} of the labels"
    rows = (
        ("BURN before S2-BNN", "burn", ("s2bnn",), cited),
        ("BURN before MoCo v2, BYOL and SwAV", "burn", _MOMENTUM, cited),
        ("labels before BURN", "supervised", ("burn",), cited),
        ("BURN before SimCLR and InfoMin", "burn", ("simclr", "infomin"), cited_100),
    )
    return tuple(
        _Order(text + end, "Table 8" if about is cited_100 else "Table 2", measure, ahead, behind,
               about, needs)
        for text, ahead, behind, about in rows
    )  # fmt: skip


_ORDERS: tuple[_Order, ...] = (
    _Order("BURN before S2-BNN", "Table 2", "linear", "burn", ("s2bnn",), _LINEAR),
    _Order("BURN before MoCo v2, BYOL and SwAV", "Table 2", "linear", "burn", _MOMENTUM, _LINEAR),
    _Order("labels before BURN", "Table 2", "linear", "supervised", ("burn",), _LINEAR),
    _Order(
        "moving targets by momentum (MoCo v2, BYOL) behind S2-BNN's fixed ones", "Table 2",
        "linear", "s2bnn", ("mocov2", "byol"), _LINEAR,
    ),
    _Order("BURN before SimCLR", "Table 8", "linear", "burn", ("simclr",), _LINEAR_100),
    _Order("BURN before InfoMin", "Table 8", "linear", "burn", ("infomin",), _LINEAR_100),
    *_semi("1%"),
    *_semi("10%"),
    _Order("BURN before S2-BNN, SVM of few shots", "Table 3", "svm k=16", "burn", ("s2bnn",), _SVM,
           "svm"),
    _Order("BURN before MoCo v2, BYOL and SwAV, SVM of few shots", "Table 3", "svm k=16", "burn",
           _MOMENTUM, _SVM, "svm"),
    _Order("BURN before SimCLR and InfoMin, SVM of few shots", "Table 9", "svm k=16", "burn",
           ("simclr", "infomin"), ("imagenet100", *_SVM[1:]), "svm"),
    _Order("BURN before S2-BNN, transfer", "Table 4", "transfer", "burn", ("s2bnn",), _TRANSFER,
           "transfer"),
    _Order("BURN before MoCo v2, BYOL and SwAV, transfer", "Table 4", "transfer", "burn",
           _MOMENTUM, _TRANSFER, "transfer"),
    _Order("BURN before labels, transfer", "Table 4", "transfer", "burn", ("supervised",),
           _TRANSFER, "transfer"),
)  # fmt: skip


def _order(compared: Scores, elsewhere: _Elsewhere) -> list[_Finding | Claim]:
    """Evaluate the tables of methods, each claim on the first data that can decide it."""
    findings: list[_Finding | Claim] = []
    for order in _ORDERS:
        paper = _cited(order)
        models = (order.ahead, *order.behind)
        data, scores = _first(elsewhere, compared, models, order.measure)
        ahead, *behind = _named(models, scores)
        if not scores.has(ahead, *behind, by=order.measure):
            why = "Not measured" + (f": burn compare --more {order.needs}" if order.needs else "")
            findings.append(Claim(order.text, order.table, paper, why, "inconclusive"))
            continue
        differences = [scores.difference(ahead, other, order.measure) for other in behind]
        points = "; ".join(_by(difference) for difference in differences)
        here = f"{data}{scores.told(ahead, *behind, by=order.measure)}: {points}"
        seconds = scores.seconds_of_seed(ahead, *behind, by=order.measure)
        findings.append(_Finding(order.text, order.table, paper, here, differences, seconds))
    return [*findings, _detection(), *_time(compared)]


def _detection() -> Claim:
    """Return the claim of Table 1 undecided: each network needs several detectors."""
    cited = ("imagenet", "detection", "voc07+12", "full", "mAP")
    order = _Order("", "", "", "burn", ("s2bnn", *_MOMENTUM, "supervised"), cited)
    return Claim(
        "BURN before all others, labels too, detection",
        "Table 1",
        _cited(order),
        "Not measured: burn evaluate detection, with VOC and a GPU. With the photographs of blood "
        "cells six networks of two seeds and three splits are 36 detectors, 24 h of one core",
        "inconclusive",
    )


def _cited(order: _Order) -> str:
    there = {
        f.method: f.value
        for f in figures()
        if (f.pretrained_on, f.task, f.dataset, f.setting, f.metric) == order.cited
    }
    methods = [OF_RECIPE.get(m, m) for m in (order.ahead, *order.behind)]
    return ", ".join(f"{METHODS[m]} {there[m]:.1f}" for m in methods if m in there)


def _time(scores: Scores) -> list[_Finding | Claim]:
    """Evaluate Figure 4: accuracy at about the same training time."""
    findings: list[_Finding | Claim] = []
    ours = _ours(scores)
    for text, behind in (
        ("BURN is more accurate than S2-BNN at a comparable training time", ("s2bnn",)),
        ("BURN is more accurate than MoCo v2, BYOL and SwAV at no more training time", _MOMENTUM),
    ):
        if not scores.has(ours, *behind):
            continue
        times = {model: scores.seconds(model) for model in (ours, *behind)}
        measured = {model: took for model, took in times.items() if took is not None}
        if len(measured) < len(times):
            continue
        our_time = measured[ours]
        rivals: dict[str, float] = {}
        for model in behind:
            longer = model + _LONGER  # of which the time may be another machine's
            if scores.has(longer) and len(scores.common_seeds(ours, longer)) > 1:
                rivals[longer] = measured[model] * scores.images(longer) / scores.images(model)
            else:
                rivals[model] = measured[model]
        differences = [scores.difference(ours, other) for other in rivals]
        points = "; ".join(_by(difference) for difference in differences)
        ratios = ", ".join(f"× {our_time / took:.2f} of {_whose(o)}" for o, took in rivals.items())
        here = f"{points} in {ratios}, without what the teacher took"
        shorter = [other for other, took in rivals.items() if our_time > 1.2 * took]
        ahead = [
            other
            for (other, took), difference in zip(rivals.items(), differences, strict=True)
            if took > 1.2 * our_time and difference.points <= 0
        ]
        if not (ahead or shorter):
            seconds = scores.seconds_of_seed(ours, *rivals)
            findings.append(_Finding(text, "Figure 4", "a figure", here, differences, seconds))
            continue
        why = f"train {' and '.join(shorter)} for longer"
        if ahead:
            why = f"{' and '.join(ahead)} took longer"
        here += f". The claim is about equal times: {why}"
        findings.append(Claim(text, "Figure 4", "a figure", here, "inconclusive"))
    return findings


def _whose(model: str) -> str:
    method, longer, _ = model.partition(_LONGER)
    return f"{method}'s time{longer}"


# --- ablations -----------------------------------------------------------------------------------

# Text, table, the variant said to be ahead and those said to be behind, each with the table and
# setting of its number in the paper, or None.
_Setting = tuple[str, str] | None
_ABLATED: tuple[tuple[str, str, tuple[str, _Setting], tuple[tuple[str, _Setting], ...]], ...] = (
    *(
        row
        for name, kind in (("frozen", "paper-"), ("jointly trained", "paper-joint-"))
        for row in (
            (
                f"② feature similarity helps ({name} classifier)", "Table 5",
                (f"{kind}kl+fs", ("ablation", "components 1+2")),
                ((f"{kind}kl", ("ablation", "components 1")),),
            ),
            (
                f"③ a λ that changes helps ({name} classifier)", "Table 5",
                (f"{kind}kl+fs+schedule", ("ablation", "components 1+2+3")),
                ((f"{kind}kl+fs", ("ablation", "components 1+2")),),
            ),
            (
                f"④ two stages before one at equal images ({name} classifier)", "Table 5",
                (f"{kind}two-stages", ("ablation", "components 1+2+3+4")),
                ((f"{kind}kl+fs+schedule", ("ablation", "components 1+2+3")),),
            ),
        )
    ),
    (
        "④ two stages before one, each with all images (frozen classifier)", "Table 5",
        ("paper-two-stages-double", ("ablation", "components 1+2+3+4")),
        (("paper-kl+fs+schedule", ("ablation", "components 1+2+3")),),
    ),
    (
        "carrying the classifier over to stage 2 before a fresh one", "Section 3.4",
        ("paper-joint-two-stages", None), (("paper-joint-fresh", None),),
    ),
    (
        "cosine before L1 and L2", "Table 6",
        ("paper-kl+fs+schedule", ("feature_similarity", "cosine")),
        (("paper-l1", ("feature_similarity", "l1")), ("paper-l2", ("feature_similarity", "l2"))),
    ),
    (
        "λ(t) by a cosine before constant and Heaviside", "Table 7",
        ("paper-kl+fs+schedule", ("lambda_schedule", "cosine")),
        (
            ("paper-kl+fs", ("lambda_schedule", "constant")),
            ("paper-heaviside", ("lambda_schedule", "heaviside")),
        ),
    ),
)  # fmt: skip


def _any_of_paper(ablated: Scores, elsewhere: _Elsewhere) -> bool:
    """Return whether any variant of the paper's method was run."""
    everywhere = [ablated, *(scores for _, scores in elsewhere)]
    return any(r.model.startswith("paper-") for scores in everywhere for r in scores.results)


def _not_run(text: str, where: str, cited: str, variants: Sequence[str]) -> Claim:
    """Return a claim of which some variants were not run, with the groups that have them."""
    whole = next((group for group in GROUPS if set(variants) <= set(group.variants)), None)
    groups = [whole] if whole else [_group_of(variant) for variant in variants]
    names = ",".join(dict.fromkeys(group.name for group in groups))
    why = f"Not measured: burn ablate --groups {names}"
    return Claim(text, where, cited, why, "inconclusive")


def _group_of(variant: str) -> Group:
    """Return the first group that has a variant."""
    return next(group for group in GROUPS if variant in group.variants)


def _ablations(ablated: Scores, elsewhere: _Elsewhere) -> list[_Finding | Claim]:
    if not _any_of_paper(ablated, elsewhere):
        return []
    findings: list[_Finding | Claim] = []
    for text, where, ahead, behind in _ABLATED:
        settings = [setting for _, setting in (ahead, *behind) if setting is not None]
        values = [figure.value for s in settings if (figure := ablation_figure(*s)) is not None]
        cited = " against ".join(f"{value:.1f}" for value in values) or "no number"
        variants = [variant for variant, _ in (ahead, *behind)]
        data, scores = _first(elsewhere, ablated, variants)
        missing = [variant for variant in variants if not scores.has(variant)]
        if missing:
            findings.append(_not_run(text, where, cited, missing))
            continue
        differences = [scores.difference(ahead[0], variant) for variant, _ in behind]
        points = "; ".join(_by(difference) for difference in differences)
        here = f"{data}{scores.told(*variants)}: {points}"
        seconds = scores.seconds_of_seed(*variants)
        findings.append(_Finding(text, where, cited, here, differences, seconds))
    return findings


def _joint(ablated: Scores, elsewhere: _Elsewhere) -> list[_Finding | Claim]:
    """Evaluate the paper's first component: a random classifier, trained jointly."""
    if not _any_of_paper(ablated, elsewhere):
        return []
    findings: list[_Finding | Claim] = []
    first = ablation_figure("ablation", "components 1")
    assert first is not None
    for name, variant in (("jointly trained", "paper-joint-kl"), ("frozen", "paper-kl")):
        text = f"① KL with a random, {name} classifier teaches by itself"
        data, scores = _first(elsewhere, ablated, (variant,), beside=("random weights",))
        if not scores.has(variant):
            findings.append(_not_run(text, "Table 5", f"{first.value:.1f}", [variant]))
            continue
        if not scores.has("random weights"):
            continue
        difference = scores.difference(variant, "random weights")
        here = f"{data}{scores.told(variant, 'random weights')}: {_by(difference)}"
        if name == "jointly trained":
            collapsed, runs = scores.collapsed(variant)
            here += f". The classifier collapsed in {collapsed} of {runs} runs"
        findings.append(_Finding(text, "Table 5", f"{first.value:.1f}", here, [difference]))
    joint, frozen, without = "paper-joint-kl+fs+schedule", "paper-kl+fs+schedule", "paper-fs"
    text = "training the classifier jointly is better than a fixed one"
    data, scores = _first(elsewhere, ablated, (joint, frozen))
    missing = [variant for variant in (joint, frozen) if not scores.has(variant)]
    if missing:
        findings.append(_not_run(text, "Section 3.1", "no number", missing))
    else:
        difference = scores.difference(joint, frozen)
        collapsed, runs = scores.collapsed(joint)
        here = (
            f"{data}{scores.told(joint, frozen)}: {_by(difference)}. The joint classifier "
            f"collapsed in {collapsed} of {runs} runs"
        )
        if scores.has(without):
            here += f". Feature similarity alone gives {scores.mean(without):.1f}"
        findings.append(_Finding(text, "Section 3.1", "no number", here, [difference]))
    return findings


# --- analyses ------------------------------------------------------------------------------------


class _Gradients:
    """Rows of `burn analyze gradients` with the frozen classifier, whose gradient does not vanish.

    Args:
        rows: All rows of the analysis.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.last = max(row["step"] for row in rows)
        self._runs: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            if row["teacher_classifier"] == "frozen":
                self._runs.setdefault((row["similarity"], row["seed"]), []).append(row)
        self.seeds = sorted({seed for _, seed in self._runs})

    def of(self, similarity: str) -> list[list[Row]]:
        """Return the runs of a similarity."""
        return [run for (name, _), run in self._runs.items() if name == similarity]

    def first(self, similarity: str, name: str) -> float:
        """Return a column's mean over the seeds at step 1; not a number if there is none."""
        return _geometric([run[0][name] for run in self.of(similarity)])

    def late(self, similarity: str, name: str, seed: int) -> float:
        """Return a column's mean over the last 25 steps, or not a number for a shorter run."""
        run = self._runs.get((similarity, seed), [])
        return _geometric([row[name] for row in run if row["step"] > self.last - 25])

    def peak(self, similarity: str) -> float:
        """Return the classifier's largest gradient after step 10, divided by that of step 1."""
        largest = [
            max((row["classifier"] for row in run if row["step"] > 10), default=math.nan)
            / run[0]["classifier"]
            for run in self.of(similarity)
        ]
        return _geometric(largest)

    def growth(self, similarity: str) -> float:
        """Return the extractor's largest gradient, divided by that of step 1, or infinity."""
        largest = [
            max(row["extractor"] if math.isfinite(row["loss"]) else math.inf for row in run)
            / run[0]["extractor"]
            for run in self.of(similarity)
        ]
        return max((x if math.isfinite(x) else math.inf for x in largest), default=math.nan)


def _geometric(values: Sequence[Any]) -> float:
    """Return the geometric mean; not a number if there is none."""
    numbers = [v for v in values if isinstance(v, (int, float)) and math.isfinite(v) and v > 0]
    whole = numbers and len(numbers) == len(values)
    return statistics.geometric_mean(numbers) if whole else math.nan


_SIMILARITIES = ("cosine", "l1", "l2")


def _gradients(rows: Sequence[Row]) -> list[Claim]:
    """Evaluate the claims of the figures on stability."""
    if not rows:
        return []
    gradients = _Gradients(rows)
    if not all(map(gradients.of, ("none", *_SIMILARITIES))):
        return []
    name = "classifier_per_weight"
    raw = gradients.first("cosine", "classifier") / gradients.first("none", "classifier")
    weighed = gradients.first("cosine", name) / gradients.first("none", name)
    later = [
        gradients.late("cosine", name, s) / gradients.late("none", name, s) for s in gradients.seeds
    ]
    calms: Verdict = "inconclusive"
    if len(later) > 1 and all(ratio < 0.8 for ratio in later):
        calms = "holds"
    elif len(later) > 1 and all(ratio > 1.25 for ratio in later):
        calms = "does not hold"
    told = ", ".join("–" if math.isnan(ratio) else f"× {ratio:.2f}" for ratio in later)
    growth = {similarity: gradients.growth(similarity) for similarity in _SIMILARITIES}
    exploded = {similarity: factor > 10 for similarity, factor in growth.items()}
    explodes: Verdict = "inconclusive"
    if exploded["cosine"]:
        explodes = "does not hold"
    elif exploded["l1"] and exploded["l2"]:
        explodes = "holds"
    size = {similarity: gradients.first(similarity, "extractor") for similarity in _SIMILARITIES}
    return [
        Claim(
            "L_FS makes the classifier's gradients smaller, its weight aside",
            "Section 3.2, Figure 3",
            "curves",
            f"× {raw:.3f} at step 1, × {weighed:.2f} divided by KL's weight; {told} divided by it "
            f"over the last 25 of {gradients.last} steps, by seed; the largest after step 10 is "
            f"× {gradients.peak('cosine'):.1f} of step 1's, "
            f"× {gradients.peak('none'):.1f} without L_FS "
            "(frozen classifier: a joint one that collapses has no gradient)",
            calms,
        ),
        Claim(
            "L1 and L2 make the extractor's gradients explode, cosine does not",
            "Figure 6",
            "curves to step 10,000",
            f"at step 1 L1 {size['l1'] / size['cosine']:.0f} times and L2 "
            f"{size['l2'] / size['cosine']:.1f} times the cosine's; the largest of the first "
            f"{gradients.last} steps by that of step 1: "
            + ", ".join(f"{similarity} × {factor:.2f}" for similarity, factor in growth.items()),
            explodes,
        ),
    ]


def _drift(rows: Sequence[Row]) -> list[Claim]:
    """Evaluate the claim of the EMA toy at its last step, in every reading."""
    ends = {}
    for row in rows:
        ends[row["reading"]] = row
    if "literal" not in ends:
        return []
    literal = ends["literal"]
    larger = [row["title"] for row in ends.values() if row["binary_many"] > row["float_many"]]
    here = (
        f"literally {literal['binary_many']:.3g} binarised against {literal['float_many']:.3g} "
        f"float after {literal['step']} steps; binarised is larger in {len(larger)} of "
        f"{len(ends)} readings" + (f" ({'; '.join(larger)})" if larger else "")
    )
    verdict: Verdict = "inconclusive"
    if len(larger) in (0, len(ends)):
        verdict = "holds" if larger else "does not hold"
    return [
        Claim(
            "an EMA target drifts farther from a binary network than from a float one",
            "Section 4.3, Figure 5",
            "a figure",
            here,
            verdict,
        )
    ]


def _negatives(evidence: Evidence) -> list[_Finding]:
    """Evaluate the claims of Figures 7 and 8."""
    rows = evidence.negatives
    if not rows:
        return []
    results = [
        Result(
            protocol, "top1", row[protocol],
            model := f"{row['network']} {row['augmentation']} {row['negatives']}", model, "", "",
            int(row["seed"]), 0.0, {"pretraining": {"seconds": row["seconds"]}},
        )
        for row in rows for protocol in ("linear", "knn")
    ]  # fmt: skip
    scores = Scores(results, evidence.test_images, [*evidence.compared, *evidence.ablated])
    findings: list[_Finding] = []
    counts = sorted({row["negatives"] for row in rows})
    fewest, most = counts[0], counts[-1]
    for network, text in (
        ("binary", "fewer negatives help InfoMin on a binary network"),
        ("float", "fewer negatives do not help InfoMin on a float network"),
    ):
        few, many = (f"{network} InfoMin's {count}" for count in (fewest, most))
        if not scores.has(few, many):
            continue
        ahead, behind = (few, many) if network == "binary" else (many, few)
        difference = scores.difference(ahead, behind)
        here = (
            f"{scores.mean(few):.1f} with {fewest:,}, {scores.mean(many):.1f} with {most:,}: "
            f"{_by(difference)}"
        )
        seconds = scores.seconds_of_seed(few, many)
        findings.append(_Finding(text, "Figure 8", "a figure", here, [difference], seconds))
    weak, strong = f"binary weak {most}", f"binary InfoMin's {most}"
    if scores.has(weak, strong):
        difference = scores.difference(strong, weak)
        here = f"{scores.mean(weak):.1f} against {scores.mean(strong):.1f}: {_by(difference)}"
        text = "weaker augmentation makes InfoMin worse on a binary network"
        seconds = scores.seconds_of_seed(weak, strong)
        findings.append(_Finding(text, "Figure 7", "a figure", here, [difference], seconds))
    return findings
