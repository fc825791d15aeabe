"""Every method learns: its loss falls, and its features beat random weights by kNN.

On the built-in digits and within 88 steps. Distillation, labels and SimCLR do that with the binary
student, in one stage, the harder way. Methods that follow a moving target need longer there
(docs/project/log.md), and are shown to learn with a float network.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import tiny
from burn.data.builtin.digits import Digits
from burn.evaluation.context import open_model
from burn.evaluation.features import extract_features
from burn.evaluation.knn import knn_accuracy
from burn.methods.entries import METHODS
from burn.recipes.registry import find_recipe
from burn.recipes.schema import Recipe
from burn.training.records.metrics import read_metrics

STEPS = 88  # four epochs of digits in batches of 64
MOVING_TARGETS: dict[str, dict[str, Any]] = {
    "byol": {"momentum": 0.99},
    # Sharper codes of prototypes that stay for a while, or all codes become alike.
    "swav": {
        "small_crops": 0, "queue": 0, "epsilon": 0.03, "prototypes": 64, "freeze_prototypes": 0.1,
    },
    # Keys must not change much while they are queued: 4 steps here.
    "mocov2": {"momentum": 0.99},
    "infomin": {"momentum": 0.99},
}  # fmt: skip


@pytest.fixture(scope="module")
def by_simclr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher after a few epochs."""
    folder = tmp_path_factory.mktemp("simclr")
    tiny.train(replace(find_recipe("demo_teacher"), batch_size=64), folder, max_steps=STEPS)
    return folder


@pytest.fixture(scope="module")
def by_labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher with a classifier, after a few epochs."""
    folder = tmp_path_factory.mktemp("supervised")
    recipe = replace(find_recipe("demo_teacher"), batch_size=64, method="supervised")
    tiny.train(recipe, folder, max_steps=3 * STEPS // 2)
    return folder


def recipe_of(method: str) -> Recipe:
    """What learns fast enough."""
    recipe = tiny.student_recipe() if method == "burn" else tiny.baseline_recipe(method)
    recipe = replace(recipe, epochs=4, batch_size=64, stages=1)
    if method not in MOVING_TARGETS:
        return recipe
    return replace(
        recipe.with_settings(**MOVING_TARGETS[method]),
        backbone=find_recipe("demo_teacher").backbone,
        optim=replace(recipe.optim, lr=1e-3),
    )


def knn(run: Path, *, fresh: bool) -> float:
    """Share of the held-out digits that their neighbours in the training images name."""
    model = open_model(str(run), fresh=fresh, seed=0)
    parts = [
        extract_features(model.backbone, Digits(split), model.views) for split in ("train", "test")
    ]
    bank, queries = ((part.values, part.labels) for part in parts)
    assert bank[1] is not None
    assert queries[1] is not None
    return knn_accuracy(bank[0], bank[1], queries[0], queries[1])


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_the_loss_falls_and_the_features_beat_random_ones(
    method: str, tmp_path: Path, request: pytest.FixtureRequest
):
    names = {"burn": "by_simclr", "s2bnn": "by_simclr", "supervised_kl": "by_labels"}
    teacher = request.getfixturevalue(names[method]) if method in names else None
    recipe = recipe_of(method)
    tiny.train(recipe, tmp_path / "run", teacher, max_steps=STEPS, monitor_every=1)
    rows = read_metrics(tmp_path / "run" / "stage1" / "metrics.csv")
    losses = [row["loss"] for row in rows if "loss" in row]
    # A queue of random vectors is easy to tell from keys: contrast is at its hardest when it has
    # just filled, after 4 batches.
    assert mean(losses[-5:]) < mean(losses[5:10])
    random, trained = (knn(tmp_path / "run", fresh=fresh) for fresh in (True, False))
    # Measured: 3 to 6 points above float random weights, 3 (S2-BNN) to 22 above binary ones.
    assert trained > random + 0.01, f"{trained:.3f} against {random:.3f}"
