"""Sources: what each layout gives, what each image format decodes to, and what is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import EpsImagePlugin, Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from burn.core.errors import UserError
from burn.data.base import Source
from burn.data.builtin.digits import Digits
from burn.data.checks import require_readable
from burn.data.decode import UnreadableImage
from burn.data.formats.cifar import Cifar
from burn.data.formats.folder import Folder
from burn.data.formats.parquet import Parquet
from burn.data.open import open_source
from burn_engine.folders import skipped_files


def picture(seed: int = 0, height: int = 9, width: int = 7) -> np.ndarray:
    """Random colours, uint8 (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(array: np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, form, **options)
    return buffer.getvalue()


def put(file: Path, content: bytes | None = None, seed: int = 0) -> Path:
    """A small PNG, or `content`, at `file`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded(picture(seed)) if content is None else content)
    return file


def array_of(source: Source, index: int) -> np.ndarray:
    """An image as (height, width, 3), after a look at its form."""
    image = source.read(index)
    assert image.dtype == torch.uint8
    assert image.shape[0] == 3
    return image.permute(1, 2, 0).numpy()


def refused(spec: Path, *words: str) -> None:
    """One line that names what was given."""
    with pytest.raises(UserError) as caught:
        open_source(str(spec))
    message = str(caught.value)
    assert str(spec) in message
    assert "\n" not in message
    for word in words:
        assert word in message


# --- Folders. ---


def test_images_at_any_depth_have_no_labels(tmp_path: Path):
    names = ("b.png", "one/a.PNG", "one/two/three/c.png")
    for seed, name in enumerate(names):
        put(tmp_path / name, seed=seed)
    for other in ("notes.txt", "one/.hidden.png", "one/a.npy"):
        put(tmp_path / other, b"")
    source = open_source(str(tmp_path))
    assert isinstance(source, Folder)
    assert len(source) == 3
    assert [source.describe(i) for i in range(3)] == [str(tmp_path / name) for name in names]
    assert source.labels is None
    assert source.classes == ()
    for i in range(3):
        assert np.array_equal(array_of(source, i), picture(i))


def test_class_folders_have_labels_in_the_order_of_names(tmp_path: Path):
    for name in ("dog/2.png", "dog/1.png", "cat/9.png", "eel/0.png"):
        put(tmp_path / name)
    source = open_source(str(tmp_path))
    assert source.classes == ("cat", "dog", "eel")
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    found = {
        Path(source.describe(i)).relative_to(tmp_path).as_posix(): int(source.labels[i])
        for i in range(len(source))
    }
    assert found == {"cat/9.png": 0, "dog/1.png": 1, "dog/2.png": 1, "eel/0.png": 2}


@pytest.mark.parametrize(
    "names",
    [
        ("cat/1.png", "cat/2.png"),
        ("cat/1.png", "dog/1.png", "loose.png", "another.png"),
        ("cat/1.png", "dog/deep/1.png"),
    ],
    ids=["one folder", "loose images", "unequal depth"],
)
def test_other_folders_are_no_classes(names: tuple[str, ...], tmp_path: Path):
    for name in names:
        put(tmp_path / name)
    source = open_source(str(tmp_path))
    assert len(source) == len(names)
    assert source.labels is None
    assert source.classes == ()


PARTS = ("train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png")


@pytest.mark.parametrize("held_out", ["test", "val", "valid", "validation"])
def test_a_folder_that_names_its_parts_is_split(held_out: str, tmp_path: Path):
    for name in (*PARTS, ".cache/5.png", "notes.txt"):
        put(tmp_path / name.replace("val/", f"{held_out}/"))
    train, test = open_source(str(tmp_path)), open_source(str(tmp_path), "test")
    assert train.classes == test.classes == ("cat", "dog")
    assert train.name == str(tmp_path / "train")
    assert [test.describe(i) for i in range(len(test))] == [
        str(tmp_path / held_out / "cat" / "3.png"),
        str(tmp_path / held_out / "dog" / "4.png"),
    ]
    by_hand = open_source(f"{tmp_path}:test")
    assert by_hand.fingerprint == test.fingerprint != train.fingerprint


def test_a_folder_with_test_and_val_is_tested_on_test(tmp_path: Path):
    for name in (*PARTS, "test/cat/5.png"):
        put(tmp_path / name)
    assert open_source(str(tmp_path), "test").name == str(tmp_path / "test")


def test_unlabelled_parts_are_split_and_are_no_classes(tmp_path: Path):
    for name in ("train/1.png", "train/2.png", "val/3.png"):
        put(tmp_path / name)
    for split, count in (("train", 2), ("test", 1)):
        source = open_source(str(tmp_path), split)  # type: ignore[arg-type]
        assert len(source) == count
        assert source.labels is None


@pytest.mark.parametrize(
    "names",
    [
        (*PARTS, "extra/cat/1.png"),
        (*PARTS, "loose.png", "another.png"),
        ("train/cat/1.png", "train/dog/2.png"),
        ("val/cat/1.png", "test/dog/2.png"),
        ("trains/cat/1.png", "values/dog/2.png"),
    ],
    ids=["another subfolder", "loose images", "train alone", "no train", "other words"],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_folders_that_might_mean_something_else_are_not_split(
    names: tuple[str, ...], split: Any, tmp_path: Path
):
    for name in names:
        put(tmp_path / name)
    source = open_source(str(tmp_path), split)
    assert source.name == str(tmp_path)
    assert len(source) == len(names)


def test_parts_that_hold_parquet_are_split(tmp_path: Path):
    for part, seeds in (("train", (0, 1)), ("test", (2,))):
        (tmp_path / part).mkdir()
        images = COLUMNS["struct"]([encoded(picture(i)) for i in seeds])
        write_parquet(tmp_path / part / "0000.parquet", images, pa.array(seeds))
    test = open_source(str(tmp_path), "test")
    assert test.name == str(tmp_path / "test")
    assert len(test) == 1
    assert len(open_source(str(tmp_path))) == 2


def test_a_pipe_in_the_place_of_an_image_is_not_waited_for(tmp_path: Path):
    file = put(tmp_path / "a.png")
    source = open_source(str(tmp_path))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UnreadableImage, match=r"a\.png is not a regular file"):
        source.read(0)


def test_a_dangling_link_is_an_unreadable_image(tmp_path: Path):
    put(tmp_path / "good.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "gone.png")
    source = open_source(str(tmp_path))
    for index in range(len(source)):
        if source.describe(index).endswith("good.png"):
            source.read(index)
        else:
            with pytest.raises(UnreadableImage, match=r"link\.png"):
                source.read(index)


def test_a_file_that_vanishes_is_an_unreadable_image(tmp_path: Path):
    file = put(tmp_path / "a.png")
    source = open_source(str(tmp_path))
    file.unlink()
    with pytest.raises(UnreadableImage, match=str(file)):
        source.read(0)


def test_what_holds_no_images_is_refused(tmp_path: Path):
    refused(tmp_path / "nowhere", "no data at")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "holds no image")
    refused(put(tmp_path / "notes.md", b"a.png\n"), "neither a folder, a .parquet file nor a list")
    put(empty / "list.txt", b"a.png\n")
    refused(empty, "holds no image")


# --- Formats. ---


def decoded(tmp_path: Path, content: bytes, suffix: str) -> np.ndarray:
    put(tmp_path / f"a{suffix}", content)
    return array_of(open_source(str(tmp_path)), 0)


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_lossless_formats_are_exact(suffix: str, tmp_path: Path):
    content = encoded(picture(), suffix[1:].upper(), lossless=True)
    assert np.array_equal(decoded(tmp_path, content, suffix), picture())


ORIENTED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: a.transpose(1, 0, 2)[::-1],
}


@pytest.mark.parametrize("orientation", ORIENTED)
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_exif_orientation_is_applied(orientation: int, suffix: str, tmp_path: Path):
    blocks = np.zeros((16, 32, 3), dtype=np.uint8)
    for i, colour in enumerate([(250, 10, 10), (10, 250, 10), (10, 10, 250), (240, 240, 240)]):
        row, column = divmod(i, 2)
        blocks[8 * row : 8 * row + 8, 16 * column : 16 * column + 16] = colour
    exif = Image.Exif()
    exif[0x0112] = orientation
    form = {".png": "PNG", ".jpg": "JPEG"}[suffix]
    options = {"quality": 100, "subsampling": 0} if suffix == ".jpg" else {}
    found = decoded(tmp_path, encoded(blocks, form, exif=exif.tobytes(), **options), suffix)
    expected = ORIENTED[orientation](blocks)
    assert found.shape == expected.shape
    # Blocks fill whole 8×8 blocks of JPEG, so only its rounding in YCbCr remains.
    assert np.abs(found.astype(int) - expected).max() <= (0 if suffix == ".png" else 3)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_grey_images_get_three_equal_channels(suffix: str, tmp_path: Path):
    grey = np.full((8, 16), 77, dtype=np.uint8)
    found = decoded(tmp_path, encoded(grey, {".png": "PNG", ".jpg": "JPEG"}[suffix]), suffix)
    assert found.shape == (8, 16, 3)
    assert np.abs(found.astype(int) - 77).max() <= 1  # JPEG's rounding of a constant block
    assert (found == found[..., :1]).all()


def test_16_bit_grey_keeps_the_high_byte(tmp_path: Path):
    deep = np.random.default_rng(0).integers(0, 65536, (9, 7)).astype(np.uint16)
    found = decoded(tmp_path, encoded(deep), ".png")
    assert np.array_equal(found, np.repeat((deep >> 8).astype(np.uint8)[..., None], 3, axis=2))


def test_16_bit_colour_keeps_the_high_byte(tmp_path: Path):
    deep = np.random.default_rng(0).integers(0, 65536, (9, 7, 3)).astype(np.uint16)
    written, content = cv2.imencode(".png", deep[..., ::-1])
    assert written
    assert np.array_equal(
        decoded(tmp_path, content.tobytes(), ".png"), (deep >> 8).astype(np.uint8)
    )


def test_transparent_pixels_lie_over_white(tmp_path: Path):
    alpha = np.random.default_rng(1).integers(0, 256, (9, 7, 1), dtype=np.uint8)
    content = encoded(np.concatenate([picture(), alpha], axis=2))
    over_white = (picture() * (alpha / 255) + 255 * (1 - alpha / 255)).round()
    found = decoded(tmp_path, content, ".png").astype(float)
    assert np.abs(found - over_white).max() <= 1  # rounded in integers


def test_palettes_are_looked_up(tmp_path: Path):
    chosen = np.random.default_rng(2).integers(0, 3, (9, 7), dtype=np.uint8)
    colours = np.array([(1, 2, 3), (200, 100, 0), (9, 255, 99)], dtype=np.uint8)
    image = Image.fromarray(chosen, mode=None).copy()
    image.putpalette(colours.tobytes())
    assert image.mode == "P"
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    assert np.array_equal(decoded(tmp_path, buffer.getvalue(), ".png"), colours[chosen])


def test_cmyk_jpeg(tmp_path: Path):
    """Ink: (0, M, Y, 0) at full strength is red; a K of a half is grey."""
    ink = np.zeros((16, 32, 4), dtype=np.uint8)
    ink[:, :16] = (0, 255, 255, 0)
    ink[:, 16:] = (0, 0, 0, 128)
    buffer = io.BytesIO()
    Image.frombytes("CMYK", (32, 16), ink.tobytes()).save(buffer, "JPEG", quality=100)
    found = decoded(tmp_path, buffer.getvalue(), ".jpg").astype(int)
    # JPEG's rounding, away from the edge between the two colours.
    assert np.abs(found[:, :8] - (255, 0, 0)).max() <= 4
    assert np.abs(found[:, 24:] - 127).max() <= 4


def test_tiff_and_bmp_are_images_and_other_files_are_counted_by_extension(tmp_path: Path):
    for name, form in (("a.tif", "TIFF"), ("b.TIFF", "TIFF"), ("c.bmp", "BMP"), ("d.png", "PNG")):
        put(tmp_path / name, encoded(picture(), form))
    for name in ("e.HEIC", "f.heic", "g.avif", "notes.txt", "LICENSE", ".hidden.heic"):
        (tmp_path / name).write_bytes(b"something else")
    folder = Folder(tmp_path)
    assert len(folder) == 4
    for index in range(4):
        np.testing.assert_array_equal(array_of(folder, index), picture())
    assert folder.skipped == {".heic": 2, ".avif": 1, ".txt": 1, "": 1}
    assert skipped_files(folder.skipped) == (
        "2 HEIC, 1 AVIF (not read: convert them to JPEG or PNG), 2 other files"
    )
    assert skipped_files({".txt": 1}) == "1 other file"
    assert skipped_files({}) == ""


def test_a_folder_of_photographs_in_formats_that_are_not_read_says_so(tmp_path: Path):
    for name in ("a.heic", "b.heic", "notes.txt"):
        (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(UserError, match=r"holds no image .*, but 2 HEIC \(not read: convert them"):
        Folder(tmp_path)


def test_gif_and_the_first_frame_of_a_film(tmp_path: Path):
    frames = []
    for level in (50, 200):
        frames.append(Image.fromarray(np.full((9, 7, 3), level, dtype=np.uint8)).quantize())
    for name, count in (("still", 1), ("film", 2)):
        buffer = io.BytesIO()
        frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:count])
        found = decoded(tmp_path / name, buffer.getvalue(), ".gif")
        assert np.array_equal(found, np.full((9, 7, 3), 50))


@pytest.mark.parametrize("form", ["BMP", "TIFF", "PPM"])
def test_other_lossless_formats_whatever_the_suffix(form: str, tmp_path: Path):
    assert np.array_equal(decoded(tmp_path, encoded(picture(), form), ".png"), picture())


def test_a_phones_jpeg_with_a_second_picture(tmp_path: Path):
    """It opens as MPO; the first picture is taken."""
    first, second = (Image.fromarray(np.full((9, 7, 3), v, dtype=np.uint8)) for v in (50, 200))
    buffer = io.BytesIO()
    first.save(buffer, "MPO", save_all=True, append_images=[second])
    assert Image.open(buffer).format == "MPO"
    assert np.array_equal(decoded(tmp_path, buffer.getvalue(), ".jpg"), np.full((9, 7, 3), 50))


@pytest.mark.parametrize(
    ("form", "end"), [("EPS", ""), ("PDF", " but a PDF document"), ("ICO", ""), ("TGA", "")]
)
def test_other_formats_are_unreadable_and_start_no_program(
    form: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Pillow has Ghostscript draw an EPS."""
    started = []

    def start(command: Any, *_: Any, **__: Any) -> None:
        started.append(command)
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    with pytest.raises(UnreadableImage, match=rf"a\.jpg: not JPEG, PNG, .* or TIFF{end}$"):
        decoded(tmp_path, encoded(picture(), form), ".jpg")
    assert started == []


FORMATS = {
    ".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP", ".gif": "GIF", ".tif": "TIFF", ".bmp": "BMP",
}  # fmt: skip


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("damage", ["empty", "text", "first bytes", "half"])
def test_a_corrupt_image_is_unreadable_and_named(suffix: str, damage: str, tmp_path: Path):
    whole = encoded(picture(0, 64, 64), FORMATS[suffix])
    content = {
        "empty": b"",
        "text": b"<html>404</html>",
        "first bytes": whole[:12],
        "half": whole[: len(whole) // 2],
    }[damage]
    file = put(tmp_path / f"a{suffix}", content)
    with pytest.raises(UnreadableImage) as caught:
        open_source(str(tmp_path)).read(0)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", FORMATS)
def test_whatever_the_damage_it_is_an_image_or_unreadable(suffix: str, tmp_path: Path):
    random = np.random.default_rng(5)
    whole = encoded(picture(0, 24, 24), FORMATS[suffix])
    file = put(tmp_path / f"a{suffix}", whole)
    source = open_source(str(tmp_path))
    outcomes = set()
    for _ in range(150):
        broken = bytearray(whole)
        for position in random.integers(0, min(len(broken), 200), 3):
            broken[position] = random.integers(0, 256)
        file.write_bytes(broken[: random.integers(len(whole) // 2, len(whole) + 1)])
        try:
            assert array_of(source, 0).size > 0
            outcomes.add("image")
        except UnreadableImage:
            outcomes.add("unreadable")
    assert "unreadable" in outcomes


def test_require_readable(tmp_path: Path):
    bad, good = put(tmp_path / "a.png", b"none"), tmp_path / "b.png"
    with pytest.raises(UserError, match="none of its 1 images"):
        require_readable(open_source(str(tmp_path)))
    put(good)
    require_readable(open_source(str(tmp_path)))
    assert bad.exists()


# --- Parquet. ---


def struct_column(images: list[bytes | None], kind: pa.DataType) -> pa.Array:
    fields = pa.struct([("bytes", kind), ("path", pa.string())])
    rows = [None if image is None else {"bytes": image, "path": "x.png"} for image in images]
    return pa.array(rows, fields)


COLUMNS: dict[str, Callable[[list[bytes | None]], pa.Array]] = {
    "struct": lambda images: struct_column(images, pa.binary()),
    "struct of large binary": lambda images: struct_column(images, pa.large_binary()),
    "binary": lambda images: pa.array(images, pa.binary()),
    "large binary": lambda images: pa.array(images, pa.large_binary()),
    "view": lambda images: pa.array(images, pa.binary_view()),
    "dictionary": lambda images: pa.array(images, pa.binary()).dictionary_encode(),
}


def write_parquet(file: Path, images: Any, labels: Any = None, **others: Any) -> Path:
    columns = {"image": images, **({} if labels is None else {"label": labels}), **others}
    pq.write_table(pa.table(columns), file, row_group_size=2)
    return file


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("labelled", [True, False])
def test_parquet_columns(column: str, labelled: bool, tmp_path: Path):
    images = COLUMNS[column]([encoded(picture(i)) for i in range(5)])
    labels = pa.array([2, 0, 1, 2, 0], pa.int32()) if labelled else None
    file = write_parquet(tmp_path / "a.parquet", images, labels, other=pa.array(range(5)))
    source = open_source(str(file))
    assert isinstance(source, Parquet)
    assert len(source) == 5
    for i in range(5):
        assert np.array_equal(array_of(source, i), picture(i))
    if labelled:
        assert source.labels is not None
        assert source.labels.tolist() == [2, 0, 1, 2, 0]
        assert source.labels.dtype == np.int64
        assert source.classes == ("0", "1", "2")
    else:
        assert source.labels is None
        assert source.classes == ()


def test_shards_in_the_order_of_names(tmp_path: Path):
    for name, seeds in (("b", (2, 3)), ("a", (0, 1)), ("c", (4,))):
        images = COLUMNS["struct"]([encoded(picture(i)) for i in seeds])
        write_parquet(tmp_path / f"{name}.parquet", images, pa.array(seeds))
    source = open_source(str(tmp_path))
    assert source.labels is not None
    assert source.labels.tolist() == [0, 1, 2, 3, 4]
    for i in range(5):
        assert np.array_equal(array_of(source, i), picture(i))


@pytest.mark.parametrize("column", COLUMNS)
def test_rows_without_an_image_are_unreadable(column: str, tmp_path: Path):
    images = COLUMNS[column]([encoded(picture()), None, b"", b"noise"])
    source = open_source(str(write_parquet(tmp_path / "a.parquet", images)))
    assert np.array_equal(array_of(source, 0), picture())
    for row in (1, 2, 3):
        with pytest.raises(UnreadableImage, match=f"a.parquet row {row}"):
            source.read(row)


def test_parquet_files_that_are_refused(tmp_path: Path):
    file = tmp_path / "a.parquet"
    refused(put(file, b"image,label\nx,1\n"), "not a readable parquet file")
    refused(put(file, b""), "not a readable parquet file")
    one = COLUMNS["struct"]([encoded(picture())])
    pq.write_table(pa.table({"picture": one, "label": [1]}), file)
    refused(file, "no column image", "picture, label")
    refused(write_parquet(file, pa.array([3])), "int64")
    refused(write_parquet(file, pa.array(["x.png"])), "string")
    refused(write_parquet(file, pa.array([{"path": "x.png"}])), "bytes")
    refused(write_parquet(file, one[:0]), "no rows")


def test_a_truncated_parquet_file_is_refused(tmp_path: Path):
    images = COLUMNS["binary"]([encoded(picture(i)) for i in range(9)])
    file = write_parquet(tmp_path / "a.parquet", images)
    whole = file.read_bytes()
    for length in (3, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        refused(file, "not a readable parquet file")


def test_shards_that_do_not_match_are_refused(tmp_path: Path):
    images = COLUMNS["binary"]([encoded(picture())])
    write_parquet(tmp_path / "a.parquet", images, pa.array([1]))
    write_parquet(tmp_path / "b.parquet", images)
    refused(tmp_path, "label")


def hugging_face(file: Path, columns: dict[str, Any], features: Any) -> Path:
    """A parquet file with a description such as the library datasets writes."""
    described = json.dumps({"info": {"features": features}})
    table = pa.table(columns).replace_schema_metadata({"huggingface": described})
    file.parent.mkdir(exist_ok=True)
    pq.write_table(table, file)
    return file


def class_label(*names: Any) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


IMAGE = {"_type": "Image"}


def test_hugging_faces_cifar100_is_split_and_its_fine_labels_are_named(tmp_path: Path):
    features = {
        "img": IMAGE,
        "fine_label": class_label("apple", "bear", "cup"),
        "coarse_label": class_label("living", "thing"),
    }
    shards = {"train-00000-of-00002": (0, 2), "train-00001-of-00002": (1,)}
    for name, fine in {**shards, "test-00000-of-00001": (2, 0)}.items():
        columns = {
            "img": COLUMNS["struct"]([encoded(picture(i)) for i in fine]),
            "fine_label": pa.array(fine, pa.int64()),
            "coarse_label": pa.array([1] * len(fine), pa.int64()),
        }
        hugging_face(tmp_path / f"{name}.parquet", columns, features)
    train, test = open_source(str(tmp_path)), open_source(f"{tmp_path}:test", "train")
    assert (train.name, test.name) == (f"{tmp_path}:train", f"{tmp_path}:test")
    assert train.fingerprint != test.fingerprint
    for source, labels in ((train, [0, 2, 1]), (test, [2, 0])):
        assert source.classes == ("apple", "bear", "cup")
        assert source.labels is not None
        assert source.labels.tolist() == labels
        for i, label in enumerate(labels):
            assert np.array_equal(array_of(source, i), picture(label))


def test_columns_image_and_label_come_before_img_and_fine_label(tmp_path: Path):
    one, other = (COLUMNS["binary"]([encoded(picture(i))]) for i in (0, 1))
    others = {"img": other, "fine_label": pa.array([3])}
    file = write_parquet(tmp_path / "a.parquet", one, pa.array([2]), **others)
    source = open_source(str(file))
    assert np.array_equal(array_of(source, 0), picture(0))
    assert source.labels is not None
    assert source.labels.tolist() == [2]


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (("train", "test"), 1, 1),
        (("train-0", "train-1", "validation-0"), 2, 1),
        (("train-0", "test-0", "validation-0", "unlabelled-0"), 1, 1),
        (("train-0", "train-1"), 2, 2),
        (("a", "b", "test-0"), 3, 3),
    ],
)
def test_shards_are_split_where_both_parts_are_named(
    names: tuple[str, ...], train: int, test: int, tmp_path: Path
):
    for i, name in enumerate(names):
        images = COLUMNS["struct"]([encoded(picture(i))])
        write_parquet(tmp_path / f"{name}.parquet", images, pa.array([i]))
    assert len(open_source(str(tmp_path))) == train
    assert len(open_source(str(tmp_path), "test")) == test


@pytest.mark.parametrize(
    "features",
    [
        None,
        [],
        {},
        {"label": {"_type": "Value"}},
        {"label": {"names": "abc"}},
        {"label": class_label("one")},
        {"label": class_label("a", 1, None)},
        {"label": class_label("a", "b\nc", "d")},
    ],
)
def test_a_description_without_usable_names_leaves_numbers(features: Any, tmp_path: Path):
    images = COLUMNS["binary"]([encoded(picture()), encoded(picture(1))])
    columns = {"image": images, "label": pa.array([1, 0])}
    source = open_source(str(hugging_face(tmp_path / "a.parquet", columns, features)))
    assert source.classes == ("0", "1")


@pytest.mark.parametrize("described", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"3"])
def test_a_damaged_description_leaves_numbers(described: bytes, tmp_path: Path):
    table = pa.table({"image": COLUMNS["binary"]([encoded(picture())]), "label": pa.array([0])})
    pq.write_table(
        table.replace_schema_metadata({"huggingface": described}), tmp_path / "a.parquet"
    )
    assert open_source(str(tmp_path)).classes == ("0",)


# --- CIFAR. ---


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined] # the one that can be extended
    """Writes what Python 2 wrote: texts and bytes are one kind, and numpy had a `core`."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self: Any, value: bytes | str) -> None:
        data = value.encode("ascii") if isinstance(value, str) else value
        short = len(data) < 256
        head = b"U" + bytes([len(data)]) if short else b"T" + struct.pack("<i", len(data))
        self.write(head + data)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def python2(content: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    return buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def python3(content: Any) -> bytes:
    return pickle.dumps(content, protocol=2)


Dump = Callable[[Any], bytes]


def batch(first: int, count: int, key: bytes) -> dict[bytes, Any]:
    """`count` images; labels are their numbers modulo 10."""
    numbers = range(first, first + count)
    images = np.stack([picture(i, 32, 32).transpose(2, 0, 1).ravel() for i in numbers])
    return {b"data": images, key: [i % 10 for i in numbers]}


def cifar10(folder: Path, dump: Dump = python2) -> Path:
    folder.mkdir(parents=True)
    for i in range(5):
        put(folder / f"data_batch_{i + 1}", dump(batch(3 * i, 3, b"labels")))
    put(folder / "test_batch", dump(batch(100, 2, b"labels")))
    names = [f"class {i}".encode() for i in range(10)]
    put(folder / "batches.meta", dump({b"label_names": names, b"num_vis": 3072}))
    return folder


def cifar100(folder: Path, dump: Dump = python2) -> Path:
    folder.mkdir(parents=True)
    put(folder / "train", dump(batch(0, 6, b"fine_labels") | {b"coarse_labels": [7] * 6}))
    put(folder / "test", dump(batch(100, 2, b"fine_labels") | {b"coarse_labels": [7] * 2}))
    names = [f"class {i}".encode() for i in range(10)]
    put(folder / "meta", dump({b"fine_label_names": names, b"coarse_label_names": [b"x"]}))
    return folder


@pytest.mark.parametrize("dump", [python2, python3])
@pytest.mark.parametrize(("build", "train"), [(cifar10, 15), (cifar100, 6)])
@pytest.mark.parametrize("nested", [True, False])
def test_cifar(
    build: Callable[[Path, Dump], Path], train: int, dump: Dump, nested: bool, tmp_path: Path
):
    name = {cifar10: "cifar-10-batches-py", cifar100: "cifar-100-python"}[build]  # type: ignore[index]
    folder = build(tmp_path / name, dump)
    root = str(tmp_path if nested else folder)
    tests = (open_source(root, "test"), open_source(f"{root}:test"))
    for source, first, count in (
        (open_source(root), 0, train),
        (open_source(f"{root}:train", "test"), 0, train),
        (tests[0], 100, 2),
        (tests[1], 100, 2),
    ):
        assert isinstance(source, Cifar)
        assert len(source) == count
        assert source.classes == tuple(f"class {i}" for i in range(10))
        assert source.labels is not None
        assert source.labels.tolist() == [(first + i) % 10 for i in range(count)]
        for i in range(count):
            assert np.array_equal(array_of(source, i), picture(first + i, 32, 32))


def test_a_folder_with_both_cifars_is_refused(tmp_path: Path):
    """torchvision unpacks both into the folder it is given."""
    cifar10(tmp_path / "cifar-10-batches-py")
    cifar100(tmp_path / "cifar-100-python")
    refused(tmp_path, "cifar-10-batches-py and cifar-100-python: give one of them")


class Payload:
    """Unpickled, it would create the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("file", ["data_batch_3", "batches.meta"])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_batch_with_code_is_refused_and_not_run(file: str, protocol: int, tmp_path: Path):
    folder, marker = cifar10(tmp_path / "cifar"), tmp_path / "marker"
    content = {b"labels": [], b"label_names": [], b"extra": Payload(marker)}
    (folder / file).write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(UserError, match=f"{file} is not a CIFAR batch.*system is not allowed"):
        open_source(str(folder))
    assert not marker.exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy.core.multiarray\nfrombuffer\n.",
        b"cnumpy\nload\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
        b"cnumpy._core.multiarray._reconstruct\n__globals__\n.",
    ],
)
def test_names_outside_the_list_are_refused(opcodes: bytes, tmp_path: Path):
    folder = cifar10(tmp_path / "cifar")
    (folder / "data_batch_1").write_bytes(opcodes)
    with pytest.raises(UserError, match="not allowed in a CIFAR batch"):
        open_source(str(folder))


