from dataclasses import Field, fields, make_dataclass, replace
from pathlib import Path

import pytest

import tiny
from burn.backbones.plan import REACTNETS
from burn.backbones.registry import build_backbone
from burn.campaigns.compare import compared_in, recipe_of
from burn.core.errors import UserError
from burn.core.plugins import Plugin
from burn.core.types import Precision
from burn.costs.compute import count
from burn.methods.burn.settings import BurnConfig
from burn.methods.byol.settings import ByolConfig
from burn.methods.entries import METHODS, MethodEntry
from burn.paper.numbers import OF_RECIPE
from burn.recipes.registry import DEFAULT, RECIPES, find_recipe, recipe_list
from burn.recipes.schema import OptimConfig, Recipe

# Those for ImageNet100 differ from those for ImageNet at most in a queue, and these, shrunk, from
# the small ones in stages and optimizer. The demo is tested as a whole.
SELDOM = [
    name
    for name in RECIPES
    if ("_imagenet" in name and name != "paper_imagenet") or name.startswith("demo")
]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in SELDOM else ()) for n in RECIPES]
)
def test_every_recipe_trains_two_steps_on_the_built_in_images(
    name: str, teacher: Path, labelled_teacher: Path, tmp_path: Path
):
    _train_two_steps(find_recipe(name), name, teacher, labelled_teacher, tmp_path)


PAPERS = (*OF_RECIPE, "supervised_kl")  # and ReActNet's own baseline


@pytest.mark.parametrize("method", ["swav", "s2bnn"])
def test_methods_on_photos_train_two_steps_on_the_built_in_images(
    method: str, teacher: Path, labelled_teacher: Path, tmp_path: Path
):
    name, recipe = recipe_of(method, "photos")
    _train_two_steps(recipe, name, teacher, labelled_teacher, tmp_path)


def _train_two_steps(
    recipe: Recipe, name: str, teacher: Path, labelled_teacher: Path, tmp_path: Path
) -> None:
    """Shrunk in all sizes; method, loss and optimizer are the recipe's."""
    depths = (1, 1, 1, 1, 1) if recipe.backbone.name in REACTNETS else None
    settings = {
        "burn": {"num_classes": 64, "hidden": 64},
        "byol": {"hidden": 64},
        "swav": {"hidden": 64, "small_size": 32 if recipe.views.size > 32 else 16},
        "mocov2": {"queue": 64},
        "infomin": {"negatives": 64},
    }
    small = replace(
        recipe.with_settings(**settings.get(recipe.method, {})),
        batch_size=16,
        accumulate=min(recipe.accumulate, 2),
        backbone=replace(recipe.backbone, width=0.125, depths=depths),
        views=replace(recipe.views, size=32, resize=None),
    )
    out = tmp_path / "run"
    taught_by = {"burn": teacher, "s2bnn": teacher, "supervised_kl": labelled_teacher}
    summaries = tiny.train(small, out, taught_by.get(recipe.method), name=name, max_steps=2)
    assert [s.steps for s in summaries] == [2] * len(recipe.precisions())


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_valid_and_says_how_to_run_it(name: str):
    find_recipe(name).check()
    assert f"burn pretrain --recipe {name} " in (RECIPES[name].__doc__ or "")


def test_the_papers_recipe_is_the_papers():
    """SPEC sections 1 and 4."""
    recipe = find_recipe("paper_imagenet")
    assert (recipe.epochs, recipe.batch_size, recipe.stages) == (200, 2048, 2)
    assert (recipe.optim.name, recipe.optim.lr, recipe.optim.warmup_epochs) == ("lars", 0.3, 10)
    assert (recipe.settings.classifier, recipe.settings.lam) == ("joint", "cosine")
    assert (recipe.settings.lam_start, recipe.settings.lam_end) == (0.9, 0.7)
    assert (recipe.settings.temperature, recipe.settings.views) == (0.2, "same")
    assert (recipe.settings.num_classes, recipe.settings.hidden) == (2000, 2000)
    views = recipe.views
    assert (views.size, views.jitter, views.grey, views.blur) == (224, 0.6, 0.2, 0.2)
    assert (views.brightness, views.contrast, views.saturation, views.hue) == (0.4, 0.4, 0.4, 0.1)
    assert views.blur_sigma == (0.1, 2.0)


