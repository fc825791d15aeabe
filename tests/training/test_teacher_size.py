"""A teacher that sees the student's views at a size of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional as F

import tiny
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher, load_teacher
from burn.core.errors import UserError
from burn.core.types import Batch
from burn.data.loader import random_views
from burn.data.view_config import ViewConfig
from burn.methods.base import Method
from burn.methods.registry import build_method
from burn.methods.shared.frozen import FrozenTarget
from burn.recipes.schema import Recipe


def recipe_of(method: str, size: int | None) -> Recipe:
    recipe = tiny.student_recipe() if method == "burn" else tiny.baseline_recipe(method)
    return replace(recipe, stages=1, teacher_size=size)


def test_both_see_the_same_crop_flip_and_colours():
    """The teacher's view, shrunk, is the student's, up to the interpolation."""
    recipe = replace(recipe_of("burn", 96), views=ViewConfig(size=32, crop_scale=(0.3, 1.0)))
    random = np.random.default_rng(0)
    smooth = random.integers(0, 256, (3, 6, 6)).astype(np.float32)
    image = F.interpolate(torch.from_numpy(smooth)[None], 192, mode="bicubic")[0]
    image = image.clamp(0, 255).to(torch.uint8)
    transform = random_views(recipe.view_configs(1), 3, recipe.teacher_configs(1))
    for index in range(20):
        drawn = transform(image, 0, index)
        (student,), (teacher,) = drawn.views, drawn.teacher_views
        assert student.shape == (3, 32, 32)
        assert teacher.shape == (3, 96, 96)
        small = F.interpolate(teacher[None].float(), 32, mode="area")[0]
        assert float((small - student.float()).abs().mean()) < 3  # grey levels; another crop: 30
    alone = random_views(recipe.view_configs(1), 3)
    assert torch.equal(alone(image, 0, 7).views[0], transform(image, 0, 7).views[0])
    assert not alone(image, 0, 7).teacher_views


def test_of_two_views_each_has_its_rendering():
    recipe = recipe_of("burn", 48)
    configs = recipe.teacher_configs(2)
    assert [config.size for config in configs] == [48, 48]
    image = torch.arange(3 * 64 * 64, dtype=torch.int64).remainder(251).to(torch.uint8)
    drawn = random_views(recipe.view_configs(2), 0, configs)(image.reshape(3, 64, 64), 0, 0)
    bigger = random_views(configs, 0)(image.reshape(3, 64, 64), 0, 0).views
    assert all(torch.equal(a, b) for a, b in zip(drawn.teacher_views, bigger, strict=True))
    assert not torch.equal(*drawn.teacher_views)


def test_a_size_that_is_the_students_changes_nothing(teacher: Path, tmp_path: Path):
    for name, size in (("none", None), ("same", 32)):
        tiny.train(recipe_of("burn", size), tmp_path / name, teacher, max_steps=2)
    a, b = (load_file(tmp_path / name / "stage1.safetensors") for name in ("none", "same"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("method", "views"), [("burn", 1), ("burn cross", 2), ("s2bnn", 1), ("supervised_kl", 1)]
)
def test_each_method_hands_the_teacher_its_own_views(
    method: str, views: int, labelled_teacher: Path, teacher: Path
):
    name = method.partition(" ")[0]
    recipe = recipe_of(name, 48)
    if method == "burn cross":
        recipe = recipe.with_settings(views="cross")
    given = load_teacher(str(labelled_teacher if name == "supervised_kl" else teacher))
    built = build(recipe, given)
    assert built.num_views == views
    seen: list[tuple[int, ...]] = []
    target = next(m for m in built.modules() if isinstance(m, FrozenTarget))
    target.register_forward_pre_hook(lambda _module, inputs: seen.append(tuple(inputs[0].shape)))
    students: list[int] = []
    built.backbone.register_forward_pre_hook(
        lambda _module, inputs: students.append(inputs[0].shape[2])
    )
    images, larger = (
        tuple(
            torch.randint(0, 256, (4, 3, config.size, config.size), dtype=torch.uint8)
            for config in configs
        )
        for configs in (recipe.view_configs(views), recipe.teacher_configs(built.num_taught))
    )
    loss = built(Batch(images, torch.arange(4), teacher_views=larger), 0.0).loss
    assert torch.isfinite(loss)
    assert seen == [(4, 3, 48, 48)] * views
    assert set(students) == {32}


def build(recipe: Recipe, teacher: Teacher) -> Method:
    backbone = build_backbone(recipe.backbone, recipe.precisions()[0])
    return build_method(recipe.method, recipe.settings, backbone, teacher, 10)


def test_a_run_and_its_picture(teacher: Path, tmp_path: Path):
    tiny.train(recipe_of("burn", 64), tmp_path / "run", teacher, max_steps=2)
    with Image.open(tmp_path / "run" / "views.jpg") as picture:
        width, height = picture.size
    assert width > 2.5 * height / 8  # three columns of eight rows: image, view, teacher's
    again = tiny.train(
        recipe_of("burn", 64), tmp_path / "run", teacher, max_steps=2, resume=True
    )  # fmt: skip
    assert again[0].steps == 2
    with pytest.raises(UserError, match="teacher_size was 64, is 96"):
        tiny.train(recipe_of("burn", 96), tmp_path / "run", teacher, max_steps=2, resume=True)


def test_sizes_that_cannot_be_are_named(teacher: Path, tmp_path: Path):
    with pytest.raises(UserError, match="--teacher-size 4 is not in 8 … "):
        recipe_of("burn", 4).check()
    with pytest.raises(UserError, match="--teacher-size 96: method byol has no teacher"):
        recipe_of("byol", 96).check()
    vit = tmp_path / "vit.pth"
    torch.save(timm.create_model("test_maxvit").state_dict(), vit)
    with pytest.raises(UserError, match=r"cannot take views of 32 pixels: give --teacher-size 160"):
        tiny.train(recipe_of("burn", None), tmp_path / "run", f"test_maxvit:{vit}", max_steps=1)
    assert not (tmp_path / "run").exists()
    patches = tmp_path / "patches.pth"
    torch.save(timm.create_model("test_vit").state_dict(), patches)
    with pytest.raises(UserError, match=r"100 pixels: .*patch size.*; give another --teacher-size"):
        tiny.train(recipe_of("burn", 100), tmp_path / "run", f"test_vit:{patches}", max_steps=1)
    tiny.train(replace(recipe_of("burn", 160), batch_size=4), tmp_path / "run",
               f"test_maxvit:{vit}", max_steps=1)  # fmt: skip
