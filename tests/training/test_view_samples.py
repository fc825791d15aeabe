"""The picture of the views shows what training sees, and changes nothing."""

from __future__ import annotations

import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tiny
from burn.data.formats.folder import Folder
from burn.data.formats.shards import open_shards
from burn.data.loader import EpochSampler, TrainLoader, random_views
from burn.data.open import open_source
from burn.data.view_config import ViewConfig
from burn.training.records.view_samples import _GAP, _HEADER, ROWS, view_samples

SIZE, SCALE = 28, 4
STEP = SIZE * SCALE + _GAP


def tile(picture: np.ndarray, row: int, column: int, size: int = SIZE) -> np.ndarray:
    """A view as it was before it was enlarged."""
    margin = (SIZE - size) // 2 * SCALE
    top, left = _HEADER + row * STEP + margin, column * STEP + margin
    shown = picture[top : top + size * SCALE, left : left + size * SCALE]
    small = shown[::SCALE, ::SCALE]
    np.testing.assert_array_equal(shown, small.repeat(SCALE, 0).repeat(SCALE, 1))
    return small


def test_the_views_are_those_of_the_first_epoch():
    """As in training's first batch, in order of position: view by view, small crops among them."""
    source = open_source("digits")
    config = ViewConfig(size=SIZE, rand_augment=2)
    configs = [config, config, replace(config, size=12)]
    views = random_views(configs, 5)
    state, numpy_state = torch.get_rng_state(), pickle.dumps(np.random.get_state())
    picture = view_samples(source, views, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert pickle.dumps(np.random.get_state()) == numpy_state
    assert picture is not None
    assert picture.shape == (_HEADER + ROWS * STEP, 4 * STEP, 3)
    loader = TrainLoader(source, views, EpochSampler(len(source), ROWS, 5, drop_last=True), 0)
    batch = next(iter(loader))
    for row, place in enumerate(batch.indices.argsort().tolist()):
        for column, (view, size) in enumerate(zip(batch.views, (SIZE, SIZE, 12), strict=True), 1):
            expected = view[place].permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(tile(picture, row, column, size), expected)


def png(seed: int, shape: tuple[int, int] = (20, 30)) -> bytes:
    random, buffer = np.random.default_rng(seed), io.BytesIO()
    Image.fromarray(random.integers(0, 255, (*shape, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_images_that_cannot_be_read_are_passed_over(tmp_path: Path):
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(png(number) if number % 2 else b"no image")
    views = random_views([ViewConfig(size=200)] * 2, 0)
    picture = view_samples(Folder(tmp_path), views, 0)
    assert picture is not None
    assert picture.shape == (_HEADER + 3 * 116, 3 * 116, 3)  # views of 200 pixels are made smaller
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    assert view_samples(Folder(tmp_path), views, 0) is None


def test_images_in_shards_are_shown(tmp_path: Path):
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for number in range(12):
            content = png(number) if number != 3 else b"no image"
            about = tarfile.TarInfo(f"{number}.png")
            about.size = len(content)
            shard.addfile(about, io.BytesIO(content))
    picture = view_samples(open_shards(str(tmp_path)), random_views([ViewConfig(size=28)], 0), 0)
    assert picture is not None
    assert picture.shape[0] in (_HEADER + 8 * STEP, _HEADER + 7 * STEP)


@pytest.mark.parametrize("shape", [(1, 900), (2000, 3)])
def test_images_of_any_shape_are_shown_whole(tmp_path: Path, shape: tuple[int, int]):
    (tmp_path / "a.png").write_bytes(png(0, shape))
    picture = view_samples(Folder(tmp_path), random_views([ViewConfig(size=28)], 0), 0)
    assert picture is not None
    assert picture.shape == (_HEADER + STEP, 2 * STEP, 3)


def test_a_run_keeps_the_picture_for_folder_and_tensorboard(tmp_path: Path):
    recipe = tiny.teacher_recipe()
    out = tmp_path / "run"
    tiny.train(recipe, out, max_steps=1)
    before = (out / "views.jpg").read_bytes()
    with Image.open(out / "views.jpg") as picture:
        assert picture.size == (3 * (32 * 4 + _GAP), _HEADER + ROWS * (32 * 4 + _GAP))
    events = EventAccumulator(str(out / "stage1"))
    events.Reload()
    assert events.Tags()["images"] == ["views"]
    (shown,) = events.Images("views")
    assert shown.encoded_image_string == before
    assert (shown.width, shown.height) == picture.size
    tiny.train(recipe, out, max_steps=1, seed=1, overwrite=True)
    assert (out / "views.jpg").read_bytes() != before
    (out / "views.jpg").write_bytes(b"of an earlier burn")
    tiny.train(recipe, out, max_steps=1, seed=1, resume=True)
    assert (out / "views.jpg").read_bytes() == b"of an earlier burn"


def test_a_run_goes_on_without_a_picture_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("burn.training.run.save_view_samples", full)
    text = io.StringIO()
    console = tiny.Console(file=text, width=1000)
    (summary,) = tiny.train(tiny.teacher_recipe(), tmp_path / "run", max_steps=1, console=console)
    assert summary.steps == 1
    assert "views.jpg cannot be written: No space left on device" in text.getvalue()
