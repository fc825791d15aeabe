"""One rule for the fingerprints of all sources: pixels and labels count, place and times do not."""

import io
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from burn.data import fingerprint
from burn.data.dataset import DatasetSource
from burn.data.fingerprint import file_contents, is_earlier
from burn.data.formats.voc import open_voc
from burn.data.open import open_source
from burn.embedding.parts import open_collection


def picture(shade: int) -> bytes:
    """A bitmap, which has the same size whatever its pixels are."""
    content = io.BytesIO()
    Image.new("RGB", (9, 9), (shade, 20, 30)).save(content, "BMP")
    return content.getvalue()


def put(file: Path, content: bytes | str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def put_folder(root: Path, shade: int) -> str:
    for number in range(4):
        put(root / f"class{number % 2}" / f"{number}.bmp", picture(shade if number == 2 else 0))
    return str(root)


def put_list(root: Path, shade: int) -> str:
    put_folder(root, shade)
    names = sorted(file.relative_to(root).as_posix() for file in root.rglob("*.bmp"))
    return str(put(root / "list.txt", "".join(f"{name} 1\n" for name in names)))


def put_cub(root: Path, shade: int) -> str:
    put(root / "images.txt", "1 gull/a.bmp\n2 wren/b.bmp\n")
    put(root / "image_class_labels.txt", "1 1\n2 2\n")
    put(root / "classes.txt", "1 gull\n2 wren\n")
    put(root / "train_test_split.txt", "1 1\n2 1\n")
    put(root / "images/gull/a.bmp", picture(0))
    put(root / "images/wren/b.bmp", picture(shade))
    return str(root)


def put_voc(root: Path, shade: int) -> str:
    for name in ("a", "b"):
        put(
            root / "Annotations" / f"{name}.xml",
            "<annotation><size><width>9</width><height>9</height></size><object><name>dog</name>"
            "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object>"
            "</annotation>",
        )
        image = Image.new("RGB", (9, 9), (shade if name == "b" else 0, 20, 30))
        (root / "JPEGImages").mkdir(exist_ok=True)
        image.save(root / "JPEGImages" / f"{name}.png", compress_level=0)
    put(root / "ImageSets" / "Main" / "train.txt", "a\nb\n")
    return str(root)


def put_parquet(root: Path, shade: int) -> str:
    root.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": [picture(0), picture(shade)], "label": [0, 1]})
    pq.write_table(
        table, root / "a.parquet", compression="none", use_dictionary=False, write_statistics=False
    )
    return str(root)


def put_tar(root: Path, shade: int) -> str:
    root.mkdir(parents=True, exist_ok=True)
    with tarfile.open(root / "a.tar", "w") as file:
        for number in range(4):
            content = picture(shade if number == 2 else 0)
            member = tarfile.TarInfo(f"{number}.bmp")
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return f"stream:{root}"


def put_stream(root: Path, shade: int) -> str:
    return f"stream:{put_parquet(root, shade)}"


def put_cifar(root: Path, shade: int) -> str:
    class Protocol2(pickle.Pickler):
        pass

    names = [b"apple", b"boat"]
    for part in ("train", "test"):
        data = np.full((2, 3072), shade, np.uint8)
        content = {b"data": data, b"fine_labels": [0, 1]}
        put(root / part, pickle.dumps(content, protocol=2))
    put(root / "meta", pickle.dumps({b"fine_label_names": names}, protocol=2))
    return str(root)


SOURCES: dict[str, Callable[[Path, int], str]] = {
    name.removeprefix("put_"): put
    for name, put in list(globals().items())
    if name.startswith("put_")
}


def fingerprint_of(spec: str, kind: str) -> str:
    return (open_voc(spec, "train") if kind == "voc" else open_source(spec)).fingerprint


def sizes(root: Path) -> list[tuple[str, int]]:
    files = sorted(file for file in root.rglob("*") if file.is_file())
    return [(file.relative_to(root).as_posix(), file.stat().st_size) for file in files]


@pytest.mark.parametrize("kind", SOURCES)
def test_other_pixels_under_the_same_names_and_sizes_are_noticed_and_a_copy_is_the_same(
    kind: str, tmp_path: Path
):
    put, root, moved = SOURCES[kind], tmp_path / "here", tmp_path / "elsewhere" / "there"
    root.mkdir()
    spec = put(root, 100)
    before, were = fingerprint_of(spec, kind), sizes(root)
    shutil.copytree(root, moved)
    for file in moved.rglob("*"):
        os.utime(file, (10**9, 10**9))
    assert fingerprint_of(spec.replace(str(root), str(moved)), kind) == before
    put(root, 101)
    assert sizes(root) == were
    assert fingerprint_of(spec, kind) != before


@pytest.mark.parametrize("kind", ["folder", "parquet", "tar", "stream"])
def test_each_part_that_is_embedded_notices_other_pixels(kind: str, tmp_path: Path):
    def parts(shade: int) -> list[str]:
        spec = SOURCES[kind](tmp_path / "data", shade)
        return [part.fingerprint for part in open_collection(spec, 100).parts]

    assert parts(1) == parts(1) != parts(2)


class Pictures:
    def __init__(self, changed: int, labels: list[int] | None = None) -> None:
        self.images = np.zeros((300, 8, 8, 3), np.uint8)
        self.images[changed] = 1
        self.targets = labels or [0] * 300

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.images[index]


def test_any_image_and_label_of_a_small_data_set_counts():
    same = DatasetSource(Pictures(7)).fingerprint
    assert DatasetSource(Pictures(7)).fingerprint == same
    others = [Pictures(8), Pictures(7, [1] + [0] * 299)]
    assert len({same, *(DatasetSource(other).fingerprint for other in others)}) == 3


def test_labels_count(tmp_path: Path):
    spec = put_cub(tmp_path, 0)
    before = open_source(spec).fingerprint
    put(tmp_path / "image_class_labels.txt", "1 2\n2 1\n")
    assert open_source(spec).fingerprint != before


@pytest.mark.parametrize("whole", [True, False])
def test_of_too_much_content_blocks_of_every_file_are_read(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fingerprint, "_BLOCK", 16)
    content = bytearray(range(200)) * 2
    files = [(put(tmp_path / str(i), bytes(content)), len(content)) for i in range(4)]
    budget = 1600 if whole else 4 * 64  # four blocks of each file
    before = file_contents(files, budget)
    seen = 0
    for position in range(0, 400, 4):
        changed = bytearray(content)
        changed[position] ^= 1
        put(files[2][0], bytes(changed))
        seen += file_contents(files, budget) != before
    assert seen == (100 if whole else 16)
    (tmp_path / "2").unlink()
    assert file_contents(files, budget) != before, "a file that cannot be read is none"


def test_what_one_file_leaves_of_the_budget_others_use():
    sizes = [10, 10, 500, 1000]
    most = fingerprint._most_of_a_file(sizes, 820)
    assert sum(min(size, most) for size in sizes) == 820
    assert fingerprint._most_of_a_file(sizes, 5000) == 1000


def test_of_many_files_some_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fingerprint, "_WHOLE_FILES", 5)
    files = [(put(tmp_path / str(i), b"x"), 1) for i in range(20)]
    before, seen = file_contents(files), 0
    for file, _ in files:
        put(file, b"y")
        seen += file_contents(files) != before
        put(file, b"x")
    assert seen == 5


def test_only_fingerprints_of_burns_own_sources_have_an_earlier_form():
    assert is_earlier("0123456789abcdef", "content:0123456789abcdef")
    assert not is_earlier("0123456789abcdef", "0123456789abcdeF")
    assert not is_earlier("digits:train:1437", "digits:train:1437")
    assert not is_earlier("content:0123456789abcdef", "content:1123456789abcdef")
