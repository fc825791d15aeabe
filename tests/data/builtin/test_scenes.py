"""The built-in scenes: always the same, honest splits, true boxes, never half written."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from burn.core.errors import UserError
from burn.data.base import Split
from burn.data.builtin import scenes
from burn.data.builtin.digits import Digits
from burn.data.builtin.scenes import digit_scenes, write_digit_scenes
from burn.data.formats.voc import Voc, open_voc

SPLITS = {"train": 160, "val": 40, "trainval": 200, "test": 80}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenes") / "digit-scenes"
    start = time.process_time()
    write_digit_scenes(path)
    assert time.process_time() - start < 10, "takes about 2 s"
    return path


def opened(folder: Path, split: str) -> Voc:
    voc = open_voc(f"{folder}:{split}", "train")
    assert voc.skipped == ()
    return voc


def test_splits_and_classes(folder: Path):
    names = {}
    for split, count in SPLITS.items():
        voc = opened(folder, split)
        assert len(voc) == count
        assert voc.classes == tuple("0123456789")
        names[split] = [Path(voc.describe(i)).stem for i in range(count)]
    assert names["trainval"] == names["train"] + names["val"]
    assert not set(names["trainval"]) & set(names["test"])


@pytest.mark.parametrize("split", ["trainval", "test"])
def test_scenes_are_a_sensible_task(folder: Path, split: str):
    voc = opened(folder, split)
    boxes = np.concatenate([each.boxes for each in voc.annotations])
    labels = np.concatenate([each.labels for each in voc.annotations])
    difficult = np.concatenate([each.difficult for each in voc.annotations])
    counts = [len(each.labels) for each in voc.annotations]
    assert set(counts) == {1, 2, 3, 4, 5}
    assert np.bincount(labels, minlength=10).min() >= len(voc) // 10
    assert 0.03 < difficult.mean() < 0.25
    heights = (boxes[:, 3] - boxes[:, 1])[~difficult]
    assert heights.min() >= 20
    assert heights.max() <= 56
    assert heights.std() > 8
    assert (boxes == boxes.round()).all()
    for each in voc.annotations:
        for i, a in enumerate(each.boxes):
            for b in each.boxes[:i]:
                sides = (np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])).clip(0)
                smaller = min((a[2:] - a[:2]).prod(), (b[2:] - b[:2]).prod())
                assert sides.prod() <= 0.12 * smaller
    image = voc.read(0)
    assert image.shape == (3, 128, 160)


def test_boxes_are_where_the_digits_are(monkeypatch: pytest.MonkeyPatch):
    """On a plain background what changes lies in the boxes, and reaches their edges."""
    plain = np.full((128, 160, 3), 128, dtype=np.int64)
    monkeypatch.setattr(scenes, "_background", lambda random: plain.copy())
    for image, digits in scenes._draw("test", 40):
        changed = np.abs(image.astype(int) - 128).max(axis=2) > 12  # more than the noise
        outside = changed.copy()
        for digit in digits:
            outside[digit.top : digit.bottom, digit.left : digit.right] = False
            if digit.difficult or digit.truncated or len(digits) > 1:
                continue
            rows, columns = np.nonzero(changed)
            # strokes fade out over a few pixels
            assert rows.min() - digit.top <= 5
            assert columns.min() - digit.left <= 5
            assert digit.bottom - 1 - rows.max() <= 5
            assert digit.right - 1 - columns.max() <= 5
        assert not outside.any()


def test_test_scenes_show_held_out_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = []

    class Recorded(Digits):
        def __init__(self, split) -> None:
            asked.append(split)
            super().__init__(split)

    monkeypatch.setattr(scenes, "Digits", Recorded)
    first = next(scenes._draw("train", 1))[0]
    assert asked == ["train"]
    second = next(scenes._draw("test", 1))[0]
    assert asked == ["train", "test"]
    assert not np.array_equal(first, second)


def test_always_the_same(folder: Path):
    """Drawn again, pixels and boxes are those that were written."""
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        voc = opened(folder, split)
        for index, (image, digits) in enumerate(scenes._draw(split, 25)):
            assert np.array_equal(voc.read(index).permute(1, 2, 0).numpy(), image)
            boxes = [[digit.left, digit.top, digit.right, digit.bottom] for digit in digits]
            assert voc.annotations[index].boxes.tolist() == boxes
            assert [voc.classes[i] for i in voc.annotations[index].labels] == [
                digit.name for digit in digits
            ]


# --- Where they are kept. ---


@pytest.fixture
def quick(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Writing is copying what was written once; gives the folders written to."""
    written: list[Path] = []

    def copy(target: Path) -> None:
        written.append(target)
        shutil.copytree(folder, target)

    monkeypatch.setattr(scenes, "write_digit_scenes", copy)
    return written


def test_written_once_then_reused(
    quick: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = digit_scenes()
    assert path == tmp_path / "burn" / "digit-scenes-v1"
    assert digit_scenes() == path
    assert len(quick) == 1
    assert [file.name for file in path.parent.iterdir()] == ["digit-scenes-v1"]


def test_opened_by_name(quick: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    train, test = open_voc("digit-scenes", "train"), open_voc("digit-scenes", "test")
    assert (len(train), len(test)) == (200, 80)
    assert open_voc("digit-scenes:test", "train").fingerprint == test.fingerprint
    assert train.name == "digit-scenes:trainval"
    with pytest.raises(UserError, match=r"no split nope.*test, train, trainval, val"):
        open_voc("digit-scenes:nope", "train")


@pytest.mark.parametrize("given", ["", "relative/cache"])
def test_the_cache_of_the_home(
    given: str, quick: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert digit_scenes() == tmp_path / ".cache" / "burn" / "digit-scenes-v1"


def test_an_incomplete_folder_is_written_anew(
    quick: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = digit_scenes()
    (path / "JPEGImages" / "000003.png").unlink()
    assert digit_scenes() == path
    assert (path / "JPEGImages" / "000003.png").exists()
    shutil.rmtree(path / "ImageSets")
    digit_scenes()
    assert len(opened(path, "test")) == 80
    assert len(list(path.parent.iterdir())) == 1


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def interrupted(target: Path) -> None:
        (target / "Annotations").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(scenes, "write_digit_scenes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        digit_scenes()
    assert list((tmp_path / "burn").iterdir()) == []


def test_two_at_once(quick: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: digit_scenes(), range(4)))
    assert len(set(paths)) == 1
    assert len(opened(paths[0], "trainval")) == 200
    assert len(list(paths[0].parent.iterdir())) == 1


def test_without_a_cache_it_is_a_private_temporary_folder(
    quick: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    path = digit_scenes()
    assert path.parent.parent == temporary
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert digit_scenes() == path
    assert len(quick) == 1
    path.parent.chmod(0o777)  # now anybody could have put files there
    with pytest.raises(UserError, match="set XDG_CACHE_HOME"):
        digit_scenes()
    shutil.rmtree(path.parent)
    path.parent.symlink_to(tmp_path)
    with pytest.raises(UserError, match="set XDG_CACHE_HOME"):
        digit_scenes()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(target: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(scenes, "write_digit_scenes", full)
    with pytest.raises(UserError, match="set XDG_CACHE_HOME"):
        digit_scenes()
