"""SIGKILL at any moment, and the same command again: the same bits as without."""

from __future__ import annotations

import io
import signal
import tarfile
from pathlib import Path

import commands
import killing
import numpy as np
import pytest
import victim
from PIL import Image
from safetensors.torch import load_file

# In the order in which a run comes to them. Each process counts anew.
FEW_MOMENTS = ["resume file half written:2"]
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


@pytest.mark.parametrize("moment", [*MOMENTS, "rank 1 finds no data"])
def test_what_a_moment_waits_for_exists(moment: str, monkeypatch: pytest.MonkeyPatch):
    """`make test` comes to few of them."""
    monkeypatch.setattr(victim, "before", lambda owner, name, _: getattr(owner, name))
    monkeypatch.setenv("RANK", "1" if moment.startswith("rank 1") else "0")
    victim.arrange(moment)


@pytest.mark.parametrize(
    "moments",
    [pytest.param(FEW_MOMENTS, id="few"), pytest.param(MOMENTS, id="all", marks=pytest.mark.long)],
)
def test_killed_at_every_delicate_moment(moments: list[str], teacher: Path, tmp_path: Path):
    """One run, killed at one moment after the other."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = ("--max-steps=10", "--save-every=0")
    status, output = commands.run(commands.command(teacher, whole, *options))
    assert status == 0, output
    for moment in moments:
        status, output = commands.run(commands.command(teacher, cut, *options), die=moment)
        assert status == -signal.SIGKILL, f"{moment}: {output}"
    status, output = commands.run(commands.command(teacher, cut, *options))
    assert status == 0, output
    assert commands.same(commands.weights(whole), commands.weights(cut))
    assert not list(cut.glob("**/.writing.*"))
    assert (cut / "stage1.json").read_text()


@pytest.mark.long
def test_a_run_on_shards_goes_on_in_the_same_order(teacher: Path, tmp_path: Path):
    """Killed in the second epoch, with another number of data-loader workers afterwards."""
    shards = tmp_path / "shards"
    shards.mkdir()
    random = np.random.default_rng(0)
    for number in range(3):
        with tarfile.open(shards / f"{number}.tar", "w") as tar:
            for image in range(60):
                encoded = io.BytesIO()
                pixels = random.integers(0, 255, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(encoded, "PNG")
                member = tarfile.TarInfo(f"{image:04d}.png")
                member.size = encoded.tell()
                encoded.seek(0)
                tar.addfile(member, encoded)
    more = (f"--data=stream:{shards}", "--save-every=0", "--stages=1", "--epochs=4")
    whole, cut = (commands.command(teacher, tmp_path / name, *more) for name in ("whole", "cut"))
    status, output = commands.run(whole)
    assert status == 0, output
    status, output = commands.run(cut, die="step:4")
    assert status == -signal.SIGKILL, output
    status, output = commands.run([*cut, "--workers=2"])
    assert status == 0, output
    ends = [load_file(tmp_path / name / "stage1.safetensors") for name in ("whole", "cut")]
    assert commands.same(*ends)


@pytest.mark.long
def test_two_processes_killed_at_random(teacher: Path, tmp_path: Path):
    """The longer run of this is in docs/project/results/training.md."""
    assert killing.kill_and_compare(teacher, tmp_path, kills=2, devices=2, steps=12, seed=0)
