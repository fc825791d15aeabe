"""Images that text files label: CUB-200-2011, Birdsnap, and lists such as Places205's."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from burn.core.errors import UserError
from burn.core.inputs import open_regular, sha256_of, status_of
from burn.data.base import ImageFiles, Split
from burn.data.fingerprint import digest, file_contents, spread
from burn.data.labels import MOST_CLASSES

LISTS = (".txt", ".csv", ".lst")
# The largest public list, of ImageNet-21k's 14 million images, has a billion bytes.
_MOST_TEXT = 2**31  # bytes
_MOST_LINES = 50_000_000
_LONGEST_LINE = 2**16  # bytes
_MOST_SIZES = 200_000  # looking up a file's size takes microseconds, up to 1 ms over a network
_BESIDE_LIST = (".", "images", "images256", "data/vision/torralba/deeplearning/images256")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")  # all but tab
_ENTRY = re.compile(r"(.*[^\s,])[\s,]+([0-9]{1,9})\s*", re.ASCII)


@dataclass(eq=False, repr=False)
class LabeledFiles(ImageFiles):
    """A source of the images that a text file labels."""

    name: str
    root: Path
    _names: list[str]
    labels: np.ndarray | None
    classes: tuple[str, ...]
    fingerprint: str
    missing: int = 0  # images that are listed but have no file, and are left out

    @property
    def notes(self) -> list[str]:
        return [f"{self.missing:,} images it lists have no file"] if self.missing else []


def is_cub(folder: Path) -> bool:
    names = ("image_class_labels.txt", "train_test_split.txt")
    return any((folder / file).is_file() for file in names)


def read_cub(folder: Path, split: Split) -> LabeledFiles:
    """Read a split of CUB-200-2011; images without a file are left out and counted.

    The unpacked folder has images.txt, image_class_labels.txt, train_test_split.txt, classes.txt
    and images/.
    """
    names_file, labels_file = folder / "images.txt", folder / "image_class_labels.txt"
    split_file, classes_file = folder / "train_test_split.txt", folder / "classes.txt"
    names, labels = _by_id(names_file), _by_id(labels_file)
    is_training, classes = _by_id(split_file), _by_id(classes_file, most=MOST_CLASSES)
    for file, rows in ((labels_file, labels), (split_file, is_training)):
        for key, (line, _) in rows.items():
            if key not in names:
                raise _malformed(file, line, f"image {key} is not in images.txt")
        for key, (line, _) in names.items():
            if key not in rows:
                raise _malformed(names_file, line, f"image {key} is not in {file.name}")
    position = {key: i for i, key in enumerate(sorted(classes))}
    wanted, chosen = "1" if split == "train" else "0", []
    for key, (line, name) in names.items():
        _check_path(names_file, line, name)
        label_line, label = labels[key]
        number = _integer(labels_file, label_line, label, MOST_CLASSES)
        if number not in position:
            raise _malformed(labels_file, label_line, f"class {number} is not in classes.txt")
        part_line, part = is_training[key]
        if part not in ("0", "1"):
            raise _malformed(split_file, part_line, f"{_shown(part)} is neither 0 nor 1")
        if part == wanted:
            chosen.append((name, position[number]))
    ordered = tuple(classes[key][1] for key in position)
    return _with_files(f"{folder}:{split}", folder / "images", chosen, ordered)


def is_birdsnap(folder: Path) -> bool:
    return all((folder / file).is_file() for file in ("species.txt", "images.txt"))


def read_birdsnap(folder: Path, split: Split) -> LabeledFiles:
    """Read a split of Birdsnap 1.1, of the images that its script get_birdsnap.py could download.

    Many can no longer be downloaded: those without a file are left out and counted. The unpacked
    folder has images.txt, species.txt, test_images.txt, and the images below download/images/ or
    images/.
    """
    names_file, species_file = folder / "images.txt", folder / "species.txt"
    tests_file = folder / "test_images.txt"
    species: dict[int, str] = {}
    for line, (text, common) in _table(species_file, "id", "common"):
        key = _integer(species_file, line, text, MOST_CLASSES)
        if key in species:
            raise _malformed(species_file, line, f"id {key} occurs twice")
        species[key] = common
    position = {key: i for i, key in enumerate(sorted(species))}
    labels: dict[str, int] = {}
    for line, (name, text) in _table(names_file, "path", "species_id"):
        _check_path(names_file, line, name)
        if name in labels:
            raise _malformed(names_file, line, f"path {_shown(name)} occurs twice")
        key = _integer(names_file, line, text, MOST_CLASSES)
        if key not in position:
            raise _malformed(names_file, line, f"species {key} is not in species.txt")
        labels[name] = position[key]
    tests: set[str] = set()
    for line, (name,) in _table(tests_file, "path"):
        if name not in labels:
            raise _malformed(tests_file, line, f"{_shown(name)} is not in images.txt")
        if name in tests:
            raise _malformed(tests_file, line, f"path {_shown(name)} occurs twice")
        tests.add(name)
    chosen = [entry for entry in labels.items() if (entry[0] in tests) == (split == "test")]
    ordered = tuple(species[key] for key in position)
    root = folder / "download" / "images"
    root = root if root.is_dir() else folder / "images"
    return _with_files(f"{folder}:{split}", root, chosen, ordered)


def read_list(file: Path) -> LabeledFiles:
    """Read a list of labelled images, such as Places205's train_places205.csv.

    A line is `path label` or `path,label`. A path may contain spaces; a label is in 0 … 99,999, and
    the classes are named by these numbers. Paths are relative to the list's folder, to its parent,
    or to images/, images256/ or data/vision/torralba/deeplearning/images256/ below these, whichever
    contains the first listed file. Images whose file is missing stay in the list. The fingerprint
    depends on the list's text and the files, of which at most 200,000 are looked at.
    """
    names: list[str] = []
    labels: list[int] = []
    first = 0
    for line, text in _lines(file):
        entry = _ENTRY.fullmatch(text)
        if entry is None or (label := int(entry[2])) >= MOST_CLASSES:
            what = f"{_shown(text)} is not a path and a label in 0 … {MOST_CLASSES - 1}"
            raise _malformed(file, line, what)
        _check_path(file, line, entry[1])
        names.append(entry[1])
        labels.append(label)
        first = first or line
    if not names:
        raise UserError(f"{file} is empty: give lines of a path and a label")
    folder = file.parent.resolve()
    roots = [base / below for base in (folder, folder.parent) for below in _BESIDE_LIST]
    root = next((root for root in roots if _size(root, names[0]) is not None), None)
    if root is None:
        places = ", ".join(f"{below}/" for below in _BESIDE_LIST[1:])
        where = f"{folder} and {folder.parent}, nor in {places} below these"
        raise _malformed(file, first, f"there is no file {_shown(names[0])} in {where}")
    text = sha256_of(file)
    looked_at = [names[i] for i in spread(len(names), _MOST_SIZES)]
    content = file_contents([(root / name, _size(root, name) or 0) for name in looked_at])
    classes = tuple(str(i) for i in range(max(labels) + 1))
    numbers = np.array(labels, dtype=np.int64)
    return LabeledFiles(str(file), root, names, numbers, classes, digest(text, content))


def _with_files(
    name: str, root: Path, listed: list[tuple[str, int]], classes: tuple[str, ...]
) -> LabeledFiles:
    """Return a source of those images, (path, label) each, that have a file."""
    if not listed:
        raise UserError(f"{name} lists no image")
    present = [(*one, size) for one in listed if (size := _size(root, one[0])) is not None]
    if not present:
        raise UserError(f"{root} holds none of the {len(listed)} images that {name} lists")
    names, labels, sizes = map(list, zip(*present, strict=True))
    numbers = np.array(labels, dtype=np.int64)
    content = file_contents([(root / name, size) for name, size in zip(names, sizes, strict=True)])
    fingerprint = digest(*names, numbers.tobytes(), content)
    missing = len(listed) - len(present)
    return LabeledFiles(name, root, names, numbers, classes, fingerprint, missing)


def _size(root: Path, name: str) -> int | None:
    """Return the size of a regular file in bytes, or None if there is none."""
    try:
        info = (root / name).stat()
    except OSError:
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not blank."""
    if status_of(file) is None:
        raise UserError(f"{file} is missing")
    try:
        with open_regular(file, _MOST_TEXT) as opened:
            # Lines are limited in length: the zeros of a sparse file must not be read as one line.
            lines = iter(lambda: opened.readline(_LONGEST_LINE), b"")
            for line, encoded in enumerate(lines, 1):
                if len(encoded) == _LONGEST_LINE:
                    raise _malformed(file, line, f"longer than {_LONGEST_LINE:,} bytes")
                if line > _MOST_LINES:
                    raise UserError(f"{file} has more than {_MOST_LINES:,} lines")
                try:
                    text = encoded.decode("utf-8-sig" if line == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise _malformed(file, line, "not text in UTF-8") from error
                if _CONTROL.search(text):
                    raise _malformed(file, line, "a control character in the text")
                if text and not text.isspace():
                    yield line, text
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error


def _by_id(file: Path, most: int = 10**9) -> dict[int, tuple[int, str]]:
    """Read a file of CUB, with columns `id value`, as {id: (number of the line, value)}."""
    rows: dict[int, tuple[int, str]] = {}
    for line, text in _lines(file):
        key, *value = text.split(None, 1)
        if not value:
            raise _malformed(file, line, f"{_shown(text)} is not two columns")
        number = _integer(file, line, key, most)
        if number in rows:
            raise _malformed(file, line, f"id {number} occurs twice")
        rows[number] = line, value[0].rstrip()
    if not rows:
        raise UserError(f"{file} is empty")
    return rows


def _table(file: Path, *columns: str) -> Iterator[tuple[int, list[str]]]:
    """Read a tab-separated table of Birdsnap; yield a line's number and its cells in `columns`."""
    rows = _lines(file)
    line, text = next(rows, (0, ""))
    header = text.split("\t")
    if not line:
        raise UserError(f"{file} is empty")
    for column in columns:
        if header.count(column) != 1:
            raise _malformed(file, line, f"the header must have exactly one column {column}")
    chosen = [header.index(column) for column in columns]
    for line, text in rows:
        cells = text.split("\t")
        if len(cells) != len(header):
            raise _malformed(file, line, f"{len(cells)} columns, but {len(header)} in the header")
        yield line, [cells[i] for i in chosen]


def _integer(file: Path, line: int, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > most:
        raise _malformed(file, line, f"{_shown(text)} is not an integer in 0 … {most}")
    return int(text)


def _check_path(file: Path, line: int, name: str) -> None:
    up = ".." in name and ".." in re.split(r"[/\\]", name)
    if not name or name[0] in "/\\" or up:
        raise _malformed(file, line, f"{_shown(name)} is not a path below the images' folder")


def _malformed(file: Path, line: int, what: str) -> UserError:
    return UserError(f"{file} line {line}: {what}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")
