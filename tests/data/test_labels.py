"""Labels as people have them: in parquet files, tars and data sets, and which classes match."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import burn
from burn.core.errors import UserError
from burn.data.base import Source
from burn.data.open import open_source
from burn.evaluation.checks import check_sources

buffer = io.BytesIO()
Image.new("RGB", (3, 3)).save(buffer, "PNG")
PNG = buffer.getvalue()


def parquet(path: Path, labels: pa.Array, column: str = "label") -> Path:
    table = {"image": pa.array([PNG] * len(labels)), column: labels}
    pq.write_table(pa.table(table), path, row_group_size=2)
    return path


def tar(path: Path, *members: tuple[str, Any], form: int = tarfile.GNU_FORMAT) -> Path:
    """Members of bytes, or of a link's type and target."""
    with tarfile.open(path, "w", format=form) as file:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                member.type, member.linkname = content
                file.addfile(member)
            else:
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
    return path


NAN = float("nan")
COLUMNS: dict[str, tuple[pa.Array, list[int], tuple[str, ...]]] = {
    "whole": (pa.array([2, 0, 1], pa.uint8()), [2, 0, 1], ("0", "1", "2")),
    "missing": (pa.array([1, None, 0]), [1, -1, 0], ("0", "1")),
    "-1": (pa.array([1, -1, 0]), [1, -1, 0], ("0", "1")),
    "truth": (pa.array([True, False, None]), [1, 0, -1], ("false", "true")),
    "floats": (pa.array([1.0, NAN, 0.0]), [1, -1, 0], ("0", "1")),
    "decimals": (pa.array([1, 2, 0]).cast(pa.decimal128(20, 0)), [1, 2, 0], ("0", "1", "2")),
    "texts": (pa.array(["dog", "", "cat"]), [1, -1, 0], ("cat", "dog")),
    "large texts": (pa.array(["b", None, "a"], pa.large_string()), [1, -1, 0], ("a", "b")),
    "views": (pa.array(["b", "b", "a"], pa.string_view()), [1, 1, 0], ("a", "b")),
    "dictionary": (pa.array(["b", None, "a"]).dictionary_encode(), [1, -1, 0], ("a", "b")),
    "numbers in a dictionary": (pa.array([1, 0, 1]).dictionary_encode(), [1, 0, 1], ("0", "1")),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("column", ["label", "labels"])
@pytest.mark.parametrize("prefix", ["", "stream:"])
def test_labels_of_parquet_files(kind: str, column: str, prefix: str, tmp_path: Path):
    values, labels, classes = COLUMNS[kind]
    source = open_source(f"{prefix}{parquet(tmp_path / 'a.parquet', values, column)}")
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert (source.labels.tolist(), source.classes) == (labels, classes)
    assert ("1 of 3 images have no label" in source.unlabelled) == (-1 in labels)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pa.array([0.5, 1, 0]), "column label holds 0.5, which is no class number"),
        (pa.array([[1], [2]]), "column label holds list<element: int64>, not classes"),
        (pa.array([{"a": 1}]), "column label holds struct<a: int64>, not classes"),
        (pa.array([3, 2], pa.date32()), "column label holds date32[day]"),
        (pa.array([-2, 1]), "column label holds -2, which is no class number"),
        (pa.array([10**9, 1]), "column label holds 1000000000, which is no class number"),
        (pa.array([2**63, 1], pa.uint64()), "holds a number above 2^63"),
        (pa.array(["a\nb", "c"]), "holds 'a\\nb', which cannot name a class"),
        (pa.array(["x" * 999, "c"]), "which cannot name a class"),
        (pa.nulls(2), "2 of 2 images have no label"),
        (pa.array([-1, -1]), "2 of 2 images have no label"),
    ],
)
def test_why_a_parquet_file_has_no_labels(values: pa.Array, why: str, tmp_path: Path):
    source = open_source(str(parquet(tmp_path / "a.parquet", values)))
    assert (source.labels, source.classes) == (None, ())
    with pytest.raises(UserError) as caught:
        check_sources(source, source)
    assert why in str(caught.value)


