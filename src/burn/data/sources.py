"""Where images come from: a source gives undecorated uint8 images by position.

`open_source` understands a folder of images at any depth, class folders, parquet with encoded
images, torchvision's CIFAR folders, CUB-200-2011, Birdsnap, lists of files and labels, and the
built-in digits.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from burn.data.cifar import Cifar
from burn.data.decode import FORMATS as FORMATS
from burn.data.decode import UnreadableImage, check_bytes, decode
from burn.data.digits import Digits, Split
from burn.data.labeled import (
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
from burn.errors import UserError
from burn.files import expand

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif")
_CIFAR_FOLDERS = ("cifar-10-batches-py", "cifar-100-python")
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
        from burn.data.shards import open_shards  # which itself needs this module

        return open_shards(spec.removeprefix("stream:"), split)
    if spec == "digits":
        return Digits(split)
    if spec == "digit-scenes":
        from burn.data.voc import open_voc  # which itself needs this module

        return open_voc(spec, split)
    path = expand(spec)
    if not path.exists():
        raise UserError(f"no data at {spec}: give a folder of images, a parquet file, or digits")
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
    """Raise UserError unless so many images can be decoded; stops reading as soon as they are."""
    readable = 0
    for index in range(len(source)):
        try:
            source.read(index)
        except UnreadableImage:
            continue
        readable += 1
        if readable == at_least:
            return
    found = "none" if not readable else f"only {readable}"
    raise UserError(f"{source.name}: {found} of its {len(source)} images can be read")


class _Files:
    """Image files, by their names below a folder."""

    _path: Path
    _names: list[str]

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> Tensor:
        file = self._path / self._names[index]
        try:
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe or a device would block
                raise UnreadableImage(f"{file}: not a file")
            check_bytes(status.st_size, str(file))
            encoded = file.read_bytes()
        except OSError as error:
            raise UnreadableImage(f"{file}: {error.strerror}") from error
        return decode(encoded, str(file))

    def describe(self, index: int) -> str:
        return str(self._path / self._names[index])


class Folder(_Files):
    """Images below a folder, at any depth.

    Where every image lies exactly one folder down, and there are two such folders or more, those
    folders are the classes; otherwise there are no labels.
    """

    def __init__(self, path: Path) -> None:
        found: list[tuple[str, int]] = []
        for folder, subfolders, files in os.walk(path):
            subfolders.sort()
            for file in sorted(files):
                if file.lower().endswith(EXTENSIONS) and not file.startswith("."):
                    full = Path(folder, file)
                    # a dangling link counts as an image that cannot be read
                    size = full.stat().st_size if full.exists() else 0
                    if full.exists() and not full.is_file():
                        continue  # a pipe or a device would block
                    found.append((full.relative_to(path).as_posix(), size))
        if not found:
            raise UserError(f"{path} holds no image ({', '.join(e[1:] for e in EXTENSIONS)})")
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


class LabeledFiles(_Files):
    """The images of a listing; `missing` counts those that it left out for want of a file."""

    def __init__(self, listing: Listing) -> None:
        self.name, self.fingerprint = listing.name, listing.fingerprint
        self.classes, self.missing = listing.classes, listing.missing
        self.labels: np.ndarray | None = listing.labels
        self._path, self._names = listing.root, listing.names


_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "fine_label")


def image_column_of(schema: pa.Schema, path: Path) -> tuple[str, bool]:
    """Name of a parquet file's column of encoded images, and whether it is {bytes, path}.

    Raises UserError where there is none.
    """
    for column in (*_IMAGE_COLUMNS, *_LABEL_COLUMNS):
        if schema.names.count(column) > 1:
            raise UserError(f"{path} has two columns {column}")
    column = next((c for c in _IMAGE_COLUMNS if c in schema.names), None)
    if column is None:
        raise UserError(f"{path} has no column image; its columns: {', '.join(schema.names)}")
    kind = schema.field(column).type
    in_struct = pa.types.is_struct(kind)
    if in_struct:
        if kind.get_field_index("bytes") < 0:
            raise UserError(f"{path}: column {column} has no field bytes")
        kind = kind.field("bytes").type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UserError(f"{path}: column {column} holds {kind}, not encoded bytes")
    return column, in_struct


def label_column_of(schema: pa.Schema) -> str | None:
    """Name of its column of labels: of whole numbers, or there is none."""
    column = next((c for c in _LABEL_COLUMNS if c in schema.names), None)
    return column if column and pa.types.is_integer(schema.field(column).type) else None


def class_names_of(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """What Hugging Face's datasets wrote beside the schema; () for anything unexpected."""
    try:
        described = json.loads(schema.metadata[b"huggingface"])
        names = described["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    if not isinstance(names, list) or len(names) > MOST_CLASSES:
        return ()
    plain = all(isinstance(name, str) and name.isprintable() for name in names)
    return tuple(names) if plain else ()


class Parquet:
    """Encoded images in parquet files, held in memory as they are stored.

    The classes are those that Hugging Face's description in the files names, otherwise numbers.
    """

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        tables, names = zip(*(self._read(path) for path in paths), strict=True)
        if len({tuple(table.column_names) for table in tables}) > 1:
            raise UserError(f"{name}: only some of its files have a column label")
        table = pa.concat_tables(tables)
        if not len(table):
            raise UserError(f"{name} holds no rows")
        self.name = name
        self._images = table["image"]
        sizes = [
            f"{p.name} {p.stat().st_size} {len(t)}" for p, t in zip(paths, tables, strict=True)
        ]
        self.fingerprint = digest(sizes)
        self.labels: np.ndarray | None = None
        self.classes: tuple[str, ...] = ()
        if "label" in table.column_names:
            if table["label"].null_count:
                raise UserError(f"{name}: column label has missing values")
            labels = table["label"].to_numpy().astype(np.int64)
            if labels.min() < 0:
                raise UserError(f"{name}: column label holds negative values")
            if labels.max() >= MOST_CLASSES:
                return  # numbers of rows or hashes, not classes
            self.labels = labels
            numbers = tuple(str(i) for i in range(int(labels.max()) + 1))
            self.classes = names[0] if len(names[0]) >= len(numbers) else numbers

    @staticmethod
    def _read(path: Path) -> tuple[pa.Table, tuple[str, ...]]:
        """Columns image and, where there is one, label; the classes' names, if they are told."""
        try:
            file = pq.ParquetFile(path)
            schema = file.schema_arrow
            image_column, in_struct = image_column_of(schema, path)
            label_column = label_column_of(schema)
            table = file.read([image_column, *([label_column] if label_column else [])])
            labels = {"label": table[label_column].cast(pa.int64())} if label_column else {}
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} is not a readable parquet file: {reason}") from error
        image = table[image_column]
        if in_struct:
            kind = image.type.field("bytes").type
            image = pa.chunked_array([chunk.field("bytes") for chunk in image.chunks], kind)
        image = image.cast(pa.large_binary())
        names = class_names_of(schema, label_column) if label_column else ()
        return pa.table({"image": image, **labels}), names

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
