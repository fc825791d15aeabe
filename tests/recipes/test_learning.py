"""Every method learns: its loss falls, and its features beat random weights by kNN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

import tiny
from burn.data.digits import Digits
from burn.evaluation.subject import load_model
from burn.features import extract_features
from burn.knn import knn_accuracy
from burn.methods.registry import METHODS
from burn.recipes import find_recipe
from burn.training.metrics import read_metrics

STEPS = 66  # three epochs of digits


@pytest.fixture(scope="module")
def float_teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A teacher by SimCLR and one by labels, after a few epochs."""
    folder = tmp_path_factory.mktemp("teachers")
    recipe = replace(find_recipe("demo_teacher"), batch_size=64)
    tiny.train(recipe, folder / "simclr", max_steps=STEPS)
    labelled = replace(recipe, method="supervised")
    tiny.train(labelled, folder / "supervised", max_steps=2 * STEPS)
    return {
        "burn": folder / "simclr",
        "s2bnn": folder / "simclr",
        "supervised_kl": folder / "supervised",
    }


def knn(run: Path, *, fresh: bool) -> float:
    """Share of the held-out digits that their neighbours in the training images name."""
    _, backbone, views = load_model(str(run), fresh=fresh, seed=0)
    parts = [extract_features(backbone, Digits(split), views) for split in ("train", "test")]
    bank, queries = ((part.values, part.labels) for part in parts)
    assert bank[1] is not None
    assert queries[1] is not None
    return knn_accuracy(bank[0], bank[1], queries[0], queries[1])


@pytest.mark.parametrize("method", METHODS)
def test_the_loss_falls_and_the_features_beat_random_ones(
    method: str, float_teachers: dict[str, Path], tmp_path: Path
):
    """On the binary student in one stage, the harder way."""
    recipe = tiny.student_recipe() if method == "burn" else tiny.baseline_recipe(method)
    recipe = replace(recipe, epochs=3, stages=1)
    tiny.train(
        recipe, tmp_path / "run", float_teachers.get(method), max_steps=STEPS, monitor_every=1
    )
    rows = read_metrics(tmp_path / "run" / "stage1" / "metrics.csv")
    losses = [row["loss"] for row in rows if "loss" in row]
    # A queue of random vectors is easy to tell from keys: contrast is at its hardest when it has
    # just filled, after 4 batches.
    assert mean(losses[-5:]) < mean(losses[5:10])
    random, trained = (knn(tmp_path / "run", fresh=fresh) for fresh in (True, False))
    assert trained > random + 0.1, f"{trained:.3f} against {random:.3f}"