def test_a_parquet_file_without_the_column_says_which_it_has(tmp_path: Path):
    source = open_source(str(parquet(tmp_path / "a.parquet", pa.array([1, 2]), "category")))
    with pytest.raises(UserError, match="no column label or labels; its columns: image, category"):
        check_sources(source, source)


def test_texts_of_several_files_are_numbered_together(tmp_path: Path):
    for name, texts in (("a", ["cow", "ape"]), ("b", ["bee", "cow"]), ("c", [None, None])):
        parquet(tmp_path / f"{name}.parquet", pa.array(texts, pa.string()))
    source = open_source(str(tmp_path))
    assert source.classes == ("ape", "bee", "cow")
    assert source.labels is not None
    assert source.labels.tolist() == [2, 0, 1, 2, -1, -1]


def told(path: Path, labels: pa.Array, *names: str) -> Path:
    """A parquet file that names its numbers as the library datasets does."""
    described = {"info": {"features": {"label": {"names": names}}}} if names else {}
    table = pa.table({"image": pa.array([PNG] * len(labels)), "label": labels})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(described)}), path)
    return path


NAMINGS: dict[str, tuple[list[tuple[list, tuple[str, ...]]], list[int], tuple[str, ...]]] = {
    "the same": ([([0, 1], ("cat", "ape")), ([1], ("cat", "ape"))], [0, 1, 1], ("cat", "ape")),
    "more": ([([0], ("cat",)), ([1], ("cat", "ape"))], [0, 1], ("cat", "ape")),
    "one alone": ([([1, 0], ()), ([1], ("cat", "ape"))], [1, 0, 1], ("cat", "ape")),
    "another order": ([([0, 1], ("cat", "dog")), ([0, -1], ("dog", "cat"))],
                      [0, 1, 1, -1], ("cat", "dog")),
    "others": ([([0, 1], ("dog", "cat")), ([0], ("bee",))], [2, 1, 0], ("bee", "cat", "dog")),
    "truth": ([([True, False], ("no", "yes"))], [1, 0], ("no", "yes")),
    "texts like truth": ([(["true", "false"], ("true", "false"))], [0, 1], ("true", "false")),
    "texts": ([(["dog", "cat"], ("eel", "dog", "cat")), (["dog"], ("eel", "dog", "cat"))],
              [1, 2, 1], ("eel", "dog", "cat")),
}  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "stream:"])
@pytest.mark.parametrize("naming", NAMINGS)
def test_each_files_numbers_have_its_own_names(naming: str, prefix: str, tmp_path: Path):
    files, labels, classes = NAMINGS[naming]
    for number, (values, names) in enumerate(files):
        told(tmp_path / f"{number}.parquet", pa.array(values), *names)
    source = open_source(f"{prefix}{tmp_path}")
    assert source.labels is not None
    assert (source.labels.tolist(), source.classes) == (labels, classes)


def test_many_texts_are_found_among_many_names(tmp_path: Path):
    """By a table: a search for each takes minutes."""
    names = [f"class {i}" for i in range(50_000)]
    texts = burn.open_data(Data(np.array(names[::-1], object), names, len(names)))
    assert texts.labels is not None
    assert texts.labels[:2].tolist() == [49_999, 49_998]


@pytest.mark.parametrize("prefix", ["", "stream:"])
def test_a_number_without_a_name_where_files_name_classes_differently(prefix: str, tmp_path: Path):
    told(tmp_path / "a.parquet", pa.array([0, 1]), "cat", "dog")
    told(tmp_path / "b.parquet", pa.array([0, 2]), "dog", "cat")
    source = open_source(f"{prefix}{tmp_path}")  # which may be learned from
    with pytest.raises(UserError, match="differently, and one that has a label 2 has names for 2"):
        check_sources(source, source)


