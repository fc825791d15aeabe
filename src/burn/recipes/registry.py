"""Recipes by name. Each is a function whose docstring gives command, hardware, time and number."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable

from burn.core.errors import UserError
from burn.core.plugins import registering
from burn.recipes import baselines, teachers
from burn.recipes import burn as burn_recipes
from burn.recipes.schema import Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {
    recipe.__name__: recipe
    for recipe in (
        burn_recipes.burn_small,
        burn_recipes.paper_small,
        burn_recipes.paper_small_lars,
        burn_recipes.feature_only_small,
        baselines.supervised_small,
        baselines.supervised_kl_small,
        baselines.byol_small,
        baselines.swav_small,
        baselines.mocov2_small,
        baselines.s2bnn_small,
        baselines.simclr_small,
        baselines.infomin_small,
        teachers.teacher_small,
        teachers.teacher_mocov2_small,
        teachers.teacher_byol_small,
        teachers.teacher_supervised_small,
        burn_recipes.burn_device,
        burn_recipes.burn_device_128,
        burn_recipes.burn_imagenet,
        burn_recipes.paper_imagenet,
        burn_recipes.released,
        baselines.supervised_imagenet,
        baselines.supervised_kl_imagenet,
        baselines.byol_imagenet,
        baselines.swav_imagenet,
        baselines.mocov2_imagenet,
        baselines.s2bnn_imagenet,
        baselines.simclr_imagenet,
        baselines.infomin_imagenet,
        teachers.teacher_mocov2_imagenet,
        teachers.teacher_simclr_imagenet,
        burn_recipes.burn_imagenet100,
        burn_recipes.paper_imagenet100,
        baselines.supervised_imagenet100,
        baselines.supervised_kl_imagenet100,
        baselines.byol_imagenet100,
        baselines.swav_imagenet100,
        baselines.mocov2_imagenet100,
        baselines.s2bnn_imagenet100,
        baselines.simclr_imagenet100,
        baselines.infomin_imagenet100,
        baselines.infomin_weak_imagenet100,
        teachers.teacher_byol_imagenet100,
        burn_recipes.demo,
        teachers.demo_teacher,
    )
}


# What the names of a family hold, and what help says of it.
_FAMILIES = {
    "_small": "32-pixel images, a CPU",
    "_device": "96- and 128-pixel images, networks for small devices, a GPU",
    "_imagenet100": "ImageNet100",
    "_imagenet": "ImageNet",
}


def register_recipe(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Decorate a function without arguments that gives a recipe: its name is the recipe's.

    `burn compare` takes METHOD_small, METHOD_imagenet and METHOD_imagenet100 for method METHOD.

    Raises:
        UserError: The name is one of burn's own recipes.
    """
    name = function.__name__
    if name in RECIPES and name not in _registered:
        raise UserError(f"recipe {name} is one of burn's own: choose another name")
    registering(function.__module__)
    _registered.add(name)
    RECIPES[name] = function
    return function


_registered: set[str] = set()  # names of plugins' recipes


def recipe_list() -> str:
    """Every recipe's name, for help: a paragraph a family."""
    rest = list(RECIPES)
    paragraphs = []
    for part, about in _FAMILIES.items():
        names = [name for name in rest if part in name]
        rest = [name for name in rest if name not in names]
        paragraphs.append((about, names))
    paragraphs.append(("others", rest))
    return "\n".join(
        textwrap.fill(
            f"{about}: {', '.join(names)}", 98, initial_indent="  ", subsequent_indent="      "
        )
        for about, names in paragraphs
    )


def find_recipe(name: object) -> Recipe:
    """The recipe of that name. Raises UserError suggesting the nearest one."""
    if not isinstance(name, str):
        raise UserError(f"--recipe: expected a name, got {type(name).__name__}")
    if name in RECIPES:
        return RECIPES[name]()
    near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RECIPES)}"
    raise UserError(f"unknown recipe {name!r}: {hint}")
