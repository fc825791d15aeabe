"""Features on disk: what was written is read, and nothing else is taken for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from burn.core.errors import UserError
from burn.data.feature_cache import CacheFolder, FeatureCache

ABOUT = {"teacher": {"sha256": "ab"}, "views": {"size": 32, "crop_scale": (0.2, 1.0)}}
DIMENSION = 5


def opened(path: Path, seed: int = 3, num_views: int = 2) -> FeatureCache:
    return FeatureCache(CacheFolder.make(path, ABOUT, DIMENSION, 100), seed, num_views)


def some(number: int, seed: int = 0) -> NDArray[np.float16]:
    random = np.random.default_rng(seed)
    return random.normal(size=(number, DIMENSION)).astype(np.float16)


def fill(cache: FeatureCache, epoch: int, indices: list[int]) -> list[NDArray[np.float16]]:
    """Of each view."""
    values = [some(len(indices), 10 * epoch + view) for view in range(cache.num_views)]
    for view, rows in enumerate(values):
        cache.write(epoch, view, indices, rows)
    return values


def test_what_is_written_is_read_by_another(tmp_path: Path):
    indices = [7, 0, 99]
    first, second = fill(opened(tmp_path), 4, indices)
    cache = opened(tmp_path)
    for row, index in enumerate(indices):
        found = cache.read(4, index)
        assert found is not None
        assert found.dtype == np.float16
        assert np.array_equal(found, [first[row], second[row]])
    assert all(cache.read(4, index) is None for index in range(100) if index not in indices)
    assert cache.read(5, 7) is None
    assert cache.share_cached([(4, 7), (4, 8), (5, 7), (4, 99)]) == 0.5


def test_an_image_is_known_when_all_its_views_are(tmp_path: Path):
    cache = opened(tmp_path)
    cache.write(0, 0, [1], some(1))
    assert cache.read(0, 1) is None
    assert opened(tmp_path, num_views=1).read(0, 1) is not None
    cache.write(0, 1, [1], some(1))
    assert cache.read(0, 1) is not None


def test_features_written_after_the_file_was_opened_are_seen(tmp_path: Path):
    reader, writer = opened(tmp_path), opened(tmp_path)
    fill(writer, 0, [1])
    assert reader.read(0, 2) is None
    fill(writer, 0, [2])
    assert reader.read(0, 2) is not None


def test_another_seed_has_other_files(tmp_path: Path):
    fill(opened(tmp_path, seed=3), 0, [1])
    assert opened(tmp_path, seed=4).read(0, 1) is None


def test_zeros_are_features_and_a_hole_is_none(tmp_path: Path):
    cache = opened(tmp_path)
    for view in range(2):
        cache.write(0, view, [5], np.zeros((1, DIMENSION), np.float16))
    assert np.array_equal(cache.read(0, 5), np.zeros((2, DIMENSION)))  # type: ignore[arg-type]
    assert all(cache.read(0, index) is None for index in range(5))


@pytest.mark.parametrize("place", range(4 + 2 * DIMENSION))
def test_one_wrong_byte_anywhere_makes_a_record_unknown(place: int, tmp_path: Path):
    cache = opened(tmp_path)
    fill(cache, 0, [0, 1, 2])
    file = cache.file(0, 1)
    content = bytearray(file.read_bytes())
    content[1 * (4 + 2 * DIMENSION) + place] ^= 1
    file.write_bytes(content)
    cache = opened(tmp_path)
    assert cache.read(0, 1) is None
    assert cache.read(0, 0) is not None
    assert cache.read(0, 2) is not None
    fill(cache, 0, [1])
    assert cache.read(0, 1) is not None


def test_a_file_of_another_epoch_view_or_seed_is_not_taken(tmp_path: Path):
    cache = opened(tmp_path)
    fill(cache, 0, [1])
    for target in (cache.file(1, 0), cache.file(1, 1), cache.file(0, 0)):
        target.write_bytes(cache.file(0, 1).read_bytes())
    assert opened(tmp_path).read(1, 1) is None
    assert opened(tmp_path).read(0, 1) is None


def test_a_file_cut_short_ends_what_is_known(tmp_path: Path):
    cache = opened(tmp_path)
    fill(cache, 0, [0, 1, 2])
    os.truncate(cache.file(0, 0), cache.file(0, 0).stat().st_size - 1)
    assert [cache.read(0, index) is not None for index in range(3)] == [True, True, False]


def test_a_forked_process_reads_at_its_own_place(tmp_path: Path):
    """With one file position for both, they would read each other's records, or none."""
    cache = opened(tmp_path, num_views=1)
    indices = list(range(100))
    fill(cache, 0, indices)
    assert cache.read(0, 0) is not None  # the file is open
    child = os.fork()
    good = all(cache.read(0, index) is not None for _ in range(100) for index in indices)
    if child == 0:
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert good


def test_a_folder_tells_what_is_in_it(tmp_path: Path):
    assert CacheFolder.stored_dimension(tmp_path, ABOUT) is None
    folder = CacheFolder.make(tmp_path, ABOUT, DIMENSION, 100)
    assert CacheFolder.stored_dimension(tmp_path, ABOUT) == DIMENSION
    other = {**ABOUT, "teacher": {"sha256": "cd"}}
    assert CacheFolder.stored_dimension(tmp_path, other) is None
    assert CacheFolder.make(tmp_path, other, DIMENSION, 100).path != folder.path
    about = json.loads((folder.path / "about.json").read_text())
    assert about["teacher"] == {"sha256": "ab"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON.*remove the folder"),
        ("[]", "damaged"),
        ('{"dimension": -1}', "damaged"),
        ('{"dimension": 5}', "describes other features"),
    ],
)
def test_a_description_that_is_not_its_own_is_an_error(
    content: str, message: str, tmp_path: Path
):  # fmt: skip
    folder = CacheFolder.make(tmp_path, ABOUT, DIMENSION, 100)
    (folder.path / "about.json").write_text(content)
    with pytest.raises(UserError, match=message):
        CacheFolder.stored_dimension(tmp_path, ABOUT)


def test_a_cache_that_is_a_file_is_an_error(tmp_path: Path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match=r"--teacher-cache .*cache cannot be written"):
        CacheFolder.make(tmp_path / "cache", ABOUT, DIMENSION, 100)
