"""Shared by the tests: one thread (the suite runs in parallel), one tiny teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny
from burn.data.scenes import write_digit_scenes

torch.set_num_threads(1)


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


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in VOC's layout with the built-in scenes of digits."""
    folder = tmp_path_factory.mktemp("scenes") / "digit-scenes"
    write_digit_scenes(folder)
    return folder
