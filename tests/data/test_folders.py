"""What a folder holds: parts, classes, and what other programs have left in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from burn.core.errors import UserError
from burn.data.checks import remarks
from burn.data.formats.folder import Folder
from burn.data.open import open_source
from burn_engine.folders import SUFFIXES
from burn_engine.many import paths_in

PARTS = ("train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png")
CLASSES = ("cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png")


def fill(root: Path, *names: str) -> Path:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            file.mkdir()
        else:
            Image.new("RGB", (3, 3)).save(file, "PNG")
    return root


def names_of(source: Any, root: Path) -> list[str]:
    return [Path(source.describe(i)).relative_to(root).as_posix() for i in range(len(source))]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train", "val"), ("Train", "Test"), ("TRAIN", "VALID"), ("training", "testing"),
        ("Training", "validation"), ("train", "dev"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "more",
    [
        (), ("annotations/a.xml",), ("lost+found/",), ("__MACOSX/train/._1.png",),
        ("@eaDir/thumb.png",), (".Trash-1000/files/9.png",), ("labels/train/1.txt",),
        ("sample.png",), ("docs/", ".DS_Store", "Thumbs.db", "README.md"),
    ],
    ids=str,
)  # fmt: skip
def test_parts_beside_what_holds_no_images(
    train: str, test: str, more: tuple[str, ...], tmp_path: Path
):
    parts = [name.replace("train", train).replace("val", test) for name in PARTS]
    fill(tmp_path, *parts, *more)
    for split, expected in (("train", parts[:2]), ("test", parts[2:])):
        source = open_source(str(tmp_path), split)  # type: ignore[arg-type]
        assert names_of(source, tmp_path) == expected
        assert source.classes == ("cat", "dog")
        (line, *_) = remarks(source)
        assert line.startswith(f"{tmp_path} also holds {test if split == 'train' else train}")
        assert ("1 image beside them" in line) == (more == ("sample.png",))


def test_parts_in_the_folder_of_an_archive(tmp_path: Path):
    fill(tmp_path, *(f"data/images/{name}" for name in PARTS), "__MACOSX/data/._1.png")
    source = open_source(str(tmp_path))
    assert names_of(source, tmp_path) == [
        "data/images/train/cat/1.png",
        "data/images/train/dog/2.png",
    ]


def test_all_of_a_folder_with_more_than_parts_is_read_and_said(tmp_path: Path):
    fill(tmp_path, *PARTS, "extra/1.png")
    source = open_source(str(tmp_path))
    assert len(source) == 5
    assert (
        f"all of {tmp_path} is read, with extra, val: give {tmp_path}/train" in remarks(source)[0]
    )


def test_two_training_folders_are_refused(tmp_path: Path):
    fill(tmp_path, *PARTS, "Train/cat/1.png")
    with pytest.raises(UserError, match="holds Train and train: give one of them"):
        open_source(str(tmp_path))


JUNK = {
    ".ipynb_checkpoints/1-checkpoint.png": "1 folder of other programs (.ipynb_checkpoints)",
    "cat/.ipynb_checkpoints/1.png": "1 folder of other programs (.ipynb_checkpoints)",
    "@eaDir/1.png/thumb.jpg": "1 folder of other programs (@eaDir)",
    "dog/@eaDir/1.png": "1 folder of other programs (@eaDir)",
    ".Trash-1000/1.png": "1 folder of other programs (.Trash-1000)",
    ".thumbnails/1.png": "1 folder of other programs (.thumbnails)",
    "__MACOSX/cat/._1.png": "1 folder of other programs (__MACOSX)",
    "$RECYCLE.BIN/1.png": "1 folder of other programs ($RECYCLE.BIN)",
    "#recycle/1.png": "1 folder of other programs (#recycle)",
    "cat/._1.png": "1 hidden image",
    "._1.jpg": "1 hidden image",
    "Thumbs.db": "1 other file",
    "cat/desktop.ini": "1 other file",
    "stray.png": "1 image beside the class folders (stray.png)",
    "IMG.HEIC": "1 HEIC (not read: convert them to JPEG or PNG)",
    ".DS_Store": "",
}


@pytest.mark.parametrize(("name", "said"), JUNK.items())
def test_what_other_programs_leave_is_no_class_and_is_counted(name: str, said: str, tmp_path: Path):
    source = open_source(str(fill(tmp_path, *CLASSES, name)))
    assert names_of(source, tmp_path) == list(CLASSES)
    assert source.classes == ("cat", "dog")
    assert remarks(source) == ([f"skipped: {said}"] if said else [])


@pytest.mark.parametrize("name", [name for name in JUNK if name != "stray.png"])
def test_the_engine_skips_the_same(name: str, tmp_path: Path):
    fill(tmp_path, *CLASSES, name)
    lines: list[str] = []
    found = [
        Path(p).relative_to(tmp_path).as_posix() for p in paths_in([str(tmp_path)], lines.append)
    ]
    assert found == list(CLASSES)
    told = JUNK[name] if "folder" in JUNK[name] or "HEIC" in JUNK[name] else ""
    assert lines == ([f"{tmp_path}: skipped: {told}"] if told else [])


def test_a_hidden_folder_may_be_given_itself(tmp_path: Path):
    fill(tmp_path / ".photos", *CLASSES)
    assert open_source(str(tmp_path / ".photos")).classes == ("cat", "dog")


def test_links_to_folders_are_followed_in_both(tmp_path: Path):
    fill(tmp_path / "elsewhere", "1.png")
    root = fill(tmp_path / "photos", "cat/2.png")
    (root / "dog").symlink_to(tmp_path / "elsewhere")
    (root / "cat" / "back").symlink_to(root)
    source = open_source(str(root))
    assert names_of(source, root) == ["cat/2.png", "dog/1.png"]
    assert list(paths_in([str(root)])) == [source.describe(0), source.describe(1)]
    (root / "nowhere").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="nowhere is a link to nothing: fix it"):
        open_source(str(root))
    # The engine's commands name what they cannot read, and go on.
    nowhere = str(root / "nowhere")
    assert list(paths_in([str(root)])) == [nowhere, source.describe(0), source.describe(1)]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("a.png", "b.png", *CLASSES), "2 images do not lie directly in a class folder (a.png, "),
        (("cat/deep/1.png", *CLASSES), "1 image does not lie directly in a class folder (cat/"),
        (("1.png", "2.png"), ""),
    ],
)  # fmt: skip
def test_why_a_folder_has_no_labels(names: tuple[str, ...], why: str, tmp_path: Path):
    source = open_source(str(fill(tmp_path, *names)))
    assert isinstance(source, Folder)
    assert source.labels is None
    assert len(source) == len(names)
    assert source.unlabelled.startswith(why)
    assert bool(source.unlabelled) == bool(why)


def test_few_images_beside_many_are_left_out(tmp_path: Path):
    names = [f"{folder}/{i}.png" for folder in ("a", "b") for i in range(100)]
    source = open_source(str(fill(tmp_path, *names, "1.png", "2.png")))
    assert source.classes == ("a", "b")
    skipped = ["skipped: 2 images beside the class folders (1.png, 2.png)"]
    assert remarks(source) == remarks(open_source(f"{tmp_path}:rest")) == skipped


@pytest.mark.parametrize("part", ["tenth", "rest"])
def test_a_part_of_what_has_test_images_of_its_own_is_refused(part: str, tmp_path: Path):
    names = [f"train/{c}/{i}.png" for c in "ab" for i in range(3)]
    names += [f"test/{c}/0.png" for c in "ab"]
    root = fill(tmp_path, *names)
    for split in ("train", "test"):
        with pytest.raises(UserError, match="has test images of its own: give"):
            open_source(f"{root}:{part}", split)  # type: ignore[arg-type]
    assert len(open_source(f"{root}:train:{part}", "test")) == {"tenth": 2, "rest": 4}[part]


FORMS = {
    ".gif": "GIF", ".bmp": "BMP", ".webp": "WEBP", ".png": "PNG", ".apng": "PNG", ".tif": "TIFF",
    ".tiff": "TIFF", ".pbm": "PPM", ".pgm": "PPM", ".pnm": "PPM", ".ppm": "PPM",
}  # fmt: skip


def test_images_of_every_extension_are_read(tmp_path: Path):
    for number, suffix in enumerate(SUFFIXES):
        mode = {".pbm": "1", ".pgm": "L"}.get(suffix, "RGB")
        name = f"{number:02}{suffix.upper() if number % 2 else suffix}"
        Image.new(mode, (8, 8)).save(tmp_path / name, FORMS.get(suffix, "JPEG"))
    source = open_source(str(tmp_path))
    assert len(source) == len(SUFFIXES) == len(list(paths_in([str(tmp_path)])))
    for index in range(len(source)):
        assert source.read(index).shape == (3, 8, 8)