def test_the_small_recipes_share_one_budget():
    """Network, epochs, batch and stages are burn_small's; what a method is may differ."""
    burn, strong = find_recipe("burn_small"), find_recipe("paper_small").views
    for method in PAPERS:
        recipe = find_recipe(f"{method}_small")
        assert recipe.method == method
        for name in ("epochs", "batch_size", "accumulate", "stages", "backbone"):
            assert getattr(recipe, name) == getattr(burn, name), (method, name)
        assert replace(recipe.optim, lr=burn.optim.lr) == burn.optim
        if method not in ("burn", "infomin"):  # its augmentation is the method
            assert recipe.views == strong


def test_the_papers_small_recipe_has_its_loss_and_the_defaults_budget():
    paper, burn = find_recipe("paper_small"), find_recipe("burn_small")
    assert paper.settings == find_recipe("paper_imagenet").settings
    assert abs(paper.epochs * paper.stages - burn.epochs * burn.stages) <= 1
    assert paper.backbone == replace(burn.backbone, activation_gradient="poly")
    feature_only = find_recipe("feature_only_small")
    optim = replace(paper.optim, lr=feature_only.optim.lr)  # tuned for each
    assert feature_only == replace(paper, settings=BurnConfig(classifier="none"), optim=optim)


@pytest.mark.parametrize("family", ["small", "imagenet", "imagenet100"])
def test_every_method_has_a_recipe_in_every_family(family: str):
    assert all(f"{method}_{family}" in RECIPES for method in PAPERS)


def test_methods_on_photos_have_burns_network_and_sizes_and_the_rates_of_their_small_recipes():
    burn = find_recipe("burn")
    for method in set(PAPERS) - {"burn"}:
        name, recipe = recipe_of(method, "photos")
        small = find_recipe(f"{method}_small")
        assert name == f"{method}_photos"
        assert recipe.backbone == replace(burn.backbone, activation_gradient="clip")
        assert recipe.optim.lr == small.optim.lr
        assert (recipe.epochs, recipe.batch_size, recipe.views.size) == (60, 64, 96)
        assert recipe.teacher_size == (192 if METHODS[method].needs_teacher else None)
    assert recipe_of("burn", "photos") == ("burn", burn)
    alone = recipe_of("feature_only", "photos")[1]  # the default on photographs, but for its name
    assert alone == burn
    mocov2 = recipe_of("mocov2", "photos")[1].settings
    assert (mocov2.queue, mocov2.momentum) == (2048, 0.998)  # half of a batch's keys in a step
    paper = recipe_of("paper", "photos")[1]
    assert (paper.epochs, paper.stages) == (30, 2)
    assert paper.backbone == replace(burn.backbone, activation_gradient="poly")


def test_a_registered_method_without_a_recipe_takes_one_with_its_needs(
    monkeypatch: pytest.MonkeyPatch,
):
    """On photos, one that is taught has burn's views as well, so that methods alone differ."""
    for name in ("s2bnn", "simclr"):
        mine = replace(METHODS[name], name=f"own_{name}", plugin=Plugin("mine.py"))
        monkeypatch.setitem(METHODS, f"own_{name}", mine)
    taught, alone = (recipe_of(f"own_{name}", "photos") for name in ("s2bnn", "simclr"))
    assert taught == ("own_s2bnn", replace(find_recipe("burn"), method="own_s2bnn"))
    like = recipe_of("simclr", "photos")[1]
    assert alone == ("own_simclr", replace(like, method="own_simclr"))


@pytest.mark.parametrize("family", ["small", "photos", "imagenet", "imagenet100"])
def test_all_that_a_family_compares_have_a_recipe(family: str):
    names = compared_in(family)
    assert set(PAPERS) <= set(names)
    assert ("feature_only" in names) == (family in ("small", "photos"))
    for name in names:
        recipe_of(name, family)


@pytest.mark.parametrize("family", ["imagenet", "imagenet100"])
def test_all_methods_train_for_the_papers_200_epochs(family: str):
    assert {find_recipe(f"{method}_{family}").epochs for method in PAPERS} == {200}


def test_tuned_mocov2_and_s2bnn_are_those_of_the_s2bnn_paper():
    mocov2, s2bnn = find_recipe("mocov2_imagenet"), find_recipe("s2bnn_imagenet")
    for recipe in (mocov2, s2bnn):
        assert (recipe.epochs, recipe.batch_size, recipe.stages) == (200, 256, 2)
        optim = recipe.optim
        assert (optim.name, optim.lr, optim.schedule) == ("adam", 3e-4, "linear")
        views = recipe.views
        assert (views.crop_scale, views.jitter, views.blur) == ((0.2, 1.0), 0.6, 0.2)
    assert (mocov2.optim.weight_decay, s2bnn.optim.weight_decay) == (1e-4, 0.0)
    config = mocov2.settings
    assert (config.temperature, config.queue, config.momentum) == (0.2, 65536, 0.999)
    assert (s2bnn.settings.temperature, s2bnn.settings.contrastive) == (0.2, 0.0)


