"""Networks that are taught alike: the script trains those of the table, by options there are."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from burn.cli.main import main
from reproduction.documents import generate, rivals_picture

ROOT = Path(__file__).parents[2]
ROWS = json.loads((ROOT / "reproduction/results/rivals.json").read_text(encoding="utf-8"))["rows"]
STUB = '#!/bin/sh\nprintf "%s " "$(basename "$0")"; for word; do printf "%s " "$word"; done; echo\n'


def test_the_script_trains_and_compares_the_networks_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("burn", "python"):
        (tmp_path / name).write_text(STUB, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [ROOT / "reproduction/rivals.sh", "out", "0", "1", "2"],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    *trained, (_, program, *words) = [shlex.split(line) for line in done.stdout.splitlines()]
    assert (ROOT / program).is_file()
    taught = dict.fromkeys(row["network"] for row in ROWS if row["network"] != "lite0")
    runs = [f"out/{name}-{seed}" for name in taught for seed in range(3)]
    assert [command[-1] for command in trained] == runs
    for name in taught:
        assert f"{name}={','.join(run for run in runs if run[4:-2] == name)}" in words
    assert main(["pretrain", "--help"]) == main(["pretrain", "--help-fields"]) == 0
    known = set(re.findall(r"^  (?:-h, )?--([\w.-]+)", capsys.readouterr().out, re.MULTILINE))
    assert words[words.index("--out") + 1] == "out/rivals.json"
    for command in trained:
        assert {w.removeprefix("--") for w in command if w.startswith("--")} <= known, command


@pytest.mark.parametrize("words", [[], ["out"]])
def test_a_folder_and_a_seed_are_asked_for(words: list[str]):
    script = ROOT / "reproduction/rivals.sh"
    done = subprocess.run([script, *words], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: reproduction/rivals.sh FOLDER SEED…\n"


def test_numbers_are_taken_without_those_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(generate, "DATA", tmp_path / "results")
    measured = {"rows": ROWS, "accuracies": {"runs/rivals/burn-0": {}}}
    (tmp_path / "rivals.json").write_text(json.dumps(measured), encoding="utf-8")
    generate.take(tmp_path)
    kept = json.loads((tmp_path / "results/rivals.json").read_text(encoding="utf-8"))
    assert kept == {"rows": ROWS}


def test_the_table_has_a_row_for_each_runtime():
    head, rule, *lines = rivals_picture.table(ROWS).splitlines()
    assert len(lines) == len(ROWS)
    assert {line.count("|") for line in (head, rule, *lines)} == {10}
    assert lines[-1].startswith("|  | 8 bits, ONNX Runtime | 3.79 MB |")
