"""Runs that keep their teacher's features: the same bits, and no teacher where all is known."""

from __future__ import annotations

import errno
import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from rich.console import Console
from safetensors.torch import load_file

import tiny
from burn.backbones.late import LateBackbone
from burn.core.errors import UserError
from burn.data.feature_cache import FeatureCache
from burn.recipes.schema import Recipe
from burn.training.plan import Machine


def recipe_of(method: str, size: int | None = None, **changes: Any) -> Recipe:
    recipe = tiny.student_recipe() if method == "burn" else tiny.baseline_recipe(method)
    return replace(recipe, stages=1, teacher_size=size, **changes)


def crossed(recipe: Recipe) -> Recipe:
    return recipe.with_settings(views="cross")


def run(recipe: Recipe, out: Path, teacher: Path | None, cache: Path | None, **options: Any) -> str:
    """What was said."""
    said = Console(file=StringIO(), width=400)
    given = None if cache is None else str(cache)
    workers = options.pop("workers", 0)
    machine = Machine(device="cpu", workers=workers, monitor_every=2, teacher_cache=given)
    tiny.train(recipe, out, teacher, console=said, machine=machine, **options)
    assert isinstance(said.file, StringIO)
    return said.file.getvalue()


def same(a: Path, b: Path, stage: int = 1) -> bool:
    first, second = (load_file(out / f"stage{stage}.safetensors") for out in (a, b))
    return list(first) == list(second) and all(torch.equal(first[k], second[k]) for k in first)


@dataclass(frozen=True)
class Filled:
    """A run of three steps that filled its cache.

    Attributes:
        run: Its folder.
        cache: The folder of the features; tests that write there copy it.
        said: What it said.
    """

    run: Path
    cache: Path
    said: str


Given = Callable[[str, int | None], tuple[Recipe, Path]]


@pytest.fixture(scope="module")
def given(teacher: Path, labelled_teacher: Path) -> Given:
    """The recipe and the teacher of a method, at a size of the teacher's views."""

    def find(method: str, size: int | None) -> tuple[Recipe, Path]:
        name = method.partition(" ")[0]
        recipe = recipe_of(name, size)
        recipe = crossed(recipe) if method == "burn crossed" else recipe
        return recipe, labelled_teacher if name == "supervised_kl" else teacher

    return find


@pytest.fixture(scope="module")
def without(given: Given, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A run of three steps without a cache, once for each method and size."""

    @functools.cache
    def trained(method: str, size: int | None) -> Path:
        recipe, taught_by = given(method, size)
        out = tmp_path_factory.mktemp("without") / "run"
        run(recipe, out, taught_by, None, max_steps=3)
        return out

    return trained


@pytest.fixture(scope="module")
def filled(given: Given, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Filled]:
    """A run of three steps that filled a new cache, once for each method and size."""

    @functools.cache
    def trained(method: str, size: int | None) -> Filled:
        recipe, taught_by = given(method, size)
        folder = tmp_path_factory.mktemp("filled")
        said = run(recipe, folder / "run", taught_by, folder / "cache", max_steps=3)
        return Filled(folder / "run", folder / "cache", said)

    return trained


@pytest.fixture
def of_burn(filled: Callable[..., Filled], tmp_path: Path) -> Path:
    """A copy of the cache that a run of BURN filled, with views of the usual size."""
    return Path(shutil.copytree(filled("burn", None).cache, tmp_path / "cache"))


def test_a_cache_is_not_the_folder_of_a_run(teacher: Path, tmp_path: Path):
    recipe = replace(tiny.student_recipe(), stages=1)
    out = tmp_path / "run"
    for cache in (out, out / "features"):
        with pytest.raises(UserError, match="lies in the folder of this run"):
            run(recipe, out, teacher, cache)
    for cache in (teacher, teacher / "stage1" / "features"):
        with pytest.raises(UserError, match="the folder of a run"):
            run(recipe, out, teacher, cache)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(UserError, match="symbolic links form a loop"):
        run(recipe, out, teacher, loop)
    assert not out.exists()


@pytest.fixture
def no_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building one fails."""

    def fail(_: LateBackbone) -> None:
        raise AssertionError("the teacher was built")

    monkeypatch.setattr(LateBackbone, "build", fail)


@pytest.mark.parametrize(
    ("method", "size"),
    [
        ("burn", None),
        ("burn crossed", 48),
        ("s2bnn", None),
        ("supervised_kl", 48),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("burn", 48), ("burn crossed", None), ("s2bnn", 48), ("supervised_kl", None)
            )
        ),
    ],
)  # fmt: skip
def test_the_same_bits_without_a_cache_filling_it_and_from_it(
    method: str, size: int | None, given: Given, without: Callable[..., Path],
    filled: Callable[..., Filled], tmp_path: Path, request: pytest.FixtureRequest,
):  # fmt: skip
    recipe, taught_by = given(method, size)
    plain, filling = without(method, size), filled(method, size)
    assert "none cached" in filling.said
    cache = shutil.copytree(filling.cache, tmp_path / "cache")
    request.getfixturevalue("no_teacher")
    run(recipe, tmp_path / "from", taught_by, cache, max_steps=3)
    assert same(plain, filling.run)
    assert same(plain, tmp_path / "from")


