"""The folder of a fine-tuning: what a second call with it does, and what is never lost."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import burn.finetuning.run
from burn.cli.main import main
from burn.core.errors import UserError
from burn.core.results import Result, append_results, read_results
from burn.report.load.gather import gather
from burn.report.model import networks, verdict
from burn.runtime.signals import StopRequest

LINEAR = Result("linear", "top1", 12.5, "net", "run", "lab", "test", 0, 1.0, {})


def images(folder: Path, count: int, classes: str = "ab") -> str:
    random = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = random.integers(0, 60, (32, 32, 3)) + 60 * number
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{index}.png")
    return str(folder)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    images(tmp_path / "lab", 4)
    images(tmp_path / "test", 2)
    return tmp_path


def tune(*words: str, network: str = "small", out: str = "run", train: str = "lab") -> int:
    given = ["--train", train, "--test", "test", "--out", out, "--epochs", "2", "--workers", "0"]
    return main(["finetune", network, *given, "--lrs", "0.002", *words])


def test_a_finished_run_is_neither_tested_again_nor_lost(place: Path, capsys):
    """Not even where it is the network to begin with, or the teacher."""
    assert tune("--compute", "bfloat16") == 0
    before = {path: path.read_bytes() for path in (place / "run").rglob("*") if path.is_file()}
    first = capsys.readouterr().out
    assert tune("--resume") == 0
    assert capsys.readouterr().out == first
    assert tune("--resume", "--compute", "float32") == 2
    assert "compute was bfloat16, is float32; leave the option out" in capsys.readouterr().err
    for words, what in (({"network": "run"}, "network"), ({}, "teacher")):
        teacher = ["--teacher", "run/stage1.safetensors"] if what == "teacher" else []
        assert tune("--overwrite", *teacher, **words) == 2
        assert f"--overwrite would delete the {what} run" in capsys.readouterr().err
    assert before == {p: p.read_bytes() for p in (place / "run").rglob("*") if p.is_file()}
    # Ten steps of fine-tuning say nothing of how long the network was pretrained.
    assert verdict(networks(gather([place / "run"]))).short is None


def test_results_of_other_protocols_are_not_the_runs_test(place: Path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("burn.finetuning.tested.test", _full)
        patch.setattr("burn.finetuning.trainings._Metrics.seconds", 1000.0)
        assert tune() == 2
    (place / "run/confusion.json").write_text("{}\n")  # as of `burn evaluate linear run --out run`
    of_linear = [replace(LINEAR, metric=metric) for metric in ("top1", "top5")]
    append_results(place / "run/results.jsonl", of_linear)
    assert tune("--resume") == 0
    assert "run is finished" not in capsys.readouterr().err
    tested = read_results(place / "run/results.jsonl")[2:]
    assert [r.protocol for r in tested] == ["finetune"] * 3
    assert tested[0].seconds > 1000, "the training, too"
    (place / "run/confusion.json").unlink()  # of many classes there is none
    append_results(place / "run/results.jsonl", of_linear)
    assert tune("--resume", "--json") == 0
    shown = capsys.readouterr()
    assert "run is finished" in shown.err
    assert [json.loads(line)["protocol"] for line in shown.out.splitlines()] == ["finetune"] * 3


def test_a_resumed_run_keeps_its_number_format(place: Path, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(burn.finetuning.run, "_write", _full)
        assert tune("--compute", "bfloat16") == 2
    assert tune("--resume") == 0
    assert json.loads((place / "run/run.json").read_text())["resolved"]["compute"] == "bfloat16"
    said = capsys.readouterr().err
    assert ("goes on in bfloat16, in which it began" in said) == ("would choose float32" in said)


def _full(*_: object) -> None:
    raise UserError("the disk is full")


def test_a_diverged_network_is_not_saved(place: Path, capsys):
    assert tune("--head-lrs", "1000", "--lrs", "1000") == 2
    assert "diverged: give lower --lrs" in capsys.readouterr().err
    assert not list((place / "run").glob("*.safetensors"))


def test_two_images_of_each_class_are_enough(place: Path):
    """Of one, which is held out, and one that the linear classifier's rate is chosen on, too."""
    assert tune(train=images(place / "two", 2)) == 0


@pytest.mark.parametrize("where", ["plain_features", "test"])
def test_a_signal_stops_what_has_no_steps_at_once(where: str, place: Path, capsys, monkeypatch):
    made: list[StopRequest] = []
    make = StopRequest.__init__
    monkeypatch.setattr(
        StopRequest, "__init__", lambda self, *each: (make(self, *each), made.append(self))[0]
    )
    module = {"plain_features": "burn.finetuning.trainings", "test": "burn.finetuning.tested"}[
        where
    ]
    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.{where}", lambda *_: made[-1]._handle(signal.SIGINT, None))
        assert tune() == 130
    said = capsys.readouterr()
    assert "stopped at once; to go on from what is saved in run: burn finetune small" in said.err
    assert not (place / "run/results.jsonl").exists()
    assert tune("--resume") == 0
    assert len((place / "run/results.jsonl").read_text().splitlines()) == 3
