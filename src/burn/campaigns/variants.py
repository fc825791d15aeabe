"""The variants of `burn ablate`: changes of a BURN recipe's choices, and the paper's method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from burn.methods.burn.settings import BurnConfig
from burn.recipes.schema import Recipe

Change = Callable[[Recipe], Recipe]


def _burn(**changes: Any) -> Change:
    return lambda recipe: recipe.with_settings(**changes)


def _stages(count: Literal[1, 2]) -> Change:
    return lambda recipe: replace(recipe, stages=count)


def _backbone(**changes: Any) -> Change:
    return lambda recipe: replace(recipe, backbone=replace(recipe.backbone, **changes))


# Settings of a joint classifier that no other has.
NOT_JOINT: Mapping[str, Any] = {"classifier_lr": 1.0, "carry_classifier": True}


def _unchanged(recipe: Recipe) -> Recipe:
    return recipe


def _paper(
    stages: Literal[1, 2], classifier: Literal["joint", "frozen", "none"], **changes: Any
) -> Change:
    """Return the change to the paper's loss, sign gradient and features, which are not normalized.

    The recipe's network shape, views and optimizer stay.
    """

    def change(recipe: Recipe) -> Recipe:
        of_recipe = recipe.settings
        loss = BurnConfig(
            classifier=classifier, num_classes=of_recipe.num_classes, hidden=of_recipe.hidden
        )
        backbone = replace(recipe.backbone, activation_gradient="poly", feature_norm=False)
        settings = replace(loss, **changes)
        return replace(recipe, stages=stages, backbone=backbone, settings=settings)

    return change


_KL_ALONE = {"lam": "constant", "lam_start": 0.0, "lam_end": 0.0}
_CONSTANT = {"lam": "constant", "lam_end": 0.7}  # as in Table 7

# Names that begin with "paper" are the paper's method, whatever the recipe does; the others change
# one choice of the recipe. The components are those of the paper's Table 5. The variants of the
# teacher leave the recipe as it is, because a recipe has no teacher.
VARIANTS: Mapping[str, Change] = {
    "one-stage": _stages(1),
    "two-stages": _stages(2),
    "two-stages-double": _stages(2),
    "no-classifier": _burn(classifier="none", similarity_of="features", **NOT_JOINT),
    "frozen": _burn(classifier="frozen", **NOT_JOINT),
    "joint": _burn(classifier="joint"),
    "linear-projection": _burn(projection="linear", similarity_of="features"),
    "mlp-projection": _burn(projection="mlp", similarity_of="features"),
    "plain-targets": _burn(standardize=False, similarity_of="features"),
    "standardized-targets": _burn(standardize=True, similarity_of="features"),
    "poly": _backbone(activation_gradient="poly"),
    "clip": _backbone(activation_gradient="clip"),
    "fan-in-weights": _backbone(weight_init="fan_in"),
    "small-weights": _backbone(weight_init="small"),
    "plain-features": _backbone(feature_norm=False),
    "normalized-features": _backbone(feature_norm=True),
    "same-view": _burn(views="same"),
    "crossed-views": _burn(views="cross"),
    "unlabelled-teacher": _unchanged,
    "labelled-teacher": _unchanged,
    "paper-kl": _paper(1, "frozen", **_KL_ALONE),
    "paper-kl+fs": _paper(1, "frozen", **_CONSTANT),
    "paper-kl+fs+schedule": _paper(1, "frozen"),
    "paper-two-stages": _paper(2, "frozen"),
    "paper-two-stages-double": _paper(2, "frozen"),
    "paper-joint-kl": _paper(1, "joint", **_KL_ALONE),
    "paper-joint-kl+fs": _paper(1, "joint", **_CONSTANT),
    "paper-joint-kl+fs+schedule": _paper(1, "joint"),
    "paper-joint-two-stages": _paper(2, "joint"),
    "paper-joint-fresh": _paper(2, "joint", carry_classifier=False),
    "paper-fs": _paper(1, "none"),
    "paper-l1": _paper(1, "frozen", similarity="l1"),
    "paper-l2": _paper(1, "frozen", similarity="l2"),
    "paper-heaviside": _paper(1, "frozen", lam="heaviside"),
    "paper-student-first": _paper(1, "frozen", kl_direction="student_first"),
}

# Two stages in the paper are 200 epochs each, against 200 of one stage: twice the images.
BUDGETS: Mapping[str, int] = {"two-stages-double": 2, "paper-two-stages-double": 2}