def test_the_same_bits_in_bfloat16(
    teacher: Path, tmp_path: Path, request: pytest.FixtureRequest
):  # fmt: skip
    recipe = recipe_of("burn", 48, compute="bfloat16")
    run(recipe, tmp_path / "a", teacher, None, max_steps=3)
    run(recipe, tmp_path / "b", teacher, tmp_path / "cache", max_steps=3)
    said = run(
        recipe_of("burn", 48), tmp_path / "float32", teacher, tmp_path / "cache", max_steps=1
    )
    assert "none cached" in said  # of other arithmetic
    request.getfixturevalue("no_teacher")
    run(recipe, tmp_path / "c", teacher, tmp_path / "cache", max_steps=3)
    assert same(tmp_path / "a", tmp_path / "b")
    assert same(tmp_path / "a", tmp_path / "c")


@pytest.mark.usefixtures("no_teacher")
def test_the_fixture_notices_a_teacher(teacher: Path, tmp_path: Path):
    with pytest.raises(AssertionError, match="the teacher was built"):
        run(recipe_of("burn"), tmp_path / "run", teacher, tmp_path / "cache", max_steps=1)


@pytest.mark.long
def test_both_stages_and_workers_share_it(teacher: Path, tmp_path: Path):
    recipe = replace(recipe_of("burn"), stages=2)
    cache = tmp_path / "cache"
    run(recipe, tmp_path / "a", teacher, None, max_steps=2)
    run(recipe, tmp_path / "b", teacher, cache, max_steps=2, workers=2)
    run(recipe, tmp_path / "c", teacher, cache, max_steps=2, workers=2)
    for stage in (1, 2):
        assert same(tmp_path / "a", tmp_path / "b", stage)
        assert same(tmp_path / "a", tmp_path / "c", stage)
    # Each stage has a seed of its own.
    assert len(list(cache.glob("*/seed*-view0"))) == 2


def test_a_variant_of_the_loss_finds_the_features(
    teacher: Path, of_burn: Path, tmp_path: Path, request: pytest.FixtureRequest
):  # fmt: skip
    request.getfixturevalue("no_teacher")
    other = recipe_of("burn").with_settings(similarity="l2", lam_end=0.5)
    run(other, tmp_path / "b", teacher, of_burn, max_steps=2)


@pytest.mark.parametrize("what", ["seed", "size", "view", "teacher"])
def test_other_features_are_not_taken_for_it(
    what: str, teacher: Path, labelled_teacher: Path, of_burn: Path, tmp_path: Path
):
    recipe = recipe_of("burn")
    options: dict[str, Any] = {"max_steps": 1}
    if what == "seed":
        options["seed"] = 5
    elif what == "size":
        recipe = replace(recipe, teacher_size=40)
    elif what == "view":
        recipe = replace(recipe, views=replace(recipe.views, flip=0.25))
    else:
        teacher = labelled_teacher
    said = run(recipe, tmp_path / "b", teacher, of_burn, **options)
    assert "none cached" in said
    run(recipe, tmp_path / "c", teacher, None, **options)
    assert same(tmp_path / "b", tmp_path / "c")


