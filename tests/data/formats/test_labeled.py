"""Lists of labelled images: what each layout gives, and every malformed text file in one line."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from burn.core.errors import UserError
from burn.data.decode import UnreadableImage
from burn.data.formats import labeled
from burn.data.formats.labeled import LabeledFiles, read_birdsnap, read_cub, read_list
from burn.data.open import open_source


def picture(seed: int) -> np.ndarray:
    """Random colours, uint8 (5, 4, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)


def put(file: Path, seed: int = 0) -> Path:
    """A small PNG, whatever the suffix."""
    file.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    Image.fromarray(picture(seed)).save(buffer, "PNG")
    file.write_bytes(buffer.getvalue())
    return file


def opened(spec: Path | str, split: str = "train") -> LabeledFiles:
    source = open_source(str(spec), split)  # type: ignore[arg-type]
    assert isinstance(source, LabeledFiles)
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.shape == (len(source),)
    return source


def content(source: LabeledFiles, root: Path) -> dict[str, tuple[str, bytes]]:
    """Path below root -> name of its class, pixels."""
    assert source.labels is not None
    return {
        Path(source.describe(i)).relative_to(root).as_posix(): (
            source.classes[source.labels[i]],
            source.read(i).permute(1, 2, 0).numpy().tobytes(),
        )
        for i in range(len(source))
    }


def refused(spec: Path, *words: str) -> None:
    """One line, of printable text, with these words."""
    for split in ("train", "test"):
        with pytest.raises(UserError) as caught:
            open_source(str(spec), split)  # type: ignore[arg-type]
        message = str(caught.value)
        assert message.isprintable()
        for word in words:
            assert word in message


# --- CUB-200-2011. ---

CUB = {
    "images.txt": "1 001.Gull/a.jpg\n2 001.Gull/b c.jpg\n3 002.Wren/c.jpg\n4 002.Wren/d.jpg\n",
    "image_class_labels.txt": "1 1\n2 1\n3 2\n4 2\n",
    "train_test_split.txt": "1 0\n2 1\n3 1\n4 0\n",
    "classes.txt": "1 001.Gull\n2 002.Wren\n3 003.Never_seen\n",
}


