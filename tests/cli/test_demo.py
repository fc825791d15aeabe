import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

import burn.campaigns.demo
import tiny
from burn.cli.main import main
from burn.core.results import read_results
from burn.deploy import measured
from burn.evaluation.configs import LinearConfig
from burn.recipes.registry import RECIPES, find_recipe


@pytest.mark.usefixtures("few_digits")
def test_demo_leaves_runs_results_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """The real demo with one epoch, tiny networks, few images; a second call keeps what is done."""
    teacher, student = tiny.teacher_recipe(), replace(tiny.student_recipe(), stages=1)
    monkeypatch.setitem(RECIPES, "demo_teacher", lambda: teacher)
    monkeypatch.setitem(RECIPES, "demo", lambda: student)
    monkeypatch.setattr(measured, "_MEASURED", 0.01)
    monkeypatch.setattr(burn.campaigns.demo, "LinearConfig", partial(LinearConfig, epochs=5))
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--device", "cpu", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len({row["model"] for row in rows}) == 3
    assert len(rows) == 9  # kNN top-1, linear top-1 and top-5
    kept = ("teacher/stage1.safetensors", "student/stage1.safetensors", "student.bnn", "demo.svg")
    for name in (*kept, "linear/confusion.json"):
        assert (out / name).is_file()
    (neighbours,) = (out / "neighbours").glob("*.json")
    for file in (out / "confusion.json", neighbours):
        assert json.loads(file.read_text())["model"] == "BURN, binary"
    *evaluated, size, _, _, _ = read_results(out / "results.jsonl")
    printed = [{k: v for k, v in asdict(r).items() if k != "right"} for r in evaluated]
    assert printed == rows
    assert all((r.right is not None) == (r.metric == "top1") for r in evaluated)
    assert (size.protocol, size.metric, size.model) == ("pack", "bytes", "BURN, binary")
    assert size.value == (out / "student.bnn").stat().st_size
    assert size.checkpoint in {result.checkpoint for result in evaluated}
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    run = json.loads((out / "packed.json").read_text())["run"]
    assert [name.split()[0] for name in run["packages"]] == ["burn-engine", "numpy"]
    assert run["images"] == 120
    assert run["same_class"] >= 118
    before = (out / "student" / "stage1.safetensors").stat().st_mtime_ns
    assert main(["demo", "--out", str(out), "--device", "cpu", "--json"]) == 0
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["value"] for row in again] == [row["value"] for row in rows]
    assert (out / "student" / "stage1.safetensors").stat().st_mtime_ns == before
    assert main(["demo", "--out", str(out), "--seed", "1"]) == 2
    assert "cannot be resumed with other settings" in capsys.readouterr().err


def test_the_demos_recipes_fit_each_other():
    teacher, student = find_recipe("demo_teacher"), find_recipe("demo")
    assert teacher.views.size == student.views.size == 32
    assert replace(teacher.views, jitter=student.views.jitter) == student.views
