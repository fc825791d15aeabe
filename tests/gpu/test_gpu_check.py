"""`make gpu-check` on a CPU: what it writes, and what it calls a failure."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from burn.core.errors import Interrupted

FILE = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture(scope="module")
def gpu_check() -> Any:
    found = importlib.util.spec_from_file_location("gpu_check", FILE)
    assert found is not None
    assert found.loader is not None
    module: Any = importlib.util.module_from_spec(found)
    sys.modules["gpu_check"] = module
    found.loader.exec_module(module)
    recipe = module.small_recipe
    module.small_recipe = lambda *given: replace(recipe(*given), backbone=tiny.STUDENT)
    return module


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


@pytest.mark.long
def test_what_it_finds_on_a_cpu(gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "found.json"
    words = ["--device=cpu", "--only=methods,stages,repeats,graphs", "--methods=burn"]
    assert gpu_check.main([*words, f"--out={out}"]) == 0
    report, printed = read(out), capsys.readouterr().out
    assert list(report["checks"]) == ["methods", "stages", "repeats", "graphs"]
    assert all(check["passed"] for check in report["checks"].values())
    methods = report["checks"]["methods"]["numbers"]
    assert list(methods) == ["burn"]
    assert set(methods["burn"]) == {"float64", "float32"}
    repeats = report["checks"]["repeats"]["numbers"]
    assert repeats["interrupted"]
    assert "need a GPU" in report["checks"]["graphs"]["numbers"]["left_out"]
    assert "As on the CPU: burn: first losses to 0.0e+00 in float64" in printed
    assert "the same bits when repeated and resumed" in printed
    assert str(out) in printed


def test_a_wrong_loss_is_a_failure_and_the_other_checks_go_on(
    gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    given = iter([[1.0, 1.0], [1.0 + 2e-6, 1.0], [1.0, 1.0], [1.0, 1.0]])
    monkeypatch.setattr(gpu_check, "losses", lambda run: next(given))
    monkeypatch.setattr(gpu_check, "first_gradients", lambda run: [1.0])
    monkeypatch.setattr(gpu_check.Bench, "train", lambda *arguments, **named: None)

    def lost(bench: Any) -> None:
        raise RuntimeError("CUDA error:\nan illegal memory access")

    monkeypatch.setitem(gpu_check.CHECKS, "stages", lost)
    monkeypatch.setitem(gpu_check.CHECKS, "devices", lambda bench: {"left_out": "one GPU"})
    out = tmp_path / "found.json"
    words = ["--device=cpu", "--only=methods,stages,devices", "--methods=simclr"]
    assert gpu_check.main([*words, f"--out={out}"]) == 1
    checks, printed = read(out)["checks"], capsys.readouterr().out
    assert checks["methods"]["error"] == "simclr in float64: not what the CPU computes"
    assert checks["methods"]["numbers"]["simclr"]["float64"]["first_loss"] > 1e-6
    assert checks["stages"]["error"] == "RuntimeError: CUDA error: an illegal memory access"
    assert checks["devices"]["passed"]
    assert "methods FAILED: simclr in float64" in printed


def test_a_loss_that_is_not_finite_is_a_failure(gpu_check: Any, monkeypatch: Any):
    monkeypatch.setattr(gpu_check, "losses", lambda run: [float("nan"), 1.0])
    monkeypatch.setattr(gpu_check, "first_gradients", lambda run: [1.0])
    monkeypatch.setattr(gpu_check.Bench, "train", lambda *arguments, **named: None)
    with pytest.raises(gpu_check.Failed, match="simclr in float64, simclr in float32"):
        gpu_check.check_methods(gpu_check.Bench("cpu", Path("nowhere"), ("simclr",)))


@pytest.mark.long
def test_the_option_of_a_gpu_as_on_one(
    gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """With the CPU in the GPU's place, and the options left out of the runs."""
    bench = gpu_check.Bench("cpu", tmp_path, ("supervised", "mocov2"))
    asked: list[dict[str, Any]] = []
    train = gpu_check.Bench.train

    def without(self: Any, *arguments: Any, **named: Any) -> None:
        given = {name: named.pop(name) for name in ("cuda_graphs",) if name in named}
        asked.append(given)
        train(self, *arguments, **named | ({"steps": 4} if "steps" in named else {}))

    monkeypatch.setattr(gpu_check.Bench, "on_gpu", True)
    monkeypatch.setattr(gpu_check.Bench, "train", without)
    graphs = gpu_check.check_graphs(bench)
    assert graphs["supervised"] == {
        "first_loss": 0, "first_gradient": 0, "later_loss": 0, "same_bits": True
    }  # fmt: skip
    assert "drawn on the CPU" in graphs["mocov2"]["left_out"]
    assert [given for given in asked if given] == [{"cuda_graphs": False}, {"cuda_graphs": True}]
    report = {"machine": gpu_check.machine_facts("cpu"), "checks": {
        "graphs": {"passed": True, "numbers": graphs},
    }}  # fmt: skip
    said = gpu_check.paragraph(report)
    assert "With --cuda-graphs as without: supervised; the same bits: supervised." in said


@pytest.mark.parametrize("stopped", [KeyboardInterrupt, Interrupted("a signal")])
def test_ctrl_c_ends_it_and_keeps_what_is_finished(
    stopped: Any, gpu_check: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    def stop(bench: Any) -> None:
        raise stopped

    monkeypatch.setitem(gpu_check.CHECKS, "methods", lambda bench: {})
    monkeypatch.setitem(gpu_check.CHECKS, "stages", stop)
    out = tmp_path / "found.json"
    assert gpu_check.main(["--device=cpu", f"--out={out}"]) == 130
    assert list(read(out)["checks"]) == ["methods"]
    assert capsys.readouterr().err == f"gpu_check: interrupted; finished checks are in {out}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only=speed"], "--only speed: give some of methods, stages, repeats"),
        (["--methods=burn,dino"], "--methods dino: give some of burn, byol"),
        (["--out=nowhere/found.json"], "nowhere/found.json cannot be written"),
        (["--device=cuda"], "cuda"),
        (["--only="], "--only : give some of methods"),
        (["--out=."], ". cannot be written: Is a directory"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, gpu_check: Any, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    import torch

    if words == ["--device=cuda"] and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    assert gpu_check.main(words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