def test_weak_infomin_lacks_rand_augment_alone():
    strong, weak = find_recipe("infomin_imagenet100"), find_recipe("infomin_weak_imagenet100")
    assert strong.views.rand_augment == 2
    assert weak == replace(strong, views=replace(strong.views, rand_augment=0))


@pytest.mark.parametrize("name", ["bnext_small", "expert_small"])
def test_recipes_of_other_networks_differ_from_burn_small_in_the_network_alone(name: str):
    burn, recipe = find_recipe("burn_small"), find_recipe(name)
    assert replace(recipe, backbone=burn.backbone) == burn
    costs = [count(build_backbone(one.backbone, Precision.BINARY), 32, 0) for one in (burn, recipe)]
    operations = [cost.binary_macs + cost.flops for cost in costs]
    assert operations[1] == pytest.approx(operations[0], rel=0.1)
    says = RECIPES[name].__doc__ or ""
    assert ("kNN" in says) != ("Not run here" in says)


def test_device_recipes_differ_in_the_side_of_their_images():
    small, large = find_recipe("burn_device"), find_recipe("burn_device_128")
    assert (small.views.size, large.views.size) == (96, 128)
    assert replace(large, views=small.views) == small
    assert small.views.resize is None  # 8/7 of either size, as for ImageNet
    assert small.backbone.width == 0.5


def test_the_default_has_burn_devices_network_and_the_method_of_feature_only():
    burn, device = find_recipe(DEFAULT), find_recipe("burn_device")
    method = find_recipe("feature_only_small")
    assert burn.backbone == replace(device.backbone, activation_gradient="poly")
    assert burn.settings == method.settings
    assert (burn.stages, burn.view_epochs) == (method.stages, None)
    assert burn.views.size == device.views.size
    assert burn.views.crop_scale == method.views.crop_scale
    assert burn.teacher_size == 2 * burn.views.size


def test_a_method_without_a_teacher_drops_the_recipes_teacher_size():
    burn = find_recipe(DEFAULT)
    other = replace(burn, method="simclr").without_unused_teacher_size(burn)
    assert other.teacher_size is None
    other.check()
    assert burn.without_unused_teacher_size(burn) == burn
    given = replace(burn, method="simclr", teacher_size=100).without_unused_teacher_size(burn)
    with pytest.raises(UserError, match="--teacher-size 100: method simclr has no teacher"):
        given.check()


def test_help_names_every_recipe_once():
    lines = recipe_list().replace("\n      ", " ").splitlines()
    named = [name.strip() for line in lines for name in line.partition(": ")[2].split(",")]
    assert sorted(named) == sorted(RECIPES)
    (device,) = (line for line in lines if "small devices" in line)
    assert device.endswith("small devices: burn, burn_device, burn_device_128")


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UserError, match="unknown recipe 'burn_smal': did you mean burn_small"):
        find_recipe("burn_smal")


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_json(name: str):
    recipe = find_recipe(name)
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"settings": {"classifier": "joint"}}, "burn: expected named values"),
        ({"burn": None}, "burn: expected named values"),
        ({"burn": 5}, "burn: expected named values"),
        ({"burn": {"lamb": 1}}, r"unknown setting burn\.lamb"),
        ({"method": "supervised", "supervised": 5}, "supervised: the method has no settings"),
    ],
)
def test_settings_that_are_not_the_methods_are_refused(values: dict, message: str):
    with pytest.raises(UserError, match=message):
        Recipe.from_json(values)


@pytest.mark.parametrize("given", [5, "x", [1], BurnConfig, OptimConfig(), {"lamb": 1}])
@pytest.mark.parametrize("method", ["burn", "supervised"])
def test_other_values_than_settings_are_refused(method: str, given: object):
    with pytest.raises(UserError, match=rf"{method}[:.]|unknown setting"):
        Recipe(method=method, settings=given)


