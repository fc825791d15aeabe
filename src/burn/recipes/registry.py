"""Recipes by name. Each is a function whose docstring gives command, hardware, time and number."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable

from burn.core.errors import UserError, listed, shortened, shown
from burn.core.plugins import Plugin, check_owner, registering
from burn.core.settings import from_plain
from burn.recipes import imagenet, photos, small, teachers
from burn.recipes.schema import Recipe

DEFAULT = photos.burn.__name__
RECIPES: dict[str, Callable[[], Recipe]] = {
    recipe.__name__: recipe
    for recipe in (
        photos.burn, small.burn_small, small.paper_small, small.paper_small_lars,
        small.feature_only_small, small.supervised_small, small.supervised_kl_small,
        small.byol_small, small.swav_small, small.mocov2_small, small.s2bnn_small,
        small.simclr_small, small.infomin_small, small.bnext_small, small.expert_small,
        teachers.teacher_small, teachers.teacher_mocov2_small, teachers.teacher_byol_small,
        teachers.teacher_supervised_small, photos.bnext_photos, photos.burn_device,
        photos.burn_device_128, imagenet.burn_imagenet, imagenet.paper_imagenet, imagenet.released,
        imagenet.supervised_imagenet, imagenet.supervised_kl_imagenet, imagenet.byol_imagenet,
        imagenet.swav_imagenet, imagenet.mocov2_imagenet, imagenet.s2bnn_imagenet,
        imagenet.simclr_imagenet, imagenet.infomin_imagenet, teachers.teacher_mocov2_imagenet,
        teachers.teacher_simclr_imagenet, imagenet.burn_imagenet100, imagenet.paper_imagenet100,
        imagenet.supervised_imagenet100, imagenet.supervised_kl_imagenet100,
        imagenet.byol_imagenet100, imagenet.swav_imagenet100, imagenet.mocov2_imagenet100,
        imagenet.s2bnn_imagenet100, imagenet.simclr_imagenet100, imagenet.infomin_imagenet100,
        imagenet.infomin_weak_imagenet100, teachers.teacher_byol_imagenet100, small.demo,
        teachers.demo_teacher,
    )
}  # fmt: skip


# A pattern for the names of each family, and what help says about the family.
_FAMILIES = {
    f"^{DEFAULT}$|_device": "photographs at 96 and 128 pixels, networks for small devices",
    "_small": "32-pixel images, a CPU",
    "_imagenet100": "ImageNet100",
    "_imagenet": "ImageNet",
}


def register_recipe(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Register a function without arguments that returns a recipe, under the function's name.

    `burn compare` uses the recipes METHOD_small, METHOD_photos, METHOD_imagenet and
    METHOD_imagenet100 for method METHOD; without METHOD_photos it adapts METHOD_small.

    Args:
        function: The function that is decorated.

    Returns:
        The function itself.

    Raises:
        UserError: burn, or another plugin, has a recipe of that name.
    """
    name = getattr(function, "__name__", "")
    if not callable(function) or not isinstance(name, str) or not name.isidentifier():
        raise UserError(
            f"register_recipe decorates a function, not {shown(function)}: write "
            "@burn.register_recipe, without a name"
        )
    if name in RECIPES:
        check_owner("recipe", name, _registered.get(name))
    _registered[name] = registering(getattr(function, "__module__", "?"))
    RECIPES[name] = function
    return function


_registered: dict[str, Plugin] = {}  # plugins' recipes


def recipe_list() -> str:
    """Return the names of all recipes for help texts, one paragraph for each family."""
    rest = list(RECIPES)
    paragraphs = []
    for pattern, about in _FAMILIES.items():
        names = [name for name in rest if re.search(pattern, name)]
        rest = [name for name in rest if name not in names]
        paragraphs.append((about, names))
    paragraphs.append(("others", rest))
    return "\n".join(
        textwrap.fill(
            f"{about}: {', '.join(names)}", 100, initial_indent="  ", subsequent_indent="      "
        )
        for about, names in paragraphs
    )


def find_recipe(name: object) -> Recipe:
    """Return the recipe of that name.

    Raises UserError if there is none, with the nearest name, or if a plugin's returns something
    else.
    """
    if not isinstance(name, str):
        raise UserError(f"--recipe: expected a name, got {type(name).__name__}")
    if name in RECIPES:
        recipe = RECIPES[name]()
        if not isinstance(recipe, Recipe):
            raise UserError(f"recipe {name} returns a {type(recipe).__name__}, not a burn.Recipe")
        return from_plain(Recipe, recipe)  # a plugin's may have values of wrong types
    near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.4)
    some = f"there are {listed(list(RECIPES), 5)}; burn pretrain --help names them"
    hint = f"did you mean {near[0]}?" if near else some
    raise UserError(f"unknown recipe {shortened(str(name))!r}: {hint}")
