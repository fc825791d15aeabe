"""Recipes by name. Each is a function whose docstring gives command, hardware, time and number."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from burn.errors import UserError
from burn.recipes.burn import (
    burn_imagenet,
    burn_small,
    demo,
    feature_only_small,
    paper_imagenet,
    paper_imagenet100,
    paper_small,
    released,
)
from burn.recipes.teachers import demo_teacher, teacher_small
from burn.training.recipe import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    recipe.__name__: recipe
    for recipe in (
        burn_small,
        paper_small,
        feature_only_small,
        teacher_small,
        burn_imagenet,
        paper_imagenet,
        paper_imagenet100,
        released,
        demo,
        demo_teacher,
    )
}


def find_recipe(name: object) -> Recipe:
    """The recipe of that name. Raises UserError suggesting the nearest one."""
    if not isinstance(name, str):
        raise UserError(f"--recipe: expected a name, got {type(name).__name__}")
    if name in RECIPES:
        return RECIPES[name]()
    near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RECIPES)}"
    raise UserError(f"unknown recipe {name!r}: {hint}")
