"""SIGKILL at any moment of `burn embed`, and the same command again: the same files as without."""

from __future__ import annotations

import concurrent.futures
import os
import random
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from burn.checkpoints.native import save_checkpoint
from burn.data.view_config import ViewConfig
from burn.deploy.pack import pack
from networks import randomize, shallow_reactnet
from warm import Command

COUNT, PART = 300, 20
MOMENTS = {
    "image": (concurrent.futures.ThreadPoolExecutor, "submit"),
    "row group": (pyarrow.parquet.ParquetWriter, "write_table"),
    "footer": (pyarrow.parquet.ParquetWriter, "close"),
    "to the disk": (os, "fsync"),
    "rename": (Path, "replace"),
    "renamed": (Path, "replace"),
}


def arrange(moment: str, left: int) -> None:
    """This process kills itself before or after the Nth call of a function."""
    owner, name = MOMENTS[moment]
    original = getattr(owner, name)

    def replaced(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if not left and moment != "renamed":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, replaced)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, the same network packed, and photos of which two cannot be read."""
    folder = tmp_path_factory.mktemp("killed")
    backbone = randomize(shallow_reactnet()).eval()
    meta = {
        "backbone": asdict(backbone.config), "precision": "binary", "stage": 2, "steps": 7,
        "recipe": {"name": "burn_small"}, "views": asdict(ViewConfig(size=32)),
    }  # fmt: skip
    weights = {f"backbone.{name}": tensor for name, tensor in backbone.state_dict().items()}
    save_checkpoint(folder / "n.safetensors", weights, meta)
    pack(folder / "n.safetensors", folder / "n.bnn")
    (folder / "photos").mkdir()
    generator = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = generator.integers(0, 255, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number:03}.png")
    for number in (50, 210):
        (folder / "photos" / f"{number:03}.png").write_bytes(b"no image")
    return folder


def embed(folder: Path, model: str, out: Path, moment: str = "image", at: int = 10**6) -> int:
    words = ["embed", folder / model, "--data", folder / "photos", "--out", out]
    more = ["--part-size", PART, "--device", "cpu", "--threads", 2]
    more += [] if model.endswith(".bnn") else ["--batch-size", 16]
    process = Command(list(map(str, [*words, *more])), prepare=arrange, given=(moment, at))
    process.communicate(timeout=200)
    return process.wait()


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, unfinished ones too."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else b"" for name, path in files.items()}


@pytest.mark.parametrize(
    ("model", "kills"),
    [
        ("n.bnn", 2),
        pytest.param("n.bnn", 10, marks=pytest.mark.long),
        pytest.param("n.safetensors", 3, marks=pytest.mark.long),
    ],
)
def test_killed_at_random_moments(model: str, kills: int, folder: Path, tmp_path: Path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert embed(folder, model, whole) == 0
    draws = random.Random(model)
    unfinished = 0
    for kill in range(kills):
        before = contents(cut) if cut.exists() else {}
        # Each run is killed within a part or two, so that work is left for the others.
        moment = list(MOMENTS)[kill % len(MOMENTS)]
        at = draws.randint(1, 3 if moment == "image" else 2)
        assert embed(folder, model, cut, moment, at) == -signal.SIGKILL, (kill, moment, at)
        after = contents(cut)
        unfinished += any(name.startswith(".writing.") for name in after)
        done = {name: content for name, content in before.items() if not name.startswith(".")}
        assert {name: after[name] for name in done} == done  # what is complete stays as it is
    assert unfinished  # kills did leave something behind
    assert not set(contents(whole)) <= set(contents(cut))  # and something to do
    assert embed(folder, model, cut) == 0
    assert contents(cut) == contents(whole)
    names = sorted(contents(whole))
    parts = [f"part-{number:05}.parquet" for number in range(-(-COUNT // PART))]
    bad = ["part-00002.unreadable.jsonl", "part-00010.unreadable.jsonl"]
    assert names == sorted(["embed.json", *parts, *bad])
