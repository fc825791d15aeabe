"""The files of numbers that a run leaves."""

import csv
import io
import json
import math
import os
import shutil
import subprocess
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tiny
from burn.core.types import Batch
from burn.methods.base import StepOutput
from burn.methods.simclr.method import Simclr
from burn.report.load.gather import gather
from burn.report.page import build_page
from burn.runtime.hardware import resident_bytes, source_commit
from burn.training.plan import monitor_interval
from burn.training.pretraining import Pretraining
from burn.training.records.metrics import read_metrics


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_gradients_are_those_of_the_whole_step(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: str
):
    """Against the backward passes of both micro-batches, taken again by hand with fresh copies."""
    recipe = replace(tiny.student_recipe(lam="heaviside"), stages=1, accumulate=2, batch_size=64)
    recipe = replace(recipe, compute=compute)
    found: dict[int, dict[str, float]] = {}
    sums: dict[str, torch.Tensor] = {}
    forward, calls = Pretraining.forward, count(1)

    def by_hand(self: Pretraining, batch: Batch, progress: float) -> torch.Tensor:
        loss = forward(self, batch, progress)
        method, call = self.method, next(calls)
        reached = [(n, p) for n, p in method.named_parameters() if p.requires_grad]
        gradients = torch.autograd.grad(
            loss, [p for _, p in reached], retain_graph=True, allow_unused=True
        )
        for (name, parameter), gradient in zip(reached, gradients, strict=True):
            part = gradient if gradient is not None else torch.zeros_like(parameter)
            sums[name] = sums.get(name, 0) + part / 2
        if call % 2 == 0:
            prefixes = {"student backbone": "backbone.", "projection": "projection.",
                        "student classifier": "classifier."}  # fmt: skip
            found[call // 2] = {
                part: math.sqrt(
                    sum(
                        float(v.double().square().sum())
                        for n, v in sums.items()
                        if n.startswith(prefix)
                    )
                )
                for part, prefix in prefixes.items()
                if any(n.startswith(prefix) for n in sums)
            }
            sums.clear()
        return loss

    monkeypatch.setattr(Pretraining, "forward", by_hand)
    tiny.train(recipe, tmp_path / "run", teacher, max_steps=4)
    gradients = tiny.rows_by("part", tmp_path / "run" / "stage1" / "gradients.csv")
    assert gradients.keys() == found[2].keys()
    for part, written in gradients.items():
        assert [row["step"] for row in written] == [1, 2, 4]
        for row in written:
            # Six digits are written; float32 sums against float64
            expected = found[int(row["step"])][part]
            assert row["norm"] == pytest.approx(expected, rel=2e-5, abs=1e-12)
    # λ = 1 in the first half of Heaviside: KL does not reach the classifier yet
    assert [row["norm"] > 0 for row in gradients["student classifier"]] == [False, False, True]


