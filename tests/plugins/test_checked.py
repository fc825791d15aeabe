"""Faults of plugins that would lose a network or a number are found, and said in one line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from burn.cli.main import main
from burn.training.records.metrics import read_metrics

METHOD = """
import burn
from torch import nn

@burn.register_method("mine")
class Mine(burn.Method):
    num_views = 1

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.num_features, 4)

    def parts(self):
        return {parts}

    {more}

    def forward(self, batch, progress):
        features = self.backbone(batch.views[0])
        loss = self.head(features).square().mean()
        return burn.StepOutput(loss, {terms}, features.detach())
"""
PARTS = '[burn.Part("backbone", self.backbone, True), burn.Part("head", self.head, True)]'
TERMS = '{"loss": loss.detach()}'
PROTOCOL = """
from dataclasses import dataclass

import burn

@dataclass(frozen=True)
class Config:
    scale: float = 1.0

@burn.register_protocol("mine", config=Config)
def mine(context, settings, console):
    {body}
"""


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def pretrain(folder: Path, name: str, **text: str) -> tuple[int, Path]:
    plugin = write(
        folder, f"{name}.py", METHOD.format(**{"parts": PARTS, "more": "", "terms": TERMS} | text)
    )
    out = folder / "run"
    words = ["--recipe", "demo", "--data", "digits", "--max-steps", "2", "--batch-size", "16"]
    small = ["--workers", "0", "--backbone.width", "0.125", "--monitor-every", "1"]
    return main(
        ["pretrain", "--import", plugin, "--method", "mine", *words, *small, "--out", str(out)]
    ), out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({"parts": '[burn.Part("backbone", self.backbone, True)]'}, "head.weight is in no part"),
        (
            {"parts": '[burn.Part("a", self.backbone, False), burn.Part("b", self.head, False)]'},
            "parts() trains nothing",
        ),
        ({"parts": "None"}, "parts() must return a list of burn.Part"),
        ({"more": "def weights(self): return {}"}, "weights() lacks backbone."),
    ],
    ids=["forgotten", "frozen", "none", "weights"],
)
def test_a_method_that_would_lose_something_is_refused_before_its_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: dict[str, str], said: str,
    request: pytest.FixtureRequest,
):  # fmt: skip
    status, out = pretrain(tmp_path, f"bad_{request.node.callspec.id}", **text)
    assert status == 2
    assert said in capsys.readouterr().err
    assert not list(out.glob("**/*.safetensors"))


def test_terms_of_a_method_of_its_own_are_kept(tmp_path: Path):
    """Under a name that metrics.csv has for something else, too."""
    terms = '{"loss": loss.detach(), "aux": 2 * loss.detach(), "step": 3 * loss.detach()}'
    status, out = pretrain(tmp_path, "own_terms", terms=terms)
    assert status == 0
    rows = list(csv.DictReader((out / "stage1" / "terms.csv").read_text().splitlines()))
    assert [(row["step"], row["term"]) for row in rows] == [
        ("1", "aux"), ("1", "step"), ("2", "aux"), ("2", "step")
    ]  # fmt: skip
    losses = [row["loss"] for row in read_metrics(out / "stage1" / "metrics.csv") if "loss" in row]
    assert float(rows[0]["value"]) == pytest.approx(2 * losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "must return a list of results, got a NoneType"),
        ("return []", "must return a list of results, got none"),
        ("yield 1", "must return a list of results, got a generator"),
        ("return [50.0]", "returned a float among its results"),
        ("return context.results('mine', {'top1': float('nan')}, {}, 0.0)", "its top1 is nan"),
    ],
    ids=["none", "empty", "generator", "float", "nan"],
)
def test_a_protocol_without_a_number_leaves_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, said: str,
    request: pytest.FixtureRequest, teacher: Path,
):  # fmt: skip
    plugin = write(tmp_path, f"protocol_{request.node.callspec.id}.py", PROTOCOL.format(body=body))
    words = ["evaluate", "mine", str(teacher), "--train", "digits", "--test", "digits"]
    assert main([*words, "--import", plugin, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out" / "results.jsonl").exists()


@pytest.mark.parametrize("code", ["0", "'bye'", ""])
def test_a_plugin_that_exits_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str
):
    plugin = write(tmp_path, f"exits_{len(code)}.py", f"import sys\n\nsys.exit({code})\n")
    assert main(["info", "reactnet_a", "--import", plugin]) == 2
    assert "line 3: SystemExit" in capsys.readouterr().err


def test_a_method_may_not_have_the_name_of_a_compared_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = METHOD.format(parts=PARTS, more="", terms=TERMS).replace('"mine"', '"paper"')
    assert main(["info", "reactnet_a", "--import", write(tmp_path, "paper_plugin.py", text)]) == 2
    assert "method paper is a model of burn compare" in capsys.readouterr().err


def test_the_command_that_resumes_has_what_a_configuration_said(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
):
    from burn.training import run as training

    said: list[str] = []
    monkeypatch.setattr(
        training, "train_plan", lambda *_, resume_command, **__: said.append(resume_command) or []
    )
    config = write(tmp_path, "run.yaml", "on_nonfinite: skip:3\nmax_bad: 1%\n")
    words = ["pretrain", "--recipe", "demo", "--data", "digits", "--teacher", str(teacher)]
    assert main([*words, "--config", config, "--compile", "--out", str(tmp_path / "a b")]) == 0
    options = "--on-nonfinite skip:3 --max-bad 1% --compile"
    assert said == [f"burn pretrain --resume --out '{tmp_path}/a b' {options}"]
