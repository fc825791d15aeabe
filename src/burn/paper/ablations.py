"""The ablations: groups of variants that are compared, and the paper's numbers for them.

A variant is a name. `burn.campaigns.ablate` changes a recipe for it, and trains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burn.core.results import Result
from burn.core.seeds import OverSeeds
from burn.paper.numbers import ablation_figure


@dataclass(frozen=True)
class Row:
    """One variant in a group."""

    label: str
    variant: str
    paper: tuple[str, str] | None = None  # table and setting of the paper's number in paper.csv


@dataclass(frozen=True)
class Group:
    """Variants that answer one question on the recipe's own choices or on the paper's."""

    name: str  # in `--groups`
    title: str
    rows: tuple[Row, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(row.variant for row in self.rows)


GROUPS: tuple[Group, ...] = (
    Group("stages", "Stages of binarisation", (
        Row("one", "one-stage"),
        Row("two, half of the images each", "two-stages"),
        Row("two, all of the images each", "two-stages-double"),
    )),
    Group("classifier", "The teacher's classifier", (
        Row("none: feature similarity alone", "no-classifier"),
        Row("frozen, random", "frozen"),
        Row("trained jointly", "joint"),
    )),
    Group("projection", "From the student's features to the teacher's", (
        Row("linear", "linear-projection"),
        Row("two layers", "mlp-projection"),
    )),
    Group("targets", "The teacher's features", (
        Row("as they are", "plain-targets"),
        Row("standardised", "standardized-targets"),
    )),
    Group("sign", "Gradient of the activations' sign", (
        Row("piecewise polynomial", "poly"),
        Row("clipped identity", "clip"),
    )),
    Group("weights", "How binary weights start", (
        Row("uniform in ±1/√fan-in", "fan-in-weights"),
        Row("0.001·rand", "small-weights"),
    )),
    Group("features", "The student's features", (
        Row("as they are", "plain-features"),
        Row("normalized", "normalized-features"),
    )),
    Group("views", "What teacher and student see", (
        Row("the same view", "same-view"),
        Row("two views, crossed", "crossed-views"),
    )),
    Group("teacher", "The teacher", (
        Row("trained without labels", "unlabelled-teacher"),
        Row("trained with labels", "labelled-teacher"),
    )),
    Group("components", "The paper's method with a frozen classifier: what each component adds", (
        Row("① random classifier, KL alone", "paper-kl", ("ablation", "components 1")),
        Row("①② with feature similarity, λ = 0.7", "paper-kl+fs", ("ablation", "components 1+2")),
        Row("①②③ with λ(t) from 0.9 to 0.7", "paper-kl+fs+schedule",
            ("ablation", "components 1+2+3")),
        Row("①②③④ in two stages, half of the images each", "paper-two-stages"),
        Row("①②③④ in two stages, all of the images each", "paper-two-stages-double",
            ("ablation", "components 1+2+3+4")),
    )),
    Group("joint", "The paper's method with a jointly trained classifier, as published", (
        Row("① random classifier, KL alone", "paper-joint-kl"),
        Row("①② with feature similarity, λ = 0.7", "paper-joint-kl+fs"),
        Row("①②③ with λ(t) from 0.9 to 0.7", "paper-joint-kl+fs+schedule"),
        Row("①②③④ in two stages, half of the images each", "paper-joint-two-stages"),
        Row("the same with a fresh classifier in stage 2", "paper-joint-fresh"),
        Row("② feature similarity alone", "paper-fs"),
    )),
    Group("similarity", "The paper's method in one stage: distance between features", (
        Row("cosine", "paper-kl+fs+schedule", ("feature_similarity", "cosine")),
        Row("L1", "paper-l1", ("feature_similarity", "l1")),
        Row("L2", "paper-l2", ("feature_similarity", "l2")),
    )),
    Group("balance", "The paper's method in one stage: shape of λ(t)", (
        Row("cosine, 0.9 to 0.7", "paper-kl+fs+schedule", ("lambda_schedule", "cosine")),
        Row("constant, 0.7", "paper-kl+fs", ("lambda_schedule", "constant")),
        Row("Heaviside", "paper-heaviside", ("lambda_schedule", "heaviside")),
    )),
    Group("direction", "The paper's method in one stage: direction of the KL divergence", (
        Row("teacher first, KL(p1 ‖ p2)", "paper-kl+fs+schedule"),
        Row("student first, KL(p2 ‖ p1)", "paper-student-first"),
    )),
)  # fmt: skip


@dataclass(frozen=True)
class AblationRow:
    """The results of a variant over its seeds; the top-1 of each is in %."""

    row: Row
    knn: tuple[float, ...]
    linear: tuple[float, ...]
    collapsed: int  # runs in which the teacher's classifier, or the features, collapsed
    seconds: float  # mean training time

    @property
    def paper(self) -> float | None:
        """The paper's linear accuracy on ImageNet in %, or None if it has no number."""
        figure = ablation_figure(*self.row.paper) if self.row.paper else None
        return figure.value if figure else None


def ablation_rows(results: Sequence[Result]) -> list[tuple[Group, list[AblationRow]]]:
    """Return the groups of which two or more variants were run, with the rows of these."""
    top1 = sorted((r for r in results if r.metric == "top1"), key=lambda r: r.seed)
    run = {r.model for r in top1}
    tables = []
    for group in GROUPS:
        rows = [_row(row, top1) for row in group.rows if row.variant in run]
        if len(rows) > 1:
            tables.append((group, rows))
    return tables


def _row(row: Row, top1: Sequence[Result]) -> AblationRow:
    knn = [r for r in top1 if (r.model, r.protocol) == (row.variant, "knn")]
    trained = [r.settings["pretraining"] for r in knn]
    return AblationRow(
        row,
        knn=tuple(r.value for r in knn),
        linear=tuple(r.value for r in top1 if (r.model, r.protocol) == (row.variant, "linear")),
        collapsed=sum(
            bool(about.get("collapsed_stages") or about.get("collapsed_features"))
            for about in trained
        ),
        seconds=OverSeeds.of(about["seconds"] for about in trained).mean,
    )