def test_settings_of_another_method_become_the_defaults():
    recipe = Recipe(settings=BurnConfig(lam="constant"))
    assert replace(recipe, method="byol").settings == ByolConfig()
    assert replace(recipe, method="supervised").settings is None
    with pytest.raises(UserError, match="supervised: the method has no settings"):
        replace(recipe, method="supervised").with_settings(lam="constant")


@pytest.mark.parametrize(("module", "is_same"), [("mine", True), ("theirs", False)])
def test_settings_of_a_class_that_was_defined_anew_are_kept(
    module: str, is_same: bool, monkeypatch: pytest.MonkeyPatch
):
    """As when a notebook's cell runs again; a class of another module is not the same one."""
    first, again = (make_dataclass("Config", [("weight", float, 1.0)]) for _ in range(2))
    first.__module__, again.__module__ = "mine", module
    entry = MethodEntry("mine", "mine:Mine", config=first, plugin=Plugin("mine.py"))
    monkeypatch.setitem(METHODS, "mine", entry)
    if is_same:
        assert Recipe(method="mine", settings=again(2.0)).settings == first(2.0)
    else:
        with pytest.raises(UserError, match="mine: "):
            Recipe(method="mine", settings=again(2.0))


@pytest.mark.parametrize("field", fields(Recipe), ids=lambda field: field.name)
def test_a_plugins_method_of_a_fields_name_takes_nothing_away(
    field: Field, monkeypatch: pytest.MonkeyPatch
):
    name = field.name
    monkeypatch.setitem(METHODS, name, MethodEntry(name, "mine:Mine", plugin=Plugin("mine.py")))
    recipe = replace(find_recipe("burn_small"), epochs=3)
    assert Recipe.from_json(recipe.to_json()) == recipe
    with pytest.raises(UserError, match=f"method {name}: recipes have a setting of that name"):
        replace(recipe, method=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "--epochs 0 is not in 1 … "),
        ({"batch_size": 10, "accumulate": 3}, "batch_size 10 cannot be divided into 3 equal parts"),
        ({"batch_size": 4, "accumulate": 4}, "4 equal parts .* give --accumulate 1 too"),
        ({"batch_size": 1000, "accumulate": 16}, "16 equal parts .* give --accumulate 10 too"),
        ({"batch_size": 1}, "batch_size 1: give 2 or more images"),
        ({"method": "simclr", "accumulate": 2}, "simclr cannot cut a batch"),
        ({"burn": {"temperature": 0.0}}, "burn.temperature 0.0 is not in"),
        ({"burn": {"lam_start": 1.5}}, "burn.lam_start 1.5 is not in"),
        ({"burn": {"classifier_lr": 0.1}}, "classifier_lr needs burn.classifier joint"),
        ({"burn": {"classifier": "none", "similarity_of": "logits"}}, "needs a classifier"),
        ({"backbone": {"name": "resnet18"}}, "resnet18 has no binary layers: give stages 1"),
        ({"views": {"flip": 2.0}}, "views.flip 2.0 is not a probability"),
        ({"views": {"crop_scale": [0.9, 0.1]}}, "views.crop_scale"),
        ({"views": {"size": 64, "resize": 32}}, "views.resize 32 is below .* --views.resize 64 or"),
        ({"views": {"resize": 9000}}, "views.resize 9000 is above 8192"),
        ({"optim": {"lr": 0.0}}, "optim.lr 0.0 is not in"),
        ({"views": {"rand_augment": -1}}, "views.rand_augment -1 is not in"),
        ({"views": {"rand_strength": 1.5}}, "views.rand_strength 1.5 is not in"),
        ({"method": "byol", "byol": {"momentum": 1.5}}, "byol.momentum 1.5 is not in"),
        ({"method": "swav", "swav": {"prototypes": 1}}, "swav.prototypes 1 is not in"),
        ({"method": "mocov2", "mocov2": {"queue": 0}}, "mocov2.queue 0 is not in"),
        ({"method": "infomin", "infomin": {"negatives": 0}}, "infomin.negatives 0 is not in"),
        ({"method": "s2bnn", "s2bnn": {"temperature": 0.0}}, "s2bnn.temperature 0.0 is not in"),
        ({"method": "simclr", "simclr": {"temperature": 0.0}}, "simclr.temperature 0.0 is not in"),
        ({"optim": {"beta2": 1.0}}, "optim.beta2 1.0 is not in"),
    ],
)
def test_values_that_make_no_sense_are_named(change: dict, message: str):
    with pytest.raises(UserError, match=message):
        Recipe.from_json(change).check()
