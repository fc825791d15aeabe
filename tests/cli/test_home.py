"""`~` in --out is the user's home folder, in every command that writes a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from burn.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_resumed_run_is_looked_for_at_home(home: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["pretrain", "--resume", "--out", "~/run"]) == 2
    assert f"{home / 'run'} holds no run" in capsys.readouterr().err


def test_results_are_written_at_home(home: Path, capsys: pytest.CaptureFixture[str]):
    (home / "results").touch()
    words = ["--train", "digits", "--test", "digits", "--out", "~/results"]
    assert main(["evaluate", "knn", "nothing", *words]) == 2
    assert f"{home / 'results'} is a file: give a folder" in capsys.readouterr().err
    assert not (home / "~").exists()


def test_the_demo_runs_at_home(home: Path, capsys: pytest.CaptureFixture[str]):
    (home / "file").touch()
    assert main(["demo", "--out", "~/file"]) == 2
    assert str(home / "file") in capsys.readouterr().err
