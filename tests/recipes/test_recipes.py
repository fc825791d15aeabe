from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from burn.errors import UserError
from burn.recipes import RECIPES, find_recipe
from burn.settings import from_plain
from burn.training.recipe import Recipe


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_two_steps_on_the_built_in_images(
    name: str, teacher: Path, tmp_path: Path
):
    """Shrunk in width, batch and image size alone; method, loss and optimizer are the recipe's."""
    recipe = find_recipe(name)
    recipe.check()
    small = replace(
        recipe,
        batch_size=16,
        accumulate=min(recipe.accumulate, 2),
        backbone=replace(recipe.backbone, width=0.125),
        views=replace(recipe.views, size=32, resize=None),
    )
    out = tmp_path / "run"
    needs_teacher = recipe.method == "burn"
    summaries = tiny.train(small, out, teacher if needs_teacher else None, name=name, max_steps=2)
    assert [s.steps for s in summaries] == [2] * len(recipe.precisions())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_how_to_run_it(name: str):
    assert f"burn pretrain --recipe {name} " in (RECIPES[name].__doc__ or "")


def test_the_papers_recipe_is_the_papers():
    """SPEC sections 1 and 4."""
    recipe = find_recipe("paper_imagenet")
    assert (recipe.epochs, recipe.batch_size, recipe.stages) == (200, 2048, 2)
    assert (recipe.optim.name, recipe.optim.lr, recipe.optim.warmup_epochs) == ("lars", 0.3, 10)
    assert (recipe.burn.classifier, recipe.burn.lam) == ("joint", "cosine")
    assert (recipe.burn.lam_start, recipe.burn.lam_end) == (0.9, 0.7)
    assert (recipe.burn.temperature, recipe.burn.views) == (0.2, "same")
    assert (recipe.burn.num_classes, recipe.burn.hidden) == (2000, 2000)
    views = recipe.views
    assert (views.size, views.jitter, views.grey, views.blur) == (224, 0.6, 0.2, 0.2)
    assert (views.brightness, views.contrast, views.saturation, views.hue) == (0.4, 0.4, 0.4, 0.1)
    assert views.blur_sigma == (0.1, 2.0)


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UserError, match="unknown recipe 'burn_smal': did you mean burn_small"):
        find_recipe("burn_smal")


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_json(name: str):
    recipe = find_recipe(name)
    assert from_plain(Recipe, recipe.to_json()) == recipe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs 0 is not at least 1"),
        ({"batch_size": 10, "accumulate": 3}, "batch_size 10 cannot be cut"),
        ({"batch_size": 4, "accumulate": 4}, "BN needs a batch"),
        ({"burn": {"temperature": 0.0}}, "burn.temperature 0.0 is not in"),
        ({"burn": {"lam_start": 1.5}}, "burn.lam_start 1.5 is not in"),
        ({"burn": {"classifier_lr": 0.1}}, "classifier_lr needs burn.classifier joint"),
        ({"burn": {"classifier": "none", "similarity_of": "logits"}}, "needs a classifier"),
        ({"backbone": {"name": "resnet18"}}, "resnet18 has no binary layers: give stages 1"),
        ({"views": {"flip": 2.0}}, "views.flip 2.0 is not a probability"),
        ({"views": {"crop_scale": [0.9, 0.1]}}, "views.crop_scale"),
        ({"views": {"size": 64, "resize": 32}}, "views.resize 32 is below views.size 64"),
        ({"optim": {"lr": 0.0}}, "optim.lr 0.0 is not in"),
        ({"optim": {"beta2": 1.0}}, "optim.beta2 1.0 is not in"),
    ],
)
def test_values_that_make_no_sense_are_named(change: dict, message: str):
    with pytest.raises(UserError, match=message):
        from_plain(Recipe, change).check()
