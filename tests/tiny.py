"""Networks, recipes and runs small enough for a test."""

from __future__ import annotations

import io
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rich.console import Console
from torch import Tensor

from burn.backbones.config import BackboneConfig
from burn.campaigns.compare import recipe_of
from burn.core.types import Batch
from burn.data.open import open_source
from burn.methods.burn.settings import BurnConfig
from burn.recipes.registry import RECIPES, find_recipe
from burn.recipes.schema import Recipe
from burn.report.load.files import read_rows
from burn.runtime.signals import StopRequest
from burn.training.plan import Machine, RunPlan
from burn.training.pretraining import Pretraining
from burn.training.records.summary import StageSummary
from burn.training.run import train_plan

# One block for each of ReActNet's stages: hundreds of tests train it.
STUDENT = BackboneConfig(width=0.25, depths=(1, 1, 1, 1, 1), stage_strides=(2, 2, 2, 1))
TEACHER = BackboneConfig(name="resnet10t", width=0.125)


def some_digits(folder: Path, count: int) -> str:
    """Write the first of the built-in digits as a parquet file; returns its path."""
    source = open_source("digits")
    assert source.labels is not None
    rows = []
    for index in range(count):
        buffer = io.BytesIO()
        Image.fromarray(source.read(index).permute(1, 2, 0).numpy()).save(buffer, format="png")
        rows.append({"image": {"bytes": buffer.getvalue()}, "label": int(source.labels[index])})
    pq.write_table(pa.Table.from_pylist(rows), folder / "digits.parquet")
    return str(folder / "digits.parquet")


def rows_by(name: str, file: Path) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of a monitor's file, as reports read them, by their part or layer."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in read_rows(file, (name,)).rows:
        found.setdefault(row[name], []).append(row)
    return found


def teacher_recipe() -> Recipe:
    """A float ResNet by SimCLR, one small epoch."""
    recipe = find_recipe("demo_teacher")
    return replace(recipe, epochs=1, batch_size=32, compute="float32", backbone=TEACHER)


def student_recipe(**burn: object) -> Recipe:
    """BURN on the tiny student; keywords change its loss."""
    recipe = _old_demo()
    loss = replace(BurnConfig(num_classes=64, hidden=64), **burn)  # type: ignore[arg-type]
    return replace(
        recipe,
        epochs=1,
        batch_size=32,
        stages=2,
        compute="float32",
        backbone=STUDENT,
        settings=loss,
    )


def _old_demo() -> Recipe:
    """The demo with the views and the learning rate that the golden curves were recorded with."""
    recipe = find_recipe("demo")
    return replace(
        recipe, views=replace(recipe.views, jitter=0.6), optim=replace(recipe.optim, lr=2e-3)
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "byol": {"hidden": 128, "dimension": 64},
    "swav": {"hidden": 128, "dimension": 64, "prototypes": 32, "queue": 128},
    "mocov2": {"queue": 256},
    "infomin": {"negatives": 256},
}


def baseline_recipe(method: str) -> Recipe:
    """One of the paper's baselines on the tiny student, with queues for hundreds of images."""
    digits = _old_demo()
    name = f"{method}_small"
    # Of a method without a recipe, that of another. Not always: tests have this function in place
    # of the one by which a comparison finds recipes.
    recipe = find_recipe(name) if name in RECIPES else recipe_of(method, "small")[1]
    views = digits.views
    if method == "infomin":
        views = replace(views, rand_augment=2)
    return replace(
        recipe.with_settings(**SETTINGS.get(method, {})),
        epochs=1,
        batch_size=32,
        stages=2,
        compute="float32",
        backbone=STUDENT,
        views=views,
        optim=replace(recipe.optim, lr=2e-3),  # whatever is tuned for larger images
    )


def train(
    recipe: Recipe,
    out: Path,
    teacher: Path | str | None = None,
    *,
    data: str = "digits",
    name: str = "tiny",
    max_steps: int | None = 4,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    monitor_every: int = 2,
    machine: Machine | None = None,
    console: Console | None = None,
) -> list[StageSummary]:
    """Pretrain on the CPU without worker processes."""
    plan = RunPlan(name, recipe, data, str(teacher) if teacher else None, seed, max_steps)
    machine = machine or Machine(device="cpu", workers=0, monitor_every=monitor_every)
    console = console or Console(file=io.StringIO(), width=200)
    return train_plan(plan, out, machine, console, resume=resume, overwrite=overwrite)


def stop_at(monkeypatch: pytest.MonkeyPatch, last_call: int) -> None:
    """Ctrl-C while the loss of this micro-batch, counted from 1, is computed."""
    calls = 0
    stop: list[StopRequest] = []
    make, forward = StopRequest.__init__, Pretraining.forward

    def remember(self: StopRequest, *arguments: str) -> None:
        make(self, *arguments)
        stop.append(self)

    def counting(self: Pretraining, batch: Batch, progress: float) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == last_call:
            stop[-1]._handle(signal.SIGINT, None)
        return forward(self, batch, progress)

    monkeypatch.setattr(StopRequest, "__init__", remember)
    monkeypatch.setattr(Pretraining, "forward", counting)
