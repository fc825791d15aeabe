"""What `burn pack --results DIR` adds to DIR/results.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import save

from burn.cli.main import main
from burn.core.results import read_results
from burn.core.types import Precision
from burn.deploy import measured
from burn.evaluation.context import open_model
from burn.runtime.hardware import processor
from networks import randomize, shallow_reactnet


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(measured, "_WARM_UP", 0.0)
    monkeypatch.setattr(measured, "_MEASURED", 0.01)
    return save(tmp_path / "n.safetensors", randomize(shallow_reactnet()).eval(), size=32)


def test_results_are_the_files(checkpoint: Path, tmp_path: Path, capsys):
    file, out = tmp_path / "n.bnn", tmp_path / "evaluated"
    assert main(["pack", str(checkpoint), str(file), "--results", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    results = read_results(out / "results.jsonl")
    numbers = {result.metric: result.value for result in results}
    assert list(numbers) == ["bytes", "float32_bytes", "cosine", "milliseconds"]
    assert numbers["bytes"] == file.stat().st_size
    assert {name: said[name] for name in numbers} == numbers
    assert 0 < numbers["milliseconds"] < 1000
    for result in results:
        assert (result.protocol, result.train, result.test) == ("pack", "", "")
        assert result.checkpoint == str(checkpoint)
        # as evaluation calls it, so that one table can show both
        assert result.model == open_model(str(checkpoint), fresh=False, seed=0).name
        settings = result.settings
        assert (settings["threads"], settings["image_size"]) == (1, 32)
        assert settings["processor"] == processor()
        assert settings["isa"]


def test_they_join_those_of_earlier_commands(checkpoint: Path, tmp_path: Path, capsys):
    for name in ("a", "b"):
        file = tmp_path / f"{name}.bnn"
        assert main(["pack", str(checkpoint), str(file), "--results", str(tmp_path)]) == 0
        assert "ms an image here on one thread, added to" in capsys.readouterr().out
    assert len(read_results(tmp_path / "results.jsonl")) == 8


def test_the_reference_does_as_well(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")
    file = tmp_path / "n.bnn"
    assert main(["pack", str(checkpoint), str(file), "--results", str(tmp_path)]) == 0
    assert read_results(tmp_path / "results.jsonl")[0].settings["isa"] == "reference"


def test_a_file_without_a_size_is_measured_at_224(checkpoint: Path, tmp_path: Path):
    large = save(tmp_path / "large.safetensors", randomize(shallow_reactnet()).eval(), size=4096)
    out = tmp_path / "evaluated"
    assert main(["pack", str(large), str(tmp_path / "n.bnn"), "--results", str(out)]) == 0
    assert read_results(out / "results.jsonl")[0].settings["image_size"] == 224


def test_without_the_option_nothing_is_added(checkpoint: Path, tmp_path: Path, capsys):
    before = {*tmp_path.iterdir(), tmp_path / "n.bnn"}
    assert main(["pack", str(checkpoint), str(tmp_path / "n.bnn"), "--json"]) == 0
    assert "milliseconds" not in json.loads(capsys.readouterr().out)
    assert set(tmp_path.iterdir()) == before


def test_what_cannot_be_packed_or_written_leaves_nothing(checkpoint: Path, tmp_path: Path, capsys):
    backbone = randomize(shallow_reactnet(Precision.BINARY_ACTIVATIONS)).eval()
    first = save(tmp_path / "first.safetensors", backbone)
    out, file = tmp_path / "evaluated", tmp_path / "n.bnn"
    assert main(["pack", str(first), str(file), "--results", str(out)]) == 2
    assert not (out / "results.jsonl").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "results.jsonl").mkdir()
    assert main(["pack", str(checkpoint), str(file), "--results", str(tmp_path / "taken")]) == 2
    assert "results.jsonl cannot be written" in capsys.readouterr().err
    assert not file.exists()
