"""Shared by the tests: the number of threads, one tiny teacher."""

from __future__ import annotations

import gc
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
import burn.training.callbacks.monitor
import threads
import tiny
from burn.data.base import Split
from burn.data.builtin.scenes import write_digit_scenes

threads.limit()
# A process in the background ignores Ctrl-C, which tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The monitor's kNN at the end of every epoch, on 1,000 images, would take a third of the tests'
# hundreds of runs of a few steps.
burn.training.callbacks.monitor._KNN_IMAGES = 100


# Files that take a quarter of a minute or more, the longest first: they begin before the others, so
# that all processes end together.
LONG_FILES = (
    "engine/tests/test_teach_page.py", "checkpoints/foreign/test_exchange.py",
    "report/test_browser.py", "engine/tests/test_js.py", "engine/tests/test_build.py",
    "deploy/test_c_source.py", "robustness/test_bad_checkpoints.py",
    "engine/tests/test_photos_page.py", "robustness/test_bad_data.py", "robustness/test_outputs.py",
    "data/test_worker_failures.py", "robustness/test_bad_commands.py", "training/test_run.py",
    "engine/tests/test_js_learn.py", "faults/test_checkpoints.py", "campaigns/test_compare.py",
    "recipes/test_recipes.py", "cli/test_cli.py", "data/formats/test_stream.py",
    "report/test_try_it.py", "contracts/test_contracts.py", "tests/test_api.py",
    "faults/test_kill.py", "deploy/test_onnx.py", "training/test_extend.py",
    "checkpoints/foreign/test_families.py", "robustness/test_bad_values.py",
    "deploy/test_microcontroller.py", "golden/test_golden.py", "gpu/test_graphs.py",
    "gpu/test_steps.py", "deploy/test_pack.py", "deploy/test_c_learning.py",
    "evaluation/test_svm_protocol.py", "plugins/test_examples.py", "faults/test_signals.py",
    "engine/tests/test_native.py", "engine/tests/test_copies.py", "training/test_teacher_cache.py",
    "backbones/test_float.py", "finetuning/test_finetune.py", "report/test_html.py",
    "embedding/test_embed_killed.py", "embedding/test_embed_cluster.py", "faults/test_workers.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Modules and tests stay until the end: the collector need not visit them again and again.
    gc.freeze()
    place: dict[Path, int] = {}
    for file in {item.path for item in items}:
        ends = (n for n, name in enumerate(LONG_FILES) if file.as_posix().endswith(f"/{name}"))
        place[file] = next(ends, len(LONG_FILES))
    items.sort(key=lambda item: place[item.path])


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
