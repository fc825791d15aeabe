"""The pretrained networks as checkpoints, beside the packed ones of burn-engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import burn
import burn_engine
from burn.checkpoints import pretrained
from burn.checkpoints.native import find_checkpoint, load_checkpoint
from burn.checkpoints.pretrained import PRETRAINED, names_checkpoint, pretrained_file
from burn.cli.main import main
from burn.core.errors import UserError
from burn_engine.pretrained import PRETRAINED as PACKED


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_burn_and_burn_engine_come_with_the_same_networks():
    assert list(PRETRAINED) == [each.name for each in PACKED]


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_checkpoint_is_packed_to_the_file_of_burn_engine(name: str, elsewhere: Path):
    assert main(["pack", name, "again.bnn"]) == 0  # which compares features, too
    kept = next(each.path for each in PACKED if each.name == name)
    found, expected = load_file("again.bnn"), load_file(kept)
    assert found.keys() == expected.keys()
    for tensor, values in expected.items():
        np.testing.assert_array_equal(found[tensor], values, tensor)
    assert burn_engine.load("again.bnn").image == burn_engine.load(name).image


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_description_names_the_data_and_no_path(name: str):
    meta = load_checkpoint(Path(name)).meta
    assert meta["teacher"]["labels"] == "ImageNet"
    assert "/" not in meta["data"]["name"]
    assert meta["steps"] * meta["images_per_step"] > 0


@pytest.mark.parametrize("name", PRETRAINED)
def test_what_a_name_means(name: str, elsewhere: Path):
    kept = pretrained_file(name)
    assert kept is not None
    folder = elsewhere / name
    folder.mkdir()
    (folder / "photo.jpg").touch()
    assert pretrained_file(name) == kept  # a folder of photographs is no network
    (folder / "stage1.safetensors").touch()
    assert pretrained_file(name) is None  # the user's own run is
    assert find_checkpoint(Path(name)) == Path(name) / "stage1.safetensors"
    assert pretrained_file(f"./{name}") is None
    assert pretrained_file(Path(name).resolve()) is None
    assert not names_checkpoint("nothing")


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_a_broken_package_is_one_line(state: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pretrained, "_FOLDER", elsewhere)
    if state == "damaged":
        (elsewhere / "photos.safetensors").write_bytes(b"cut off")
    with pytest.raises(UserError, match=f"^photos: .* is {state}: install burn again$"):
        burn.load("photos")


def test_a_network_is_exported_to_c_by_its_name(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    assert main(["export", "photos", "firmware", "--format", "c"]) == 0
    names = sorted(path.name for path in (elsewhere / "firmware").iterdir())
    assert names == ["photos.c", "photos.h"]
    (elsewhere / "photos.bnn").write_bytes(b"broken")
    monkeypatch.setattr("burn_engine.pretrained._FOLDER", elsewhere)
    assert main(["export", "photos", "again", "--format", "c"]) == 2
    assert not (elsewhere / "again").exists()
