import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import tiny
from burn.training.plan import Machine

PROFILED = Machine(device="cpu", workers=0, monitor_every=2, profile=True)


@pytest.mark.parametrize("method", ["burn", "byol"])
def test_the_parts_of_a_step_are_timed_and_add_up(method: str, teacher: Path, tmp_path: Path):
    recipe = tiny.student_recipe() if method == "burn" else tiny.baseline_recipe(method)
    text = io.StringIO()
    (summary,) = tiny.train(
        replace(recipe, stages=1), tmp_path / "run", teacher if method == "burn" else None,
        max_steps=12, machine=PROFILED, console=Console(file=text, width=100),
    )  # fmt: skip
    numbers = json.loads((tmp_path / "run/stage1/profile.json").read_text())
    assert (numbers["batches"], numbers["images"]) == (7, 7 * 32)
    parts = numbers["seconds"]
    assert all(seconds > 0 for seconds in parts.values())
    assert sum(parts.values()) <= summary.seconds
    assert parts["backward"] > parts["heads and loss"]
    assert numbers["images_per_second"] == pytest.approx(7 * 32 / sum(parts.values()))
    for part in parts:
        assert part in text.getvalue()


def test_a_run_of_few_steps_says_so(teacher: Path, tmp_path: Path):
    text = io.StringIO()
    recipe = replace(tiny.student_recipe(), stages=1)
    console = Console(file=text, width=100)
    tiny.train(recipe, tmp_path / "run", teacher, max_steps=3, machine=PROFILED, console=console)
    assert "too few steps for a profile" in text.getvalue()
    assert not (tmp_path / "run/stage1/profile.json").exists()