def write(folder: Path, texts: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    return folder


def cub(folder: Path) -> Path:
    for i, name in enumerate(("001.Gull/a", "001.Gull/b c", "002.Wren/c", "002.Wren/d")):
        put(folder / "images" / f"{name}.jpg", i)
    return write(folder, CUB)


@pytest.mark.parametrize("nested", [True, False])
def test_cub(nested: bool, tmp_path: Path):
    folder = cub(tmp_path / "CUB_200_2011" if nested else tmp_path)
    put(tmp_path / "attributes.jpg")
    train, test = opened(tmp_path), opened(tmp_path, "test")
    assert train.classes == test.classes == ("001.Gull", "002.Wren", "003.Never_seen")
    assert content(train, folder / "images") == {
        "001.Gull/b c.jpg": ("001.Gull", picture(1).tobytes()),
        "002.Wren/c.jpg": ("002.Wren", picture(2).tobytes()),
    }
    assert content(test, folder / "images") == {
        "001.Gull/a.jpg": ("001.Gull", picture(0).tobytes()),
        "002.Wren/d.jpg": ("002.Wren", picture(3).tobytes()),
    }
    assert (train.name, test.name) == (f"{folder}:train", f"{folder}:test")
    assert (train.missing, test.missing) == (0, 0)
    assert opened(f"{tmp_path}:test").fingerprint == test.fingerprint != train.fingerprint


def test_cubs_order_of_lines_line_ends_and_blank_lines_do_not_matter(tmp_path: Path):
    folder = cub(tmp_path)
    whole = content(opened(folder), folder)
    for name, text in CUB.items():
        lines = "\r\n\r\n".join(reversed(text.splitlines())) + "\r\n  \r\n"
        (folder / name).write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert content(opened(folder), folder) == whole
    assert opened(folder).classes == ("001.Gull", "002.Wren", "003.Never_seen")


def test_cubs_missing_images_are_left_out_and_counted(tmp_path: Path):
    folder = cub(tmp_path)
    before = opened(folder).fingerprint
    (folder / "images/001.Gull/b c.jpg").unlink()
    source = opened(folder)
    assert (len(source), source.missing) == (1, 1)
    assert source.classes == ("001.Gull", "002.Wren", "003.Never_seen")
    assert source.fingerprint != before
    (folder / "images/002.Wren/c.jpg").unlink()
    with pytest.raises(UserError, match="holds none of the 2 images"):
        opened(folder)


TOO_LONG = "7" * 5000  # int() refuses to read so many digits

CUB_MALFORMED = [
    ("images.txt", "1\n", "images.txt line 1: '1' is not two columns"),
    ("images.txt", "x a.jpg\n", "images.txt line 1: 'x' is not an integer"),
    ("images.txt", "-1 a.jpg\n", "line 1: '-1' is not an integer"),
    ("images.txt", "² a.jpg\n", "line 1: '²' is not an integer"),
    ("images.txt", f"{TOO_LONG} a.jpg\n", "line 1: '7777"),
    ("images.txt", CUB["images.txt"] + "1 e.jpg\n", "images.txt line 5: id 1 occurs twice"),
    ("images.txt", CUB["images.txt"] + "5 e.jpg\n", "images.txt line 5: image 5 is not in image_c"),
    ("images.txt", CUB["images.txt"].replace("4 ", "5 "), "line 4: image 4 is not in images.txt"),
    ("images.txt", "", "images.txt is empty"),
    ("images.txt", "\n \n", "images.txt is empty"),
    ("images.txt", CUB["images.txt"].replace("b c", "\0"), "line 2: a control character"),
    ("images.txt", CUB["images.txt"].replace("b c", "\x1b[31m"), "line 2: a control character"),
    ("images.txt", CUB["images.txt"].replace("b c", "\u2028"), "line 2: a control character"),
    ("images.txt", CUB["images.txt"].replace("\n", "\r"), "line 1: a control character"),
    ("image_class_labels.txt", CUB["image_class_labels.txt"][4:], "images.txt line 1: image 1 is"),
    ("image_class_labels.txt", "1 1\n2 x\n3 2\n4 2\n", "line 2: 'x' is not an integer"),
    ("image_class_labels.txt", "1 1\n2 -1\n3 2\n4 2\n", "line 2: '-1' is not an integer in 0 … 1"),
    ("image_class_labels.txt", "1 1\n2 100001\n3 2\n4 2\n", "'100001' is not an integer in 0 … 1"),
    ("image_class_labels.txt", "1 1\n2 1 1\n3 2\n4 2\n", "line 2: '1 1' is not an integer"),
    ("image_class_labels.txt", "1 1\n2 4\n3 2\n4 2\n", "line 2: class 4 is not in classes.txt"),
    ("image_class_labels.txt", "1 1\n2 1\n2 2\n4 2\n", "line 3: id 2 occurs twice"),
    ("train_test_split.txt", "1 0\n2 1\n3 1\n", "images.txt line 4: image 4 is not in train_test"),
    ("train_test_split.txt", "1 0\n2 1\n3 2\n4 1\n", "line 3: '2' is neither 0 nor 1"),
    ("train_test_split.txt", "1 0\n2 1\n3\n4 1\n", "line 3: '3' is not two columns"),
    ("train_test_split.txt", CUB["train_test_split.txt"] + "9 1\n", "line 5: image 9 is not in im"),
    ("classes.txt", "1 a\n1 b\n", "classes.txt line 2: id 1 occurs twice"),
    ("classes.txt", "1 a\n2\n", "classes.txt line 2: '2' is not two columns"),
    ("classes.txt", "1 a\n100001 b\n", "line 2: '100001' is not an integer in 0 … 100000"),
    ("classes.txt", "1 a\n2 \x07\n", "classes.txt line 2: a control character"),
]


@pytest.mark.parametrize(
    ("file", "text", "words"), CUB_MALFORMED, ids=[words for *_, words in CUB_MALFORMED]
)
def test_malformed_cub(file: str, text: str, words: str, tmp_path: Path):
    write(cub(tmp_path), {file: text})
    refused(tmp_path, str(tmp_path), words)


@pytest.mark.parametrize("file", CUB)
def test_a_cub_with_a_file_that_is_missing_or_no_text(file: str, tmp_path: Path):
    text = cub(tmp_path) / file
    text.write_bytes(b"1 fine\n2 \xff\n")
    refused(tmp_path, f"{text} line 2: not text in UTF-8")
    text.unlink()
    refused(tmp_path, f"{text} is missing")
    os.mkfifo(text)
    refused(tmp_path, f"{text} is not a regular file")


def test_a_cub_without_a_split(tmp_path: Path):
    write(cub(tmp_path), {"train_test_split.txt": "1 1\n2 1\n3 1\n4 1\n"})
    assert len(opened(tmp_path)) == 4
    with pytest.raises(UserError, match=":test lists no image"):
        opened(tmp_path, "test")


LEAVING = ["../a.jpg", "/etc/a.jpg", "a/../../b.jpg", "a/..", "..", "\\a.jpg", "..\\a.jpg"]


@pytest.mark.parametrize("path", LEAVING)
def test_paths_that_leave_the_folder(path: str, tmp_path: Path):
    write(cub(tmp_path / "cub"), {"images.txt": CUB["images.txt"].replace("002.Wren/d.jpg", path)})
    refused(tmp_path / "cub", "images.txt line 4", "not a path below")
    rows = BIRDSNAP["images.txt"].replace("wren/4.jpg", path)
    write(birdsnap(tmp_path / "bird"), {"images.txt": rows})
    refused(tmp_path / "bird", "images.txt line 5", "not a path below")
    file = write(tmp_path, {"list.txt": f"a.jpg 1\n{path} 2\n"}) / "list.txt"
    put(tmp_path / "a.jpg")
    refused(file, f"{file} line 2", "not a path below")


def test_dots_within_a_name_are_no_way_out(tmp_path: Path):
    put(tmp_path / "a..b" / "..c.jpg")
    write(tmp_path, {"list.txt": "a..b/..c.jpg 0\n"})
    opened(tmp_path / "list.txt").read(0)


# --- Birdsnap. ---

BIRDSNAP = {
    "species.txt": "id\tcommon\tscientific\tdir\n"
    "2\tHouse Wren\tTroglodytes aedon\twren\n1\tHerring Gull\tLarus\tgull\n",
    "images.txt": "url\tmd5\tpath\tspecies_id\tbb_x1\tback_x\n"
    "http://x/1\tab\tgull/1.jpg\t1\t3\tnull\nhttp://x/2\tab\tgull/2.jpg\t1\t3\tnull\n"
    "http://x/3\tab\twren/3.jpg\t2\t3\t\nhttp://x/4\tab\twren/4.jpg\t2\t3\t9\n",
    "test_images.txt": "path\ngull/2.jpg\nwren/4.jpg\n",
}


def birdsnap(folder: Path, below: str = "images") -> Path:
    for i, name in enumerate(("gull/1", "gull/2", "wren/3", "wren/4")):
        put(folder / below / f"{name}.jpg", i)
    return write(folder, BIRDSNAP)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("below", ["images", "download/images"])
def test_birdsnap(nested: bool, below: str, tmp_path: Path):
    folder = birdsnap(tmp_path / "birdsnap" if nested else tmp_path, below)
    train, test = opened(tmp_path), opened(tmp_path, "test")
    assert train.classes == test.classes == ("Herring Gull", "House Wren")
    assert content(train, folder / below) == {
        "gull/1.jpg": ("Herring Gull", picture(0).tobytes()),
        "wren/3.jpg": ("House Wren", picture(2).tobytes()),
    }
    assert content(test, folder / below) == {
        "gull/2.jpg": ("Herring Gull", picture(1).tobytes()),
        "wren/4.jpg": ("House Wren", picture(3).tobytes()),
    }
    assert train.missing == test.missing == 0


def test_birdsnaps_missing_images_are_left_out_and_counted(tmp_path: Path):
    folder = birdsnap(tmp_path)
    (folder / "images/gull/1.jpg").unlink()
    (folder / "images/gull/2.jpg").unlink()
    (folder / "images/gull/2.jpg").mkdir()
    for split in ("train", "test"):
        source = opened(folder, split)
        assert (len(source), source.missing) == (1, 1)
        assert source.labels is not None
        assert source.labels.tolist() == [1]
        assert source.classes == ("Herring Gull", "House Wren")


def test_birdsnap_before_its_images_are_downloaded(tmp_path: Path):
    write(tmp_path, BIRDSNAP)
    refused(tmp_path, str(tmp_path / "images"), "holds none of the 2 images")


def changed(file: str, old: str, new: str) -> tuple[str, str]:
    assert old in BIRDSNAP[file]
    return file, BIRDSNAP[file].replace(old, new, 1)


BIRDSNAP_MALFORMED = [
    (
        *changed("images.txt", "md5", "path"),
        "images.txt line 1: the header must have exactly one column path",
    ),
    (
        *changed("images.txt", "species_id", "species"),
        "line 1: the header must have exactly one column species_id",
    ),
    (*changed("images.txt", "\tab\tgull/2", "\tgull/2"), "line 3: 5 columns, but 6 in the header"),
    (*changed("images.txt", "\tab\twren/3", "\ta\tb\twren/3"), "line 4: 7 columns, but 6 in the h"),
    (*changed("images.txt", "gull/2", "gull/1"), "line 3: path 'gull/1.jpg' occurs twice"),
    (*changed("images.txt", "gull/2.jpg", ""), "line 3: '' is not a path below"),
    (*changed("images.txt", "2.jpg\t1", "2.jpg\t3"), "line 3: species 3 is not in species.txt"),
    (*changed("images.txt", "2.jpg\t1", "2.jpg\t-1"), "line 3: '-1' is not an integer"),
    (*changed("images.txt", "2.jpg\t1", "2.jpg\t"), "line 3: '' is not an integer"),
    (*changed("images.txt", "gull/2.jpg", "gull/7.jpg"), "line 2: 'gull/2.jpg' is not in images.t"),
    ("images.txt", "", "images.txt is empty"),
    (
        *changed("species.txt", "common", "name"),
        "species.txt line 1: the header must have exactly one colu",
    ),
    (*changed("species.txt", "1\tH", "2\tH"), "species.txt line 3: id 2 occurs twice"),
    (*changed("species.txt", "1\tH", "100001\tH"), "line 3: '100001' is not an integer in 0 … 10"),
    (*changed("species.txt", "\tgull", ""), "species.txt line 3: 3 columns, but 4 in the header"),
    ("species.txt", "", "species.txt is empty"),
    (
        *changed("test_images.txt", "path", "gull/1.jpg"),
        "line 1: the header must have exactly one column path",
    ),
    (*changed("test_images.txt", "wren/4", "wren/5"), "line 3: 'wren/5.jpg' is not in images.txt"),
    (*changed("test_images.txt", "wren/4", "gull/2"), "line 3: path 'gull/2.jpg' occurs twice"),
    ("test_images.txt", "", "test_images.txt is empty"),
]


@pytest.mark.parametrize(
    ("file", "text", "words"), BIRDSNAP_MALFORMED, ids=[words for *_, words in BIRDSNAP_MALFORMED]
)
def test_malformed_birdsnap(file: str, text: str, words: str, tmp_path: Path):
    write(birdsnap(tmp_path), {file: text})
    refused(tmp_path, str(tmp_path), words)


def test_a_birdsnap_of_release_1_0_has_no_split(tmp_path: Path):
    (birdsnap(tmp_path) / "test_images.txt").unlink()
    refused(tmp_path, f"{tmp_path / 'test_images.txt'} is missing")


def test_a_folder_with_notes_of_that_name_is_a_folder(tmp_path: Path):
    put(tmp_path / "a.png")
    for name in ("images.txt", "classes.txt"):
        write(tmp_path, {name: "whatever\n"})
    assert not isinstance(open_source(str(tmp_path)), LabeledFiles)


# --- Lists. ---

BELOW = ["", "images", "images256", "data/vision/torralba/deeplearning/images256"]


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("beside", [True, False])
def test_a_list_finds_its_images(below: str, beside: bool, tmp_path: Path):
    lists = tmp_path / "trainvalsplit_places205"
    root = (lists if beside else tmp_path) / below
    for i, name in enumerate(("a/abbey/x.jpg", "a/b c.jpg")):
        put(root / name, i)
    write(lists, {"train_places205.csv": "a/abbey/x.jpg 0\na/b c.jpg 2\n"})
    source = opened(lists / "train_places205.csv")
    assert content(source, root) == {
        "a/abbey/x.jpg": ("0", picture(0).tobytes()),
        "a/b c.jpg": ("2", picture(1).tobytes()),
    }
    assert source.classes == ("0", "1", "2")


def test_the_nearest_images_are_taken(tmp_path: Path):
    for folder in ("lists/images", "lists", "images"):
        put(tmp_path / folder / "a.jpg")
    write(tmp_path / "lists", {"a.lst": "a.jpg 0\n"})
    assert opened(tmp_path / "lists/a.lst").describe(0) == str(tmp_path / "lists/a.jpg")


def test_a_list_named_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put(tmp_path / "images" / "a.jpg")
    write(tmp_path / "lists", {"a.txt": "a.jpg 0\n"})
    monkeypatch.chdir(tmp_path / "lists")
    opened("a.txt").read(0)
    opened("../lists/a.txt").read(0)


@pytest.mark.parametrize(
    ("line", "path", "label"),
    [
        ("a.jpg 3", "a.jpg", 3),
        ("a.jpg\t3", "a.jpg", 3),
        ("a.jpg,3", "a.jpg", 3),
        ("a.jpg, 3", "a.jpg", 3),
        ("a.jpg , 3 ", "a.jpg", 3),
        ("b c.jpg 3", "b c.jpg", 3),
        ("b c.jpg,3", "b c.jpg", 3),
        ("b, c.jpg 3", "b, c.jpg", 3),
        ("b, 7.jpg 3", "b, 7.jpg", 3),
        ("a 1 2 3", "a 1 2", 3),
        ("1 003", "1", 3),
        ("gänse/ü.jpg 3", "gänse/ü.jpg", 3),
        ("a.jpg 99999", "a.jpg", 99999),
    ],
)
def test_a_label_is_split_off_the_right_end(line: str, path: str, label: int, tmp_path: Path):
    put(tmp_path / path)
    write(tmp_path, {"a.csv": f"{line}\r\n\r\n"})
    source = opened(tmp_path / "a.csv")
    assert source.labels is not None
    assert source.labels.tolist() == [label]
    assert source.describe(0) == str(tmp_path / path)
    assert len(source.classes) == label + 1


LIST_MALFORMED = [
    *("a.jpg", "a.jpg -1", "a.jpg 100000", "a.jpg 1.5", "a.jpg x", "a.jpg ²", "a.jpg,"),
    *("3", " 3", ",3", "a.jpg 3,x", "path,label"),
    *(f"a.jpg {TOO_LONG}", "a" + " " * 20_000 + "x"),
]


@pytest.mark.parametrize("line", LIST_MALFORMED, ids=lambda line: line[:20])
def test_malformed_lists(line: str, tmp_path: Path):
    put(tmp_path / "a.jpg")
    file = write(tmp_path, {"a.txt": f"a.jpg 1\n\n{line}\na.jpg 2\n"}) / "a.txt"
    refused(file, f"{file} line 3: ", "is not a path and a label in 0 … 99999")


def test_lists_that_are_no_lists(tmp_path: Path):
    put(tmp_path / "a.jpg")
    for text in ("", "\n\n"):
        file = write(tmp_path, {"a.txt": text}) / "a.txt"
        refused(file, f"{file} is empty")
    file.write_bytes(b"a.jpg 1\nb\xfc.jpg 2\n")
    refused(file, f"{file} line 2: not text in UTF-8")
    file.write_bytes((tmp_path / "a.jpg").read_bytes())
    refused(file, f"{file} line 1: not text in UTF-8")


def test_a_list_without_its_images_says_what_was_looked_for(tmp_path: Path):
    file = write(tmp_path / "lists", {"a.txt": "\nx/a.jpg 1\n"}) / "a.txt"
    places = (str(tmp_path / "lists"), str(tmp_path), *BELOW)
    refused(file, f"{file} line 2: there is no file 'x/a.jpg' in ", *places)


def test_a_lists_missing_image_is_unreadable(tmp_path: Path):
    put(tmp_path / "a.jpg")
    (tmp_path / "c.jpg").mkdir()
    write(tmp_path, {"a.txt": "a.jpg 1\nb.jpg 1\nc.jpg 0\n"})
    source = opened(tmp_path / "a.txt")
    assert (len(source), source.missing) == (3, 0)
    for index, name in ((1, "b.jpg"), (2, "c.jpg")):
        with pytest.raises(UnreadableImage, match=name):
            source.read(index)


@pytest.mark.parametrize("most_sizes", [1, 2])
def test_a_lists_fingerprint_is_its_text_and_files_of_which_most_sizes_are_looked_at(
    most_sizes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(labeled, "_MOST_SIZES", most_sizes)
    put(tmp_path / "x" / "a.jpg")
    file = write(tmp_path / "x", {"a.txt": "a.jpg 1\nb.jpg 1\n"}) / "a.txt"
    prints = [opened(file).fingerprint]
    file = (tmp_path / "x").rename(tmp_path / "y") / "a.txt"
    assert opened(file).fingerprint == prints[0], "not its place"
    put(tmp_path / "y" / "b.jpg")
    prints.append(opened(file).fingerprint)
    with (tmp_path / "y" / "a.jpg").open("ab") as image:
        image.write(b"more")
    prints.append(opened(file).fingerprint)
    assert len(set(prints)) == (3 if most_sizes == 2 else 2)
    file.write_bytes(b"a.jpg 1\nb.jpg 2\n")
    assert opened(file).fingerprint not in prints


def test_whatever_the_damage_it_is_read_or_refused(tmp_path: Path):
    """Three random bytes of one text file are changed: one line, naming a file, or a listing."""
    random = np.random.default_rng(0)
    one, two = cub(tmp_path / "cub"), birdsnap(tmp_path / "bird")
    listed = write(tmp_path, {"a.txt": "cub/images/001.Gull/a.jpg 1\nx y.jpg,2\n"}) / "a.txt"
    readers: list[tuple[Path, Callable[[], LabeledFiles]]] = [
        *((one / file, lambda: read_cub(one, "train")) for file in CUB),
        *((two / file, lambda: read_birdsnap(two, "test")) for file in BIRDSNAP),
        (listed, lambda: read_list(listed)),
    ]
    messages: list[str] = []
    for file, reader in readers:
        whole, outcomes = file.read_bytes(), set()
        for _ in range(50):
            broken = bytearray(whole)
            for position in random.integers(0, len(whole), random.integers(1, 4)):
                broken[position] = random.choice(list(b"0129 \t\n,/.\\\x00\xff"))
            file.write_bytes(broken)
            try:
                source = reader()
            except UserError as error:
                outcomes.add("refused")
                messages.append(str(error))
            else:
                outcomes.add("read")
                assert source.labels is not None
                assert len(source) == len(source.labels) > 0
                assert source.labels.max() < len(source.classes)
        assert outcomes == {"read", "refused"}, file
        file.write_bytes(whole)
    for message in messages:
        assert message.isprintable()
        assert str(tmp_path) in message