def test_views_that_repeat_are_shown_to_the_teacher_once(teacher: Path, tmp_path: Path):
    recipe = recipe_of("burn", epochs=2, batch_size=30, view_epochs=1)
    usual = {"max_steps": None, "data": tiny.some_digits(tmp_path, 96)}
    run(recipe, tmp_path / "without", teacher, None, **usual)
    said = run(recipe, tmp_path / "filling", teacher, tmp_path / "cache", **usual)
    assert "none cached; 1 MB when complete" in said
    assert len(list((tmp_path / "cache").rglob("epoch*.f16"))) == 1
    summary = json.loads((tmp_path / "filling/stage1.json").read_text())
    assert 0.4 < summary["monitor"]["teacher_cached"] < 0.5  # an epoch leaves an incomplete batch
    assert same(tmp_path / "without", tmp_path / "filling")


def test_torn_records_are_made_once_more(
    teacher: Path, filled: Callable[..., Filled], of_burn: Path, tmp_path: Path
):  # fmt: skip
    recipe = recipe_of("burn")
    (file,) = of_burn.glob("*/seed*-view0/epoch00000.f16")
    whole = file.read_bytes()
    torn = bytearray(whole)
    for place in range(0, len(torn), 5000):
        torn[place] ^= 255
    file.write_bytes(torn)
    run(recipe, tmp_path / "b", teacher, of_burn, max_steps=3)
    runs = filled("burn", None).run, tmp_path / "b"
    first, second = (load_file(out / "stage1.safetensors") for out in runs)
    for name, tensor in first.items():  # other batches for the teacher: up to rounding
        torch.testing.assert_close(second[name], tensor, rtol=1e-3, atol=1e-3)
    run(recipe, tmp_path / "c", teacher, of_burn, max_steps=3)


def test_a_full_disk_ends_the_keeping_and_not_the_run(
    teacher: Path, without: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = recipe_of("burn")
    plain = without("burn", None)
    calls: list[int] = []

    def full(_: FeatureCache, epoch: int, *__: Any) -> None:
        calls.append(epoch)
        raise OSError(errno.ENOSPC, "No space left on device")  # without a name, as `write` does

    monkeypatch.setattr(FeatureCache, "write", full)
    said = run(recipe, tmp_path / "b", teacher, tmp_path / "cache", max_steps=3)
    assert said.count("features are no longer cached") == 1
    assert "No space left on device" in said
    assert "epoch00000.f16 cannot be written" in said
    assert len(calls) == 1
    assert same(plain, tmp_path / "b")


def test_what_cannot_be_kept_is_named(teacher: Path, tmp_path: Path):
    recipe = recipe_of("burn")
    batch = recipe.with_settings(teacher_batch_norm="batch")
    with pytest.raises(UserError, match=r"--teacher-cache: with burn.teacher_batch_norm batch"):
        run(batch, tmp_path / "run", teacher, tmp_path / "cache")
    with pytest.raises(UserError, match="--teacher-cache: method byol has no teacher"):
        run(recipe_of("byol"), tmp_path / "run", None, tmp_path / "cache")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--teacher-cache .*file cannot be written"):
        run(recipe, tmp_path / "run", teacher, tmp_path / "file")
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_cannot_take_its_views_leaves_no_cache(tmp_path: Path):
    """Else the next run would take the size for one that had been tried."""
    vit = tmp_path / "vit.pth"
    torch.save(timm.create_model("test_maxvit").state_dict(), vit)
    for _ in range(2):
        with pytest.raises(UserError, match="cannot take views of 32 pixels"):
            run(recipe_of("burn"), tmp_path / "run", Path(f"test_maxvit:{vit}"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