def test_a_large_text_in_every_row_is_not_expanded(tmp_path: Path):
    """It would take 20 GB."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000), pa.array(["x" * 2**20]))
    table = pa.table({"image": pa.array([PNG] * len(texts)), "label": texts})
    pq.write_table(table, tmp_path / "a.parquet")
    assert open_source(str(tmp_path / "a.parquet")).labels is None


HARD, SOFT = tarfile.LNKTYPE, tarfile.SYMTYPE
LONG = f"{'deep/' * 25}a.png"
TARS: dict[str, tuple[list[tuple[str, Any]], list[int], tuple[str, ...]]] = {
    "images first": (
        [("a.png", PNG), ("b.png", PNG), ("b.cls", b"1"), ("a.cls", b"0")], [0, 1], ("0", "1")
    ),
    "classes first": (
        [("x/b.cls", b"1"), ("x/a.cls", b"0"), ("x/a.png", PNG), ("x/b.png", PNG)],
        [0, 1], ("0", "1"),
    ),
    "dots in names": (
        [("22.05.png", PNG), ("22.05.cls", b"1"), ("22.06.png", PNG), ("22.06.cls", b"0")],
        [1, 0], ("0", "1"),
    ),
    "one class for images apart": (
        [("1.left.png", PNG), ("1.cls", b"7"), ("2.png", PNG), ("2.cls", b"3"),
         ("1.right.png", PNG)], [7, 3, 7], tuple("01234567")
    ),
    "images apart, and their class last": (
        [("1.left.png", PNG), ("2.png", PNG), ("2.cls", b"0"), ("1.right.png", PNG),
         ("1.cls", b"1")], [1, 0, 1], ("0", "1")
    ),
    "dots in any order": (
        [("22.05.png", PNG), ("22.06.png", PNG), ("22.05.cls", b"1"), ("22.06.cls", b"0")],
        [1, 0], ("0", "1"),
    ),
    "several images of a key": (
        [("a.left.png", PNG), ("a.right.png", PNG), ("a.cls", b"1")], [1, 1], ("0", "1")
    ),
    "texts": (
        [("a.png", PNG), ("a.cls", b"dog\n"), ("b.png", PNG), ("b.cls", "Kätzchen".encode())],
        [1, 0], ("Kätzchen", "dog"),
    ),
    "hard links": (
        [("a.png", PNG), ("a.cls", b"1"), ("b.png", (HARD, "a.png")), ("b.cls", (HARD, "a.cls"))],
        [1, 1], ("0", "1"),
    ),
    "links": (
        [("d/a.png", PNG), ("d/a.cls", b"0"), ("d/b.png", (SOFT, "./a.png")), ("d/b.cls", b"1")],
        [0, 1], ("0", "1"),
    ),
    "long names of links": (
        [(LONG, PNG), (LONG[:-3] + "cls", b"0"), ("b.png", (HARD, LONG)), ("b.cls", b"1")],
        [0, 1], ("0", "1"),
    ),
    "floats": (
        [("a.png", PNG), ("a.cls", b"1.0"), ("b.png", PNG), ("b.cls", b"0")], [1, 0], ("0", "1")
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TARS)
@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_labels_of_tars(kind: str, form: int, tmp_path: Path):
    members, labels, classes = TARS[kind]
    source = open_source(f"stream:{tar(tmp_path / 'a.tar', *members, form=form)}")
    assert source.labels is not None
    assert (source.labels.tolist(), source.classes) == (labels, classes)
    images = [name for name, _ in members if name.endswith("png")]
    assert [source.describe(i) for i in range(len(source))] == [
        f"{tmp_path}/a.tar member {name}" for name in images
    ]
    for index in range(len(source)):
        assert source.read(index).shape == (3, 3, 3)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"x", "a .cls member of a.tar holds 'x', which is no class"),
        (b"\xff\0", "a .cls member of a.tar holds '\\ufffd\\x00', which is no class"),
        (b"1.5", "holds '1.5', which is no class"),
        (b"-7", "holds '-7', which is no class"),
        (b"9" * 40, "which is no class"),
        (b"99999999", "holds '99999999', which is no class"),
        (b"", "a.tar member b.png"),
        (b"-1", "a.tar member b.png"),
        (None, "a.tar member b.png"),
    ],
)
def test_one_bad_class_in_a_tar_leaves_the_others(bad: bytes | None, why: str, tmp_path: Path):
    members = [("a.png", PNG), ("a.cls", b"0"), ("b.png", PNG), ("c.png", PNG), ("c.cls", b"1")]
    if bad is not None:
        members.append(("b.cls", bad))
    source = open_source(f"stream:{tar(tmp_path / 'a.tar', *members)}")
    assert source.labels is not None
    assert (source.labels.tolist(), source.classes) == ([0, -1, 1], ("0", "1"))
    with pytest.raises(UserError, match="1 of 3 images have no label") as caught:
        check_sources(source, source)
    assert why in str(caught.value)


def test_a_text_in_a_tar_of_its_own_is_no_class_among_numbers(tmp_path: Path):
    tar(tmp_path / "a.tar", ("a.png", PNG), ("a.cls", b"x"))
    numbers = [("a.png", PNG), ("a.cls", b"1"), ("b.png", PNG), ("b.cls", b"1")]
    tar(tmp_path / "b.tar", *numbers)
    source = open_source(f"stream:{tmp_path}")
    assert source.labels is not None
    assert source.labels.tolist() == [-1, 1, 1]
    assert "'x' is no class number" in source.unlabelled  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("a.png", PNG)], "a.tar has no .cls members"),
        ([("a.png", PNG), ("b.cls", b"1")], "none of its .cls members has the name of an image"),
        ([("a.png", PNG), ("a.cls", b"9" * 12)], "holds '999999999999', which is no class"),
    ],
)
def test_why_a_tar_has_no_labels(members: list[tuple[str, Any]], why: str, tmp_path: Path):
    source = open_source(f"stream:{tar(tmp_path / 'a.tar', *members)}")
    assert source.labels is None
    with pytest.raises(UserError) as caught:
        check_sources(source, source)
    assert why in str(caught.value)


class Data:
    """A data set of six grey images, or as many as its length says."""

    def __init__(self, targets: Any = None, classes: Any = None, length: Any = 6) -> None:
        self.length = length
        if targets is not None:
            self.targets = targets
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full((4, 4, 3), index, np.uint8)


TEXTS = np.array(["dog", "cat", None] * 2, object)


class Broken(Data):
    @property
    def classes(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("two\nlines")


@pytest.mark.parametrize(
    ("data", "labels", "classes"),
    [
        (Data([0, 1, 0, 1, 0, 1]), [0, 1] * 3, ("0", "1")),
        (Data([0, 1, -1, None, 0, 1]), [0, 1, -1, -1, 0, 1], ("0", "1")),
        (Data(torch.tensor([0.0, 1] * 3)), [0, 1] * 3, ("0", "1")),
        (Data([True, False] * 3), [1, 0] * 3, ("false", "true")),
        (Data([True, False] * 3, ["no", "yes"]), [1, 0] * 3, ("no", "yes")),
        (Data([0, 1] * 3, np.array(["x", "y", "z"])), [0, 1] * 3, ("x", "y", "z")),
        (Data(TEXTS), [1, 0, -1] * 2, ("cat", "dog")),
        (Data(TEXTS, ["eel", "dog", "cat"]), [1, 2, -1] * 2, ("eel", "dog", "cat")),
    ],
)
def test_labels_of_data_sets(data: Data, labels: list[int], classes: tuple[str, ...]):
    source = burn.open_data(data)
    assert source.labels is not None
    assert (source.labels.tolist(), source.classes) == (labels, classes)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (Data([[1], [1, 2], [3], [], [1], [2]]), "labels are not one class number"),
        (Data([[1, 2]] * 6), "but int64 (6, 2)"),
        (Data([1, 2]), "but int64 (2,)"),
        (Data(["cat"] * 6), "labels are not one class number"),
        (Data([{"boxes": 1}] * 6), "labels holds struct<boxes: int64>"),
        (Data([object()] * 6), "labels are not one class number"),
        (Data(7), "but int64 ()"),
        (Data([0.5] * 6), "holds 0.5, which is no class number"),
        (Data([-5] * 6), "holds -5, which is no class number"),
        (Data([10**9] * 6), "holds 1000000000, which is no class number"),
        (Data([10**30] * 6), "labels are not one class number"),
        (Data([0, 1] * 3, ["a"]), "names 1 classes, but there is a label 1"),
        (
            Data(TEXTS, ["cat", "eel"]),
            "its labels hold 'dog', which its attribute classes does not",
        ),
        (Data([0, 1] * 3, 5), "its attribute classes is of type int: give a list of names"),
        (Data([0, 1] * 3, "ab"), "of type str"),
        (Data([0, 1] * 3, {"a", "b"}), "of type set"),
        (Data([0, 1] * 3, {"a": 0}), "of type dict"),
        (Broken([0] * 6), "its attribute classes cannot be read: RuntimeError: two lines"),
        (Data(length=-1), "its length cannot be used: ValueError"),
        (Data(length=2.5), "its length cannot be used: TypeError"),
        (Data(length=None), "its length cannot be used: TypeError"),
        (Data(length=2**70), "its length cannot be used: OverflowError"),
    ],
)
def test_data_sets_that_are_refused_in_one_line(data: Data, why: str):
    with pytest.raises(UserError) as caught:
        burn.open_data(data)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


# --- Which classes match. ---


def folders(root: Path, *names: str) -> Source:
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        (root / name / f"{number}.png").write_bytes(PNG)
    return open_source(str(root))


TWELVE = [str(i) for i in range(12)]


@pytest.mark.parametrize("digits", [TWELVE, [f"{i:02}" for i in range(12)]])
def test_folders_named_with_numbers_match_labels_by_name(digits: list[str], tmp_path: Path):
    named = folders(tmp_path / "a", *digits)
    numbered = open_source(str(parquet(tmp_path / "b.parquet", pa.array(range(12)))))
    assert named.labels is not None
    for train, test in ((named, numbered), (numbered, named)):
        first, second = check_sources(train, test)
        assert first.classes == second.classes == train.classes
        assert second.labels is not None
        for index, label in enumerate(second.labels.tolist()):
            true = test.classes[test.labels[index]]  # type: ignore[index]
            assert int(first.classes[label]) == int(true)
        assert len(second) == 12
        assert second.read(3).shape == (3, 3, 3)


def test_the_same_classes_in_another_order_match_by_name():
    train = burn.open_data(Data([0, 1, 2] * 2, ["ape", "bee", "cow"]))
    test = burn.open_data(Data([0, 1, 2, 2, 1, 0], ["cow", "ape", "bee"]))
    _, matched = check_sources(train, test)
    assert matched.labels is not None
    assert matched.labels.tolist() == [2, 0, 1, 1, 0, 2]
    assert matched.classes == train.classes
    assert test.labels is not None
    assert test.labels.tolist() == [0, 1, 2, 2, 1, 0], "the source itself is unchanged"


@pytest.mark.parametrize(
    ("train", "test", "why"),
    [
        ("ab", "abcd", "has classes that .* lacks: c, d"),
        ("abcd", "ab", "lacks classes of .* would not match: c, d"),
        ("012", "02", "classes named 0, 2, which do not match the numbers .* it lacks 1"),
        ("123", "012", "classes named 1, 2, 3, which do not match the numbers .* it lacks 0"),
    ],
)
def test_classes_that_differ_are_named(train: str, test: str, why: str, tmp_path: Path):
    with pytest.raises(UserError, match=why):
        check_sources(folders(tmp_path / "a", *train), folders(tmp_path / "b", *test))
