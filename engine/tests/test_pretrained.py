"""Networks that come with the package, by name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from burn_engine import ModelError, isas, load, pretrained
from burn_engine.cli import main
from burn_engine.pretrained import PRETRAINED, Pretrained

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 96, 96, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [each.name for each in PRETRAINED])
def test_every_network_loads_and_is_the_same_on_every_instruction_set(name: str):
    expected = load(name, isa="reference").features(IMAGES)
    assert np.isfinite(expected).all()
    assert np.abs(expected[0] - expected[1]).max() > 0.01  # it looks at the images
    for isa in isas():
        found = load(name, isa=isa).features(IMAGES)
        # Only the sums of the last mean and of the first layer may round otherwise.
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_all_files_together_are_small():
    assert sum(each.path.stat().st_size for each in PRETRAINED) <= 4e6


def test_a_folder_of_that_name_is_no_network_and_a_file_is(elsewhere: Path):
    Path("photos").mkdir()
    assert load("photos").num_features == 512
    with pytest.raises(ModelError, match="not a regular file"):
        load("./photos")
    Path("photos").rmdir()
    Path("photos").write_bytes(b"mine")
    with pytest.raises(ModelError, match="photos: "):
        load("photos")


@pytest.mark.parametrize("kind", [str, Path, os.fsencode], ids=["str", "Path", "bytes"])
def test_a_name_of_any_kind(kind: type):
    if kind is os.fsencode:
        with pytest.raises(TypeError, match="not a path"):
            load(kind("photos"))
    else:
        assert load(kind("photos")).num_features == 512


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("photo", "photo: No such file or directory; did you mean the pretrained network photos?"),
        (
            "resnet50",
            "resnet50: No such file or directory, and no pretrained network of that name: ",
        ),
        ("model.bnn", "model.bnn: No such file or directory\n"),
        ("folder/photos", "folder/photos: No such file or directory\n"),
    ],
)
@pytest.mark.parametrize("command", ["info {}", "bench {}", "run {} photo.jpg"])
def test_what_is_neither_is_one_line(
    command: str, name: str, said: str, capsys: pytest.CaptureFixture[str]
):
    Path("photo.jpg").write_bytes(b"")
    assert main(command.format(name).split()) == 2
    assert capsys.readouterr().err.startswith(f"burn-engine: {said}")


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_a_broken_package_is_one_line(
    state: str,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    (there,) = (each for each in PRETRAINED if each.name == "photos")
    monkeypatch.setattr(pretrained, "_FOLDER", elsewhere)
    if state == "damaged":
        content = bytearray(
            (Path(pretrained.__file__).parent / "pretrained/photos.bnn").read_bytes()
        )
        content[-1] ^= 1
        there.path.write_bytes(content)
    assert main(["info", "photos"]) == 2
    assert capsys.readouterr().err == (
        f"burn-engine: photos: the network's file in the package is {state}: "
        "install burn-engine again\n"
    )


def test_the_list(capsys: pytest.CaptureFixture[str]):
    assert main(["--pretrained"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [each.name for each in PRETRAINED]
    assert "labels" in lines[0]  # of whoever taught it
    assert isinstance(PRETRAINED[0], Pretrained)


def test_another_file_of_the_same_network_is_it(elsewhere: Path):
    shutil.copy(PRETRAINED[0].path, "copy.bnn")
    named, copied = load(PRETRAINED[0].name), load("copy.bnn")
    np.testing.assert_array_equal(named.features(IMAGES), copied.features(IMAGES))
