"""Where images come from: a source gives undecorated uint8 images by position.

`open_source` understands a folder of images at any depth, class folders, parquet with encoded
images, torchvision's CIFAR folders, CUB-200-2011, Birdsnap, lists of files and labels, and the
built-in digits.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from torch import Tensor

from burn.core.errors import UserError
from burn.core.inputs import list_folder, require_regular, status_of
from burn.core.paths import expand
from burn.data.builtin.digits import Digits, Split
from burn.data.decode import FORMATS as FORMATS
from burn.data.decode import UnreadableImage, check_bytes, decode, read_image
from burn.data.formats.cifar import Cifar
from burn.data.formats.labeled import (
    LISTS,
    MOST_CLASSES,
    Listing,
    digest,
    is_birdsnap,
    is_cub,
    read_birdsnap,
    read_cub,
    read_list,
)
from burn.data.formats.parquet import Budget, images_in, opened, read_labels
from burn.data.formats.walk import walk

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")
# Formats of photographs and pictures that are not read, by extension.
UNREAD_EXTENSIONS = (
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".svg",
    ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2",
)  # fmt: skip
_CIFAR_FOLDERS = ("cifar-10-batches-py", "cifar-100-python")
_MOST_TRIED = 1000  # images, before a source is taken for one without any
_HELD_OUT = ("test", "val", "valid", "validation")


class Source(Protocol):
    """Images by position, and their labels where there are any.

    labels: int64 (images,) or None. fingerprint: changes when the images do (names and sizes, not
    every byte). `read` returns uint8 (3, height, width) or raises UnreadableImage.
    """

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray | None
    fingerprint: str

    def __len__(self) -> int: ...
    def read(self, index: int) -> Tensor: ...
    def describe(self, index: int) -> str: ...


def open_source(spec: str, split: Split = "train") -> Source:
    """The images that `spec` names.

    spec: `digits`; `digit-scenes`, without labels; `stream:PATH`, as `open_shards` takes PATH, for
    shards that are read where they lie; a parquet file or a folder of them (column
    `image` or `img`: bytes or {bytes, path}; optional integer column `label` or `fine_label`);
    CIFAR's python batches, CUB-200-2011 or Birdsnap, or the folder they were unpacked in; a list,
    .txt, .csv or .lst, of lines `path label`; a folder of images.

    `split` chooses between train and test where the source itself has both: digits, CIFAR, CUB,
    Birdsnap, and what names its parts. These are a folder that holds no image and no subfolders but
    `train` and one or more of `test`, `val`, `valid`, `validation` (the first of them is the test),
    and a folder of shards `train-….parquet` and `test-….parquet` (or another of these words). A
    suffix `:train` or `:test` does the same by hand. Raises UserError where nothing is usable.
    """
    for suffix in ("train", "test"):
        if spec.endswith(f":{suffix}") and not Path(spec).exists():
            spec, split = spec.removesuffix(f":{suffix}"), suffix
    if spec.startswith("stream:"):
        from burn.data.formats.shards import open_shards  # which itself needs this module

        return open_shards(spec.removeprefix("stream:"), split)
    if spec == "digits":
        return Digits(split)
    if spec == "digit-scenes":
        from burn.data.formats.voc import open_voc  # which itself needs this module

        return open_voc(spec, split)
    path = expand(spec)
    found = status_of(path)
    if found is None:
        raise UserError(f"no data at {spec}: give a folder of images, a parquet file, or digits")
    if stat.S_ISDIR(found.st_mode):
        list_folder(path)  # an error where it cannot be read, which globbing would take for empty
    elif not stat.S_ISREG(found.st_mode):
        raise UserError(f"{spec} is neither a folder nor a regular file (a pipe or a device)")
    if path.is_file():
        if path.suffix in LISTS:
            return LabeledFiles(read_list(path))
        if path.suffix == ".tar":
            raise UserError(f"{spec} is a tar of images: give stream:{spec}")
        if path.suffix != ".parquet":
            raise UserError(f"{spec} is neither a folder, a .parquet file nor a list of images")
        return Parquet([path], spec)
    cifar = [
        folder
        for folder in (path, *(path / name for name in _CIFAR_FOLDERS))
        if (folder / "batches.meta").is_file() or (folder / "meta").is_file()
    ]
    if len(cifar) > 1:
        names = " and ".join(folder.name for folder in cifar)
        raise UserError(f"{spec} holds both {names}: give one of them")
    if cifar:
        return Cifar(cifar[0], split)
    for folder in (path, path / "CUB_200_2011"):
        if is_cub(folder):
            return LabeledFiles(read_cub(folder, split))
    for folder in (path, path / "birdsnap"):
        if is_birdsnap(folder):
            return LabeledFiles(read_birdsnap(folder, split))
    if part := _part_folder(path, split):
        path, spec = part, str(part)
    if shards := sorted(path.glob("*.parquet")):
        words = {shard: shard.stem.partition("-")[0] for shard in shards}
        if word := named_part(words.values(), split):
            return Parquet([s for s in shards if words[s] == word], f"{spec}:{word}")
        return Parquet(shards, spec)
    if any(path.glob("*.tar")):
        raise UserError(f"{spec} holds tars of images: give stream:{spec}")
    return Folder(path)


def named_part(words: Collection[str], split: Split) -> str | None:
    """The word that names the split, where both are named."""
    held_out = next((word for word in _HELD_OUT if word in words), None)
    if held_out is None or "train" not in words:
        return None
    return "train" if split == "train" else held_out


def _part_folder(path: Path, split: Split) -> Path | None:
    """train/, or test/ and the like, where nothing else lies beside them."""
    _, subfolders, files = next(os.walk(path), ("", [], []))
    subfolders = [name for name in subfolders if not name.startswith(".")]
    loose = any(name.lower().endswith((*EXTENSIONS, ".parquet")) for name in files)
    if loose or not {"train", *_HELD_OUT}.issuperset(subfolders):
        return None
    word = named_part(subfolders, split)
    return path / word if word else None


def require_readable(source: Source, at_least: int = 1) -> None:
    """Raise UserError unless so many images can be decoded; stops reading as soon as they are.

    The first images are tried, and where those cannot be read some thousand all over the source.
    """
    tried = readable = 0
    reason = ""
    for some, indices in _samples(source, at_least):
        tried, readable = len(indices), 0
        for index in indices:
            try:
                some.read(index)
            except UnreadableImage as error:
                reason = reason or f": {error}"
                continue
            readable += 1
            if readable == at_least:
                return
    found = "none" if not readable else f"only {readable}"
    of = f"the {tried:,} tried of {len(source):,}" if tried < len(source) else f"its {tried:,}"
    raise UserError(f"{source.name}: {found} of {of} images can be read{reason}")


def _samples(source: Source, at_least: int) -> Iterator[tuple[Source, Sequence[int]]]:
    """A source's first images, and then more of them: sources, and positions in these."""
    count, more = len(source), max(_MOST_TRIED, at_least)
    yield source, range(min(count, at_least + 8))
    if isinstance(source, _HasSample):  # one by one, images of shards are slow to reach
        some = source.sample(more)
        yield some, range(len(some))
    elif count > more:
        yield source, [index * count // more for index in range(more)]
    else:
        yield source, range(count)


@runtime_checkable
class _HasSample(Protocol):
    def sample(self, count: int) -> Source: ...


class _Files:
    """Image files, by their names below a folder."""

    _path: Path
    _names: list[str]

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> Tensor:
        file = self._path / self._names[index]
        return decode(read_image(file), str(file))

    def describe(self, index: int) -> str:
        return str(self._path / self._names[index])


def require_outside(out: Path, *sources: Source) -> None:
    """Raise UserError where a folder to write into lies in a folder of images.

    The pictures that are written there would be images of it from then on.
    """
    for source in sources:
        if isinstance(source, Folder) and out.resolve().is_relative_to(source.root.resolve()):
            raise UserError(
                f"--out {out} lies in the folder of images {source.root}, which would then hold "
                "the pictures that are written: give an --out elsewhere"
            )


class Folder(_Files):
    """Images below a folder, at any depth.

    Where every image lies exactly one folder down, and there are two such folders or more, those
    folders are the classes; otherwise there are no labels.

    root: the folder. skipped: how many other files lie there, by lower-case extension ("" without
    one), hidden ones left out.
    """

    def __init__(self, path: Path) -> None:
        self.root = path
        found: list[tuple[str, int]] = []
        self.skipped: Counter[str] = Counter()
        for folder, _, files in walk(path):
            for file in files:
                if file.startswith("."):
                    continue
                if not file.lower().endswith(EXTENSIONS):
                    self.skipped[Path(file).suffix.lower()] += 1
                else:
                    full = Path(folder, file)
                    # a dangling link counts as an image that cannot be read
                    size = full.stat().st_size if full.exists() else 0
                    if full.exists() and not full.is_file():
                        continue  # a pipe or a device would block
                    found.append((full.relative_to(path).as_posix(), size))
        if not found:
            unread = skipped_files(self.skipped, others=False)
            raise UserError(
                f"{path} holds no image ({', '.join(e[1:] for e in EXTENSIONS)})"
                + (f", but {unread}" if unread else "")
            )
        self.name = str(path)
        self._path = path
        self._names = [name for name, _ in found]
        self.fingerprint = digest([f"{name} {size}" for name, size in found])
        parents = [name.split("/") for name in self._names]
        folders = sorted({parts[0] for parts in parents})
        self.classes: tuple[str, ...] = ()
        self.labels: np.ndarray | None = None
        if all(len(parts) == 2 for parts in parents) and len(folders) > 1:
            position = {name: i for i, name in enumerate(folders)}
            self.classes = tuple(folders)
            self.labels = np.array([position[parts[0]] for parts in parents], dtype=np.int64)


def skipped_files(counts: Mapping[str, int], *, others: bool = True) -> str:
    """What a folder holds besides its images, in words; "" for nothing.

    counts: files by extension. others: name files that are no pictures, too.
    """
    unread = sorted((e for e in counts if e in UNREAD_EXTENSIONS), key=lambda e: (-counts[e], e))
    parts = []
    if unread:
        named = ", ".join(f"{counts[e]:,} {e[1:].upper()}" for e in unread[:4])
        more = sum(counts[e] for e in unread[4:])
        named += f", {more:,} in other formats" if more else ""
        parts.append(f"{named} (not read: convert them to JPEG or PNG)")
    rest = sum(counts.values()) - sum(counts[e] for e in unread)
    if rest and others:
        parts.append(f"{rest:,} other file{'s' if rest > 1 else ''}")
    return ", ".join(parts)


class LabeledFiles(_Files):
    """The images of a listing; `missing` counts those that it left out for want of a file."""

    def __init__(self, listing: Listing) -> None:
        self.name, self.fingerprint = listing.name, listing.fingerprint
        self.classes, self.missing = listing.classes, listing.missing
        self.labels: np.ndarray | None = listing.labels
        self._path, self._names = listing.root, listing.names


class Parquet:
    """Encoded images in parquet files, held in memory as they are stored.

    The classes are those that Hugging Face's description in the files names, otherwise numbers.
    """

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        sizes = [require_regular(path) for path in paths]
        budget = Budget(name, sum(sizes))
        tables, names = zip(*(self._read(path, budget) for path in paths), strict=True)
        if len({tuple(table.column_names) for table in tables}) > 1:
            raise UserError(f"{name}: only some of its files have a column label")
        table = pa.concat_tables(tables)
        if not len(table):
            raise UserError(f"{name} holds no rows")
        self.name = name
        self._images = table["image"]
        if self._images.null_count == len(table):
            raise UserError(f"{name} holds no image: all {len(table):,} values are missing")
        entries = zip(paths, sizes, tables, strict=True)
        self.fingerprint = digest([f"{p.name} {size} {len(t)}" for p, size, t in entries])
        self.labels: np.ndarray | None = None
        self.classes: tuple[str, ...] = ()
        if "label" in table.column_names:
            labels = table["label"].to_numpy().copy()  # Arrow's own memory is not writable
            if labels.min() < 0:
                raise UserError(f"{name}: column label holds negative values")
            if labels.max() >= MOST_CLASSES:
                return  # numbers of rows or hashes, not classes
            self.labels = labels
            numbers = tuple(str(i) for i in range(int(labels.max()) + 1))
            self.classes = names[0] if len(names[0]) >= len(numbers) else numbers

    @staticmethod
    def _read(path: Path, budget: Budget) -> tuple[pa.Table, tuple[str, ...]]:
        """Columns image and, where there is one, label; the classes' names, if they are told."""
        chunks: list[pa.Array] = []
        with opened(path) as (file, columns):
            for group in range(file.metadata.num_row_groups):
                for images in images_in(path, file, columns, group):
                    budget.spend(images.nbytes)
                    chunks.append(images.cast(pa.large_binary()))
            labels = read_labels(path, file, columns)
            image = pa.chunked_array(chunks, pa.large_binary())
            table = {"image": image} if labels is None else {"image": image, "label": labels}
            return pa.table(table), columns.class_names

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int) -> Tensor:
        buffer = self._images[index].as_buffer()
        if buffer is None or buffer.size == 0:
            raise UnreadableImage(f"{self.describe(index)}: no bytes")
        check_bytes(buffer.size, self.describe(index))
        return decode(buffer.to_pybytes(), self.describe(index))

    def describe(self, index: int) -> str:
        return f"{self.name} row {index}"