class ForgedDtype:
    """Eight raw bytes that call themselves a record with a Python object, and not refcounted."""

    def __reduce__(self) -> Any:
        fields = {"a": (np.dtype("O"), 0)}
        return np.dtype, ("V8", False, True), (3, "|", None, ("a",), fields, 8, 1, 0)


class ForgedArray:
    """Bytes that numpy would follow as pointers."""

    def __reduce__(self) -> Any:
        from numpy._core.multiarray import _reconstruct  # type: ignore[attr-defined]

        state = (1, (1, 3072), ForgedDtype(), False, b"A" * 8 * 3072)
        return _reconstruct, (np.ndarray, (0,), b"b"), state


def test_a_forged_array_does_not_reach_memory(tmp_path: Path):
    """In a process of its own: where it does, that process dies of signal 11."""
    folder = cifar100(tmp_path / "cifar")
    put(folder / "train", python3({b"data": ForgedArray(), b"fine_labels": [1]}))
    code = (
        "from burn.data.open import open_source; from burn.core.errors import UserError\n"
        f"try: open_source({str(folder)!r})\n"
        "except UserError: print('refused')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "refused")


def test_cifar_folders_that_are_refused(tmp_path: Path):
    folder = cifar10(tmp_path / "cifar")
    file, whole = folder / "data_batch_2", (folder / "data_batch_2").read_bytes()

    def refused_as(content: bytes, words: str) -> None:
        file.write_bytes(content)
        with pytest.raises(UserError, match=words) as caught:
            open_source(str(folder))
        assert str(folder) in str(caught.value)
        assert "\n" not in str(caught.value)

    refused_as(whole[: len(whole) // 2], "data_batch_2 is not a CIFAR batch")
    refused_as(b"", "data_batch_2 is not a CIFAR batch")
    refused_as(b"<html>404</html>", "data_batch_2 is not a CIFAR batch")
    refused_as(b"Pnumber\n.", "data_batch_2 is not a CIFAR batch")
    refused_as(python2([1, 2]), "not laid out")
    refused_as(python2({b"data": np.zeros((3, 3072), np.uint8)}), "not laid out")
    short = batch(0, 3, b"labels")
    refused_as(python2(short | {b"labels": [1, 2]}), "15 images but 14 labels")
    refused_as(python2(short | {b"data": np.zeros((3, 3071), np.uint8)}), "not laid out")
    refused_as(python2(short | {b"data": np.zeros((3, 3072))}), "not a CIFAR batch.*not uint8")
    file.unlink()
    refused(folder, "data_batch_2 is missing")


def test_whatever_the_damage_a_batch_loads_or_is_refused(tmp_path: Path):
    random = np.random.default_rng(3)
    folder = cifar100(tmp_path / "cifar")
    whole = (folder / "train").read_bytes()
    places = [i for i in range(len(whole)) if i < 200 or i > len(whole) - 200]
    outcomes = set()
    for _ in range(400):
        broken = bytearray(whole)
        for place in random.choice(places, 2):
            broken[place] = random.integers(0, 256)
        (folder / "train").write_bytes(broken)
        try:
            open_source(str(folder))
            outcomes.add("loads")
        except UserError:
            outcomes.add("refused")
    assert outcomes == {"loads", "refused"}


# --- Digits. ---


def test_digits_are_split_into_1437_and_360():
    train, test = open_source("digits"), open_source("digits:test")
    assert isinstance(train, Digits)
    assert (len(train), len(test)) == (1437, 360)
    assert train.classes == test.classes == tuple("0123456789")
    assert train.fingerprint != test.fingerprint
    assert open_source("digits", "test").fingerprint == test.fingerprint


def enlarged_by_4(grey: np.ndarray) -> np.ndarray:
    """Bicubic interpolation (a = -3/4, as OpenCV's) of (images, side, side), in integers."""
    side = grey.shape[1]
    weights = np.zeros((4 * side, side), np.int64)
    for i in range(4 * side):
        position = (2 * i + 1) - 4  # of the output's centre, in eighths of an input pixel
        for tap in range(position // 8 - 1, position // 8 + 3):
            d = abs(position - 8 * tap)
            if d <= 8:
                weight = 5 * d**3 - 9 * 8 * d**2 + 4 * 8**3
            else:
                weight = -3 * d**3 + 15 * 8 * d**2 - 24 * 8**2 * d + 12 * 8**3
            weights[i, min(max(tap, 0), side - 1)] += weight
    assert set(weights.sum(axis=1)) == {2048}
    return ((weights @ grey.astype(np.int64) @ weights.T + 2**21) >> 22).clip(0, 255)


def test_digits_splits_are_disjoint_and_together_all_of_them():
    """As multisets of pictures with their labels, the two parts are the whole."""
    pixels, digits = load_digits(return_X_y=True)
    grey = (pixels.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    enlarged = enlarged_by_4(grey).astype(np.uint8)
    whole = [(int(digit), e.tobytes()) for e, digit in zip(enlarged, digits, strict=True)]
    parts = []
    for split in ("train", "test"):
        source = open_source("digits", split)
        assert source.labels is not None
        for i in range(len(source)):
            image = source.read(i)
            assert image.shape == (3, 32, 32)
            assert torch.equal(image[0], image[1])
            assert torch.equal(image[0], image[2])
            parts.append((int(source.labels[i]), image[0].numpy().tobytes()))
    assert sorted(parts) == sorted(whole)


def test_digits_splits_are_those_of_scikit_learn():
    _, digits = load_digits(return_X_y=True)
    for split, part in zip(
        ("train", "test"),
        train_test_split(range(1797), test_size=360, random_state=0, stratify=digits),
        strict=True,
    ):
        labels = open_source("digits", split).labels
        assert labels is not None
        assert labels.tolist() == digits[sorted(part)].tolist()


def test_digits_are_stratified():
    _, digits = load_digits(return_X_y=True)
    labels = open_source("digits:test").labels
    assert labels is not None
    # A fifth of each digit, up to one image.
    assert np.abs(np.bincount(labels) - np.bincount(digits) * 360 / 1797).max() <= 1


# --- Fingerprints. ---


def test_a_folders_fingerprint_changes_with_its_files(tmp_path: Path):
    put(tmp_path / "images" / "a.png")
    spec = str(tmp_path / "images")
    prints = [open_source(spec).fingerprint]
    assert open_source(spec).fingerprint == prints[0]
    put(tmp_path / "images" / "b.png")
    prints.append(open_source(spec).fingerprint)
    (tmp_path / "images" / "b.png").rename(tmp_path / "images" / "c.png")
    prints.append(open_source(spec).fingerprint)
    put(tmp_path / "images" / "c.png", encoded(picture(0, 20, 20)))
    prints.append(open_source(spec).fingerprint)
    assert len(set(prints)) == 4


def test_a_parquets_fingerprint_changes_with_its_files(tmp_path: Path):
    images = COLUMNS["binary"]([encoded(picture())])
    write_parquet(tmp_path / "a.parquet", images)
    first = open_source(str(tmp_path)).fingerprint
    assert open_source(str(tmp_path)).fingerprint == first
    write_parquet(tmp_path / "b.parquet", images)
    assert open_source(str(tmp_path)).fingerprint != first


def test_cifars_fingerprint_is_its_pixels_not_its_files(tmp_path: Path):
    one, same = cifar100(tmp_path / "a"), cifar100(tmp_path / "b", python3)
    assert open_source(str(one)).fingerprint == open_source(str(same)).fingerprint
