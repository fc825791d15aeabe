"""Images that cannot be read, in one process and in two, and data that changes under a run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import commands
import numpy as np
import pytest
from PIL import Image

import tiny
from burn.core.errors import UserError
from burn.data.formats.folder import Folder
from burn.training.plan import Machine


def photos(folder: Path, count: int, bad: range) -> Path:
    folder.mkdir()
    random = np.random.default_rng(0)
    for i in range(count):
        pixels = random.integers(0, 255, (40, 36, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    for i in bad:
        (folder / f"{i:02d}.png").write_bytes(b"not an image")
    return folder


def test_more_bad_images_than_allowed_stop_the_run(teacher: Path, tmp_path: Path):
    data = photos(tmp_path / "photos", 40, range(10, 13))
    recipe = replace(tiny.student_recipe(), stages=1, epochs=2, batch_size=8)
    allowed = Machine(device="cpu", workers=0, monitor_every=2, max_bad="8%")
    tiny.train(recipe, tmp_path / "run", teacher, data=str(data), max_steps=10, machine=allowed)
    strict = replace(allowed, max_bad="0.05")
    with pytest.raises(
        UserError,
        match=r"stopped: unreadable images, left out: 3: .*10\.png, .*12\.png; .* 5 % of 40",
    ):
        tiny.train(recipe, tmp_path / "strict", teacher, data=str(data), max_steps=10,
                   machine=strict)  # fmt: skip
    assert not (tmp_path / "strict" / "stage1.safetensors").exists()


@pytest.mark.long
@pytest.mark.parametrize("method", ["burn", "simclr"])
def test_two_processes_with_unequal_numbers_of_bad_images(
    method: str, teacher: Path, tmp_path: Path
):
    """Some batches have none for one of the two, and a hundred bytes of noise for a name."""
    data = photos(tmp_path / "photos", 24, range(6))
    Path(data / "05.png").rename(data / "0\x1b[31m5.png")
    recipe = ["--recipe=simclr_small", "--views.size=16"]
    if method == "burn":
        recipe = ["--recipe=demo", f"--teacher={teacher}"]
    status, output = commands.run(
        ["pretrain", *recipe, f"--data={data}", f"--out={tmp_path / 'run'}", "--devices=2",
         "--batch-size=8", "--epochs=4", "--workers=0", "--device=cpu", "--compute=float32",
         "--backbone.width=0.25", "--backbone.stage-strides=[2,2,2,1]",
         "--backbone.depths=[1,1,1,1,1]", "--stages=1", "--max-bad=30%"]
    )  # fmt: skip
    assert status == 0, output
    assert "unreadable images, left out: 6: " in output
    assert "\x1b" not in output


def test_images_that_go_while_a_run_trains_are_left_out(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = photos(tmp_path / "photos", 40, range(0))
    read, count = Folder.read, [0]

    def read_and_delete(self, index):
        count[0] += 1
        if count[0] == 20:
            (data / "07.png").unlink()
            (data / "09.png").write_bytes((data / "09.png").read_bytes()[:50])
            shutil.copy(data / "01.png", data / "99.png")
        return read(self, index)

    monkeypatch.setattr(Folder, "read", read_and_delete)
    recipe = replace(tiny.student_recipe(), stages=1, epochs=3, batch_size=8)
    (summary,) = tiny.train(recipe, tmp_path / "run", teacher, data=str(data), max_steps=15)
    assert summary.steps == 15


def test_a_folder_that_changed_is_not_gone_on_with(teacher: Path, tmp_path: Path):
    data = photos(tmp_path / "photos", 40, range(0))
    recipe = replace(tiny.student_recipe(), stages=1, epochs=2, batch_size=8)
    tiny.train(recipe, tmp_path / "run", teacher, data=str(data))
    shutil.copy(data / "01.png", data / "99.png")
    with pytest.raises(
        UserError, match=r"holds other images or labels than then \(40 images then, 41 now\)"
    ):
        tiny.train(recipe, tmp_path / "run", teacher, data=str(data), resume=True)
