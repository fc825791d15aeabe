"""SIGKILL at any moment, and the same command again: the same bits as without."""

from __future__ import annotations

import signal
from pathlib import Path

import commands
import killing

# In the order in which a run comes to them. Each process counts anew.
MOMENTS = [
    "step:3",
    "update:2",
    "resume file half written:2",
    "between the two resume files:2",
    "evaluation",
    "stage file half written",
    "hand-over",
    "stage 2 begins",
    "step:4",
    "hand-over",
]


def test_killed_at_every_delicate_moment(teacher: Path, tmp_path: Path):
    """One run, killed at one moment after the other."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = ("--max-steps=10", "--save-every=0")
    status, output = commands.run(commands.command(teacher, whole, *options))
    assert status == 0, output
    for moment in MOMENTS:
        status, output = commands.run(commands.command(teacher, cut, *options), die=moment)
        assert status == -signal.SIGKILL, f"{moment}: {output}"
    status, output = commands.run(commands.command(teacher, cut, *options))
    assert status == 0, output
    assert commands.same(commands.weights(whole), commands.weights(cut))
    assert not list(cut.glob("**/.writing.*"))
    assert (cut / "stage1.json").read_text()


def test_two_processes_killed_at_random(teacher: Path, tmp_path: Path):
    """The longer run of this is in docs/results.md."""
    assert killing.kill_and_compare(teacher, tmp_path, kills=2, devices=2, steps=12, seed=0)
