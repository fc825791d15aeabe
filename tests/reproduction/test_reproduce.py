"""The commands of `make reproduce`: there are such commands, with such options."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from burn.cli.main import main

SCRIPT = Path(__file__).parents[2] / "reproduction/reproduce.sh"
ANALYSES = {"gradients", "negatives", "ema-toy", "schedules", "cost"}


def commands(scale: str, tmp_path: Path) -> tuple[int, list[list[str]]]:
    """Exit status of the script, and the words of each command, of which none is run."""
    burn = tmp_path / "burn"
    burn.write_text('#!/bin/sh\nfor word; do printf "%s " "$word"; done\necho\n', encoding="utf-8")
    burn.chmod(0o755)
    done = subprocess.run(
        [SCRIPT, scale],
        check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    return done.returncode, [shlex.split(line) for line in done.stdout.splitlines()]


def _shape(words: list[str]) -> tuple[str, ...]:
    """A command without its numbers, of which many differ in nothing else."""
    return tuple(re.sub(r"\d+", "0", word) for word in words)


@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_command_has_its_options(
    scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    status, found = commands(scale, tmp_path)
    assert status == 0
    assert {words[1] for words in found if words[0] == "analyze"} == ANALYSES
    assert {"compare", "ablate"} <= {words[0] for words in found}
    for words in map(list, dict.fromkeys(map(_shape, found))):
        assert f"runs/reproduction/{scale}/" in words[words.index("--out") + 1]
        named = 2 if words[0] in ("analyze", "evaluate") else 1
        assert main([*words[:named], "--help"]) == 0
        known = set(re.findall(r"^  (?:-h, )?--([\w.-]+)", capsys.readouterr().out, re.MULTILINE))
        given = {word.removeprefix("--") for word in words if word.startswith("--")}
        assert given <= known, words


def test_another_scale_is_refused(tmp_path: Path):
    assert commands("", tmp_path) == (2, [])
