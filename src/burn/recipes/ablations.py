"""Variants of a BURN recipe that differ in one choice, for `burn ablate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from burn.training.recipe import Recipe


def _burn(**changes: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, burn=replace(recipe.burn, **changes))


def _one_stage(change: Callable[[Recipe], Recipe]) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(change(recipe), stages=1)


def _two_stages(recipe: Recipe) -> Recipe:
    return replace(recipe, stages=2)


def _sign(gradient: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(
        recipe, backbone=replace(recipe.backbone, activation_gradient=gradient)
    )


def _weights(init: Any) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, backbone=replace(recipe.backbone, weight_init=init))


def _unchanged(recipe: Recipe) -> Recipe:
    return recipe


_KL_ALONE = _burn(lam_start=0.0, lam_end=0.0, lam="constant")

# The components are the paper's Table 5; λ is 0.7 where it is constant, as in Table 7. The teacher
# is not a recipe's, but given beside it.
VARIANTS: Mapping[str, Callable[[Recipe], Recipe]] = {
    "kl": _one_stage(_KL_ALONE),
    "kl+fs": _one_stage(_burn(lam="constant", lam_end=0.7)),
    "kl+fs+schedule": _one_stage(_burn(lam="cosine", lam_start=0.9, lam_end=0.7)),
    "two-stages": _two_stages,
    "cosine": _burn(similarity="cosine"),
    "l1": _burn(similarity="l1"),
    "l2": _burn(similarity="l2"),
    "lambda-cosine": _burn(lam="cosine", lam_start=0.9, lam_end=0.7),
    "lambda-constant": _burn(lam="constant", lam_end=0.7),
    "lambda-heaviside": _burn(lam="heaviside"),
    "frozen": _burn(classifier="frozen"),
    "joint": _burn(classifier="joint"),
    "joint-kl": _one_stage(lambda recipe: _burn(classifier="joint")(_KL_ALONE(recipe))),
    "no-classifier": _burn(classifier="none", classifier_lr=1.0, similarity_of="features"),
    "teacher-first": _burn(kl_direction="target_first"),
    "student-first": _burn(kl_direction="student_first"),
    "same-view": _burn(views="same"),
    "crossed-views": _burn(views="cross"),
    "poly": _sign("poly"),
    "clip": _sign("clip"),
    "linear-projection": _burn(projection="linear"),
    "mlp-projection": _burn(projection="mlp"),
    "plain-targets": _burn(standardize=False),
    "standardized-targets": _burn(standardize=True),
    "fan-in-weights": _weights("fan_in"),
    "small-weights": _weights("small"),
    "unlabelled-teacher": _unchanged,
    "labelled-teacher": _unchanged,
}
