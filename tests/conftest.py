"""Shared by the tests: the number of threads, one tiny teacher."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import burn.data.builtin.digits
import burn.data.builtin.scenes
import burn.training.callbacks.knn
import threads
import tiny
from burn.data.base import Split
from burn.data.builtin.scenes import write_digit_scenes

threads.limit()
# A process in the background ignores Ctrl-C, which tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The monitor's kNN at the end of every epoch, on 1,000 images, would take a third of the tests'
# hundreds of runs of a few steps.
burn.training.callbacks.knn._KNN_IMAGES = 100


# Files that take half a minute or more. They begin first, so that all processes end together.
LONG_FILES = (
    "training/test_run.py",
    "golden/test_golden.py",
    "campaigns/test_compare.py",
    "checkpoints/foreign/test_exchange.py",
    "plugins/test_examples.py",
    "deploy/test_pack.py",
    "training/test_teacher_cache.py",
    "evaluation/test_semi.py",
    "reproduction/test_costs.py",
    "faults/test_checkpoints.py",
    "test_build.py",
    "embedding/test_embed_killed.py",
    "embedding/test_embed_cluster.py",
    "evaluation/test_detection.py",
    "faults/test_signals.py",
    "faults/test_kill.py",
    "deploy/test_onnx.py",
    "deploy/test_c_source.py",
    "cli/test_demo.py",
    "recipes/test_recipes.py",
    "faults/test_workers.py",
    "data/test_worker_failures.py",
    "finetuning/test_finetune.py",
    "layers/test_fused.py",
    "gpu/test_steps.py",
    "gpu/test_graphs.py",
    "report/test_browser.py",
    "report/test_html.py",
    "report/test_try_it.py",
    "robustness/test_bad_checkpoints.py",
    "robustness/test_bad_commands.py",
    "robustness/test_bad_data.py",
    "robustness/test_bad_values.py",
    "robustness/test_outputs.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG_FILES))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test draws its tensors from the same state, alone or in company."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of a tiny float teacher trained for a few steps on digits."""
    out = tmp_path_factory.mktemp("teacher") / "run"
    tiny.train(tiny.teacher_recipe(), out, max_steps=8)
    return out


@pytest.fixture(scope="session")
def labelled_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of a tiny float network trained with labels for a few steps on digits."""
    out = tmp_path_factory.mktemp("labelled-teacher") / "run"
    tiny.train(replace(tiny.teacher_recipe(), method="supervised"), out, max_steps=8)
    return out


@pytest.fixture(scope="module")
def few_digits(teacher: Path, labelled_teacher: Path) -> Iterator[Callable[[Split], Any]]:
    """A third of the built-in images, in this process, where what is evaluated matters little.

    The tiny teachers come first: they are the same whichever test asks for them first.

    Yields:
        The function that returns all of them, for a test that starts other processes.
    """
    enlarged = burn.data.builtin.digits._enlarged

    def some(split: Split) -> tuple[np.ndarray, np.ndarray]:
        images, labels = enlarged(split)
        count = len(labels) // 3
        return images[:count], labels[:count]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burn.data.builtin.digits, "_enlarged", some)
        yield enlarged


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in VOC's layout with two fifths of the built-in scenes of digits."""
    folder = tmp_path_factory.mktemp("scenes") / "digit-scenes"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burn.data.builtin.scenes, "_COUNTS", {"train": 64, "val": 16, "test": 32})
        write_digit_scenes(folder)
    return folder