def test_monitors_change_no_bit_and_count_what_happened(teacher: Path, tmp_path: Path):
    recipe = replace(tiny.student_recipe(), epochs=2, batch_size=32)
    some = tiny.some_digits(tmp_path, 32 * 6)  # six steps an epoch
    every_step, rarely = tmp_path / "every-step", tmp_path / "rarely"
    for out, every in ((every_step, 1), (rarely, 1000)):
        summaries = tiny.train(recipe, out, teacher, data=some, max_steps=8, monitor_every=every)
        assert [summary.features_collapsed_at for summary in summaries] == [None, None]
    for stage in (1, 2):
        a, b = (load_file(out / f"stage{stage}.safetensors") for out in (every_step, rarely))
        assert all(torch.equal(a[name], b[name]) for name in a)
    for out in (every_step, rarely):
        layers = tiny.rows_by("layer", out / "stage2" / "layers.csv")
        weights = {
            name.removeprefix("backbone.").removesuffix(".weight"): tensor
            for name, tensor in load_file(out / "stage2.safetensors").items()
            if name.startswith("backbone.blocks") and tensor.ndim == 4
        }
        assert layers.keys() == weights.keys()
        for name, rows in layers.items():
            assert [(row["step"], row["epoch"]) for row in rows] == [(6, 0), (8, 1)]
            assert "weight_flips" not in rows[0]
            positive = float((weights[name] >= 0).double().mean())
            assert rows[1]["weight_balance"] == pytest.approx(positive, rel=1e-5)  # six digits
            assert all(0 <= row["activation_balance"] <= 1 for row in rows)
            assert all(0 <= row["dead_channels"] <= 1 for row in rows)
        flips = sum(rows[1]["weight_flips"] * weights[n].numel() for n, rows in layers.items())
        ends = [
            row for row in read_metrics(out / "stage2" / "metrics.csv") if "weight_flips" in row
        ]
        assert [row["step"] for row in ends] == [8]
        share = flips / sum(w.numel() for w in weights.values())
        assert ends[0]["weight_flips"] == pytest.approx(share, rel=1e-4)  # sums of six digits
        assert ends[0]["memory"] > 50
    assert len(rows_of(every_step / "stage1" / "gradients.csv")) == 8 * 3
    assert {row["step"] for row in rows_of(rarely / "stage1" / "gradients.csv")} == {"1", "8"}
    events = EventAccumulator(str(every_step / "stage2"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"gradient/student_backbone", "dead_channels/blocks.0.spatial", "memory"} <= tags
    assert {f"weight_flips/{name}" for name in weights} <= tags
    assert {"weight_flips", "feature_rank"} <= tags


def test_a_short_run_is_looked_at_often_enough_for_curves(tmp_path: Path):
    """Every step by default; with an interval that is given, at it and at both ends."""
    machine = tiny.Machine(device="cpu", workers=0)
    tiny.train(tiny.teacher_recipe(), tmp_path / "short", max_steps=5, machine=machine)
    tiny.train(tiny.teacher_recipe(), tmp_path / "given", max_steps=5, monitor_every=3)
    for name, steps in (("short", [1, 2, 3, 4, 5]), ("given", [1, 3, 5])):
        folder = tmp_path / name / "stage1"
        rows = [row for row in read_metrics(folder / "metrics.csv") if "loss" in row]
        assert [row["step"] for row in rows] == steps
        gradients = tiny.rows_by("part", folder / "gradients.csv")["backbone"]
        assert [row["step"] for row in gradients] == steps
    page = build_page(gather([tmp_path / "short"]))
    assert 'id="curves"' in page
    assert "Losses over optimizer steps" in page


@pytest.mark.parametrize(
    ("steps", "every"), [(1, 1), (20, 1), (99, 1), (440, 8), (1000, 20), (250_400, 20)]
)
def test_the_interval_grows_with_the_run_up_to_the_window_of_the_alarms(steps: int, every: int):
    assert monitor_interval(None, steps) == every
    assert monitor_interval(7, steps) == 7


def test_a_float_network_has_no_rows_of_layers(tmp_path: Path):
    tiny.train(tiny.teacher_recipe(), tmp_path / "run", max_steps=2)
    assert rows_of(tmp_path / "run" / "stage1" / "layers.csv") == []
    parts = tiny.rows_by("part", tmp_path / "run" / "stage1" / "gradients.csv")
    assert parts.keys() == {"backbone", "projection head"}


def test_collapsed_features_are_called_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the log once, and in the exit summary."""
    forward = Simclr.forward

    def constant(self, batch, progress):
        output = forward(self, batch, progress)
        return StepOutput(output.loss, output.terms, torch.ones_like(output.features))

    monkeypatch.setattr(Simclr, "forward", constant)
    text = io.StringIO()
    out = tmp_path / "run"
    (summary,) = tiny.train(
        tiny.teacher_recipe(), out, max_steps=8, console=Console(file=text, width=1000)
    )
    assert (summary.features_collapsed_at, summary.collapsed_at) == (4, None)
    lines = [line for line in text.getvalue().splitlines() if "collapsed features" in line]
    assert [line.startswith("stage 1: collapsed features at step 4") for line in lines] == [
        False, True
    ]  # fmt: skip
    meta = json.loads((out / "stage1.json").read_text())
    assert meta["monitor"]["features_collapsed_at"] == 4


def test_a_stage_says_on_what_it_was_trained(tmp_path: Path):
    tiny.train(tiny.teacher_recipe(), tmp_path / "run", max_steps=2)
    machine = json.loads((tmp_path / "run" / "stage1.json").read_text())["machine"]
    assert machine.pop("processor")
    assert machine.pop("commit") == source_commit()
    assert machine.pop("burn")
    assert machine == {
        "device": "cpu",
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": 1,
        "torch": torch.__version__,
    }


def test_overwriting_a_run_removes_its_numbers(tmp_path: Path):
    recipe, out = tiny.teacher_recipe(), tmp_path / "run"
    tiny.train(recipe, out, max_steps=2)
    (out / "stage2").mkdir()
    for name in ("metrics.csv", "gradients.csv", "layers.csv"):
        shutil.copy(out / "stage1" / name, out / "stage2" / name)
    tiny.train(recipe, out, max_steps=2, overwrite=True)
    assert not (out / "stage2").exists()


def test_rows_of_an_earlier_burn_are_kept(tmp_path: Path):
    """Whose metrics.csv has fewer columns."""
    from burn.training.records.metrics import COLUMNS, StepFile

    file = tmp_path / "metrics.csv"
    file.write_text("step,epoch,loss\n10,0,1.25\n20,0,1\n30,0,9\n")
    metrics = StepFile(file, COLUMNS)
    metrics.start(20)
    metrics.append([{"step": 30, "epoch": 1, "memory": 2.0}])
    assert read_metrics(file) == [
        {"step": 10, "epoch": 0, "loss": 1.25},
        {"step": 20, "epoch": 0, "loss": 1},
        {"step": 30, "epoch": 1, "memory": 2},
    ]


def test_resident_memory_is_that_of_a_process_with_torch():
    assert 5e7 < resident_bytes() < 1e11


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", *author, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_of_burns_own_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "src" / "burn"
    package.mkdir(parents=True)
    (package / "a.py").write_text("1\n")
    assert source_commit(package) is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "somebody-elses"\n')
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    assert source_commit(package) is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "burn-ssl"\n')
    short = git(tmp_path, "rev-parse", "HEAD")[:7]
    assert source_commit(package) == short  # the change is not in src/
    monkeypatch.setenv("GIT_DIR", "/somewhere/else")
    (package / "b.py").write_text("2\n")
    assert source_commit(package) == f"{short}+"
    monkeypatch.setenv("PATH", "")
    assert source_commit(package) is None


@pytest.mark.parametrize("text", ["", "[project", "project = 1", '[project]\nname = "other"\n'])
def test_a_folder_above_an_installed_package_is_not_asked(tmp_path: Path, text: str):
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / ".git").mkdir()
    assert source_commit(tmp_path / "src" / "burn") is None
