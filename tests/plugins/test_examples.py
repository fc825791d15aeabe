"""The examples of parts of one's own, used by their commands from outside the package."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import burn.campaigns.workers
import tiny
from burn import testing
from burn.checkpoints.native import load_checkpoint
from burn.cli.main import main
from burn.core.plugins import load_plugin
from burn.core.results import read_results
from warm import CONTEXT, Command

Forget = Callable[[], None]
EXAMPLES = Path(__file__).parents[2] / "examples"
METHOD, BACKBONE, PROTOCOL = (
    str(EXAMPLES / f"own_{kind}.py") for kind in ("method", "backbone", "protocol")
)
SMALLEST = ["--backbone.width", "0.25", "--backbone.depths", "[1,1,1,1,1]"]
DIGITS = ["--train", "digits", "--test", "digits"]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("teacher") / "run"
    tiny.train(tiny.teacher_recipe(), out)
    return str(out)


def small(teacher: str, out: Path, steps: int = 4) -> list[str]:
    return [
        "pretrain", "--recipe", "demo", "--batch-size", "64", "--data", "digits", "--teacher",
        teacher, "--out", str(out), "--max-steps", str(steps), "--workers", "0",
    ]  # fmt: skip


def test_they_keep_the_contracts():
    for name in (METHOD, BACKBONE, PROTOCOL):
        load_plugin(name)
    testing.check_method("relations")
    testing.check_backbone("tiny_bnn")
    testing.check_protocol("class_means")


def test_own_method(
    teacher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], forget: Forget
):
    own = [*SMALLEST, "--import", METHOD, "--method", "relations", "--relations.temperature", "0.3"]
    assert main([*small(teacher, tmp_path / "run"), *own]) == 0
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["plan"]["recipe"]["relations"] == {"temperature": 0.3}
    (plugin,) = stored["plugins"]
    assert (plugin["kind"], plugin["name"], plugin["import"]) == ("method", "relations", METHOD)
    # Its network is burn's: nothing has to be imported for it.
    forget()
    assert main(["evaluate", "knn", str(tmp_path / "run"), *DIGITS]) == 0
    assert main(["pretrain", "--resume", "--out", str(tmp_path / "run")]) == 2
    assert f"give --import {METHOD}" in capsys.readouterr().err
    assert main(["pretrain", "--import", METHOD, "--resume", "--out", str(tmp_path / "run")]) == 0
    assert main([*small(teacher, tmp_path / "x"), *own[:-1], "0"]) == 2
    assert "relations.temperature 0.0 is not in" in capsys.readouterr().err


def test_own_method_is_resumed_after_a_kill(teacher: str, tmp_path: Path):
    """With the same weights as a run that nobody stopped."""
    own = [*SMALLEST, "--import", METHOD, "--method", "relations"]
    assert main([*small(teacher, tmp_path / "whole", 14), *own]) == 0
    words = [*small(teacher, tmp_path / "cut", 14), *own, "--monitor-every", "1"]
    process = Command(words)
    table = tmp_path / "cut" / "stage1" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (table.is_file() and table.read_text().count("\n") > 3):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert f"--import {METHOD}" in said
    assert not (tmp_path / "cut" / "stage1.safetensors").exists()
    assert main(["pretrain", "--import", METHOD, "--resume", "--out", str(tmp_path / "cut")]) == 0
    whole, cut = (
        load_checkpoint(tmp_path / name / "stage1.safetensors") for name in ("whole", "cut")
    )
    for name, weights in whole.weights.items():
        assert weights.equal(cut.weights[name]), name


@pytest.mark.long
def test_own_method_beside_burn(teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In processes of their own, which import the plugin themselves."""
    command = [
        "compare", "--import", METHOD, "--methods", "burn,relations", "--data", "digits", "--test",
        "digits", "--budget", "128", "--teacher", teacher, "--out", str(tmp_path / "out"),
        "--linear.epochs", "1", "--linear.lr", "0.1", "--processes", "2",
    ]  # fmt: skip
    forked = SimpleNamespace(get_context=lambda _: CONTEXT)
    monkeypatch.setattr(burn.campaigns.workers, "multiprocessing", forked)
    assert main(command) == 0
    models = {r.model for file in (tmp_path / "out").rglob("*.jsonl") for r in read_results(file)}
    assert {"burn", "relations"} <= models
    assert "relations" in (tmp_path / "out" / "comparison.md").read_text()


def test_own_backbone(
    teacher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], forget: Forget
):
    run, own = tmp_path / "run", ["--import", BACKBONE]
    words = [*small(teacher, run), *own, "--backbone.name", "tiny_bnn", "--backbone.width", "0.5"]
    assert main([*words, "--stages", "2"]) == 0
    assert main(["evaluate", "knn", str(run), *DIGITS, *own, "--out", str(tmp_path / "e")]) == 0
    (result,) = read_results(tmp_path / "e" / "results.jsonl")
    assert result.value > 30
    assert main(["pack", str(run), str(tmp_path / "tiny.bnn"), *own]) == 0
    assert main(["export", str(run), str(tmp_path / "tiny.onnx"), *own]) == 0
    assert main(["info", str(run), *own]) == 0
    forget()
    assert main(["pack", str(run), str(tmp_path / "no.bnn")]) == 2
    said = capsys.readouterr().err
    assert f"backbone tiny_bnn of {BACKBONE}, which is not loaded: give --import" in said
    assert main([*small(teacher, tmp_path / "x"), *own, "--backbone.name", "tiny_bnn",
                 "--backbone.feature-layer", "true"]) == 2  # fmt: skip
    assert "backbone tiny_bnn has no setting feature_layer" in capsys.readouterr().err


def test_own_protocol(teacher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["evaluate", "class_means", teacher, *DIGITS, "--import", PROTOCOL]
    assert main([*command, "--normalize", "false", "--out", str(tmp_path / "out")]) == 0
    assert "class_means top-1" in " ".join(capsys.readouterr().out.split())
    (result,) = read_results(tmp_path / "out" / "results.jsonl")
    assert result.settings["normalize"] is False
    assert 20 < result.value <= 100
    assert main(["report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html")]) == 0
    assert "class_means top-1" in (tmp_path / "page.html").read_text()
