"""What a run says before its first step, and of the time that it takes."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

import tiny
from burn.data.loader import EpochSampler
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.training import start_summary as start
from burn.training.callbacks.progress import ProgressBar
from burn.training.plan import StageSteps, stage_steps


def photos(folder: Path, count: int) -> Path:
    """Two classes of random PNGs."""
    random = np.random.default_rng(0)
    for number in range(count):
        file = folder / "ab"[number % 2] / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (40, 36, 3), dtype=np.uint8)).save(file)
    return folder


def said(recipe: Recipe, out: Path, data: str, teacher: Path | None = None, **options) -> str:
    text = io.StringIO()
    tiny.train(
        recipe, out, teacher, data=data, console=Console(file=text, width=1000), **options
    )  # fmt: skip
    return text.getvalue()


def test_a_run_says_what_it_found_and_what_it_will_do(teacher: Path, tmp_path: Path):
    data = photos(tmp_path / "[bold] photos", 14)
    for name in ("a/x.heic", "b/y.HEIC", "notes.txt"):
        (data / name).write_bytes(b"no image")
    recipe = replace(tiny.student_recipe(), batch_size=64, accumulate=2, epochs=3)
    lines = said(recipe, tmp_path / "run", str(data), teacher, max_steps=None).splitlines()
    device = next(line for line in lines if line.startswith("device "))
    assert "CPU (" in device
    assert device.endswith("1 thread, float32; 0 data-loader workers")
    assert [line for line in lines[:7] if line != device] == [
        f"images   14 from {data}; skipped: 2 HEIC (not read: convert them to JPEG or PNG), "
        "1 other file",
        "classes  2, only used to monitor kNN accuracy",
        "network  reactnet_a of width 0.25, method burn, 32 pixels",
        f"teacher  {teacher} (resnet10t)",
        "batch    14 (the recipe's 64 is more than there are images), learning rate 0.002 (adam)",
        "steps    6 = 2 stages × 3 epochs × 1",
    ]
    described = json.loads((tmp_path / "run" / "stage2.json").read_text())
    assert described["steps"] == 3


def test_unlabelled_images_and_a_method_that_learns_from_labels(tmp_path: Path):
    recipe = tiny.teacher_recipe()
    (data := tmp_path / "flat").mkdir()
    for number, file in enumerate(sorted(photos(tmp_path / "p", 4).rglob("*.png"))):
        file.rename(data / f"{number}.png")
    text = said(recipe, tmp_path / "a", str(data), max_steps=1)
    assert "classes  none; labels are not needed, but kNN accuracy cannot be monitored\n" in text
    assert "steps    1 = 1 stage × 1 (--max-steps)\n" in text
    text = said(replace(recipe, method="supervised"), tmp_path / "b", "digits", max_steps=1)
    assert "classes  10, which method supervised learns from\n" in text


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("num_images", [8, 100, 515])
def test_the_steps_are_those_of_the_loader(num_images: int, accumulate: int, processes: int):
    recipe = Recipe(batch_size=64, accumulate=accumulate, epochs=3)
    steps = stage_steps(recipe, num_images, processes)
    part = 64 // accumulate // processes
    sampler = EpochSampler(num_images, part, 0, drop_last=True, count=processes)
    batches = list(sampler)
    assert steps.passes_per_epoch == len(batches)
    assert {len(batch) for batch in batches} == {steps.images}
    first = batches[: steps.parts]
    assert steps.batch_size == processes * sum(len(batch) for batch in first)
    assert steps.per_epoch == len(batches[::accumulate])
    assert steps.total == 3 * steps.per_epoch
    assert steps.total_images == 3 * processes * sum(len(batch) for batch in batches)
    one = stage_steps(recipe, num_images, processes, steps.per_epoch + 1)
    assert one.total_images == steps.total_images // 3 + steps.batch_size
    assert stage_steps(recipe, num_images, processes, 2).total == 2


def test_the_batch_of_several_processes_is_told_by_its_parts():
    recipe = find_recipe("paper_imagenet")
    steps = stage_steps(recipe, 1_281_167, 8)
    assert start._batch(recipe, steps) == (
        "2048 = 8 processes × 32 images × 8 parts, learning rate 0.3 (lars)"
    )
    assert start._steps(recipe, steps, None) == "250,400 = 2 stages × 200 epochs × 626"


def test_a_learning_rate_for_another_batch_size_is_called_so():
    meant = find_recipe("burn_imagenet")
    caution = start.learning_rate_caution
    assert caution(replace(meant, batch_size=8), meant, "burn_imagenet", 8) == (
        "learning rate 0.3 of burn_imagenet is meant for batches of 2048, but these have 8 images: "
        "linear scaling gives --optim.lr 0.0012"
    )
    assert caution(meant, meant, "burn_imagenet", 2048) == ""
    assert caution(meant, meant, "burn_imagenet", 1024) == ""
    assert "--optim.lr 1.2" in caution(meant, meant, "burn_imagenet", 8192)
    own = replace(meant, optim=replace(meant.optim, lr=0.001))
    assert caution(own, meant, "burn_imagenet", 8) == ""
    adam = find_recipe("burn_small")  # its square root: a quarter of the batch is half the rate
    assert caution(adam, adam, "burn_small", 32) == ""
    assert "square-root scaling gives --optim.lr 0.002" in caution(adam, adam, "burn_small", 8)


def test_settings_of_classifiers_that_are_not_there_are_called_so():
    meant = find_recipe("burn_small")
    assert meant.settings.classifier == "none"
    changed = meant.with_settings(lam="constant", temperature=0.3)
    assert start.classifier_caution(changed, meant).startswith(
        "--burn.lam, --burn.temperature without effect: --burn.classifier is none"
    )
    assert start.classifier_caution(meant, meant) == ""
    there = changed.with_settings(classifier="frozen")
    assert start.classifier_caution(there, meant) == ""


def test_a_run_with_a_changed_batch_warns(teacher: Path, tmp_path: Path):
    recipe = replace(tiny.student_recipe(), stages=1)
    text = io.StringIO()
    run = tiny.RunPlan("big", recipe, "digits", str(teacher), 0, 1)
    machine = tiny.Machine(device="cpu", workers=0)
    tiny.train_plan(
        run, tmp_path / "run", machine, Console(file=text, width=1000), resume=False,
        overwrite=False, base_recipe=replace(recipe, batch_size=4096),
    )  # fmt: skip
    assert "0.002 of big is meant for batches of 4096, but these have 32" in text.getvalue()


def test_a_long_run_on_a_cpu_tells_its_time_and_changes_no_bit(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = replace(tiny.student_recipe(), stages=1)
    assert "time " not in said(recipe, tmp_path / "a", "digits", teacher, max_steps=2)
    monkeypatch.setattr(start, "_WORTH_A_TRIAL", 0.0)
    text = said(recipe, tmp_path / "b", "digits", teacher, max_steps=2)
    assert "time     about 1 min for all stages on this CPU, " in text
    a, b = (load_file(tmp_path / name / "stage1.safetensors") for name in "ab")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_of_days_on_a_cpu_is_called_one_for_a_gpu():
    recipe = find_recipe("paper_imagenet")
    steps = stage_steps(recipe, 512)
    assert (steps.batch_size, steps.parts) == (512, 2)
    line = start.time_line(5 * 86_400, steps, recipe)
    assert line == (
        "time     about 5 days for all stages on this CPU, 2.1 s/image; "
        "a run of this size is meant for a GPU"
    )
    assert "GPU" not in start.time_line(3600, steps, recipe)


def bar(later: int) -> ProgressBar:
    steps = StageSteps(
        images=8, processes=1, parts=2, batch_size=16, passes_per_epoch=20, per_epoch=10, total=100
    )
    return ProgressBar("stage", later, steps, None, Console(file=io.StringIO()))  # type: ignore[arg-type]


def test_the_time_left_is_that_of_all_stages():
    alone, first = bar(0), bar(100)
    for each in (alone, first):
        assert each._speed(1) == []
        for now in range(0, 300, 30):  # of 30 s: two make a step
            each._pace.batch(8, float(now))
    assert alone._speed(5) == ["3.8 s/image", "70 min to 2 h 30 min left"]
    for each in (alone, first):
        for now in range(300, 3000, 30):
            each._pace.batch(8, float(now))
    assert alone._speed(5) == ["3.8 s/image", "1 h 35 min left"]
    assert first._speed(5) == ["3.8 s/image", "3 h 15 min left in all stages"]
    assert alone._speed(100) == ["3.8 s/image"]
    assert first._speed(100) == ["3.8 s/image", "1 h 40 min left in all stages"]


@pytest.mark.parametrize(
    ("epochs", "view_epochs", "known", "share"),
    [(30, 6, 0.0, 0.2), (30, 6, 0.5, 0.1), (30, None, 0.25, 0.75), (4, 8, 0.0, 1.0), (4, 8, 1, 0)],
)
def test_the_teacher_runs_for_views_that_are_new_and_not_cached(
    epochs: int, view_epochs: int | None, known: float, share: float
):
    class Cache:
        path = Path("cache")

        def share_cached(self, seed: int, views: int, epochs: int) -> float:
            return known

        def open(self, seed: int, views: int) -> Any:
            return SimpleNamespace(num_bytes=lambda epochs: 1_000_000 * epochs)

    recipe = replace(find_recipe("burn_small"), epochs=epochs, view_epochs=view_epochs, stages=1)
    steps = stage_steps(recipe, 1_280)
    method: Any = SimpleNamespace(num_taught=1)
    cache: Any = Cache()
    taught, line = start.cache_line(cache, 0, method, recipe, steps)
    assert taught == pytest.approx(share)
    assert f"{min(epochs, view_epochs or epochs)} MB when complete" in line
