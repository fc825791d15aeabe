"""Where images come from: a source gives undecorated uint8 images by position.

`open_source` understands a folder of images at any depth, class folders, parquet with encoded
images, torchvision's CIFAR folders, and the built-in digits.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageOps
from torch import Tensor

from burn.data.cifar import Cifar
from burn.data.digits import Digits, Split
from burn.errors import UserError

_MOST_CLASSES = 100_000
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif")
_CIFAR_FOLDERS = ("cifar-10-batches-py", "cifar-100-python")


class UnreadableImage(Exception):
    """One image of a source cannot be decoded; the message names it and says why."""


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

    spec: `digits`; a parquet file or a folder of them (column `image`: bytes or {bytes, path};
    optional integer column `label`); a folder with CIFAR's python batches; a folder of images.
    `split` chooses between train and test where the source itself has both (digits, CIFAR); a
    suffix `:train` or `:test` does the same by hand. Raises UserError where nothing is usable.
    """
    for suffix in ("train", "test"):
        if spec.endswith(f":{suffix}") and not Path(spec).exists():
            spec, split = spec.removesuffix(f":{suffix}"), suffix
    if spec == "digits":
        return Digits(split)
    path = expand(spec)
    if not path.exists():
        raise UserError(f"no data at {spec}: give a folder of images, a parquet file, or digits")
    if path.is_file():
        if path.suffix != ".parquet":
            raise UserError(f"{spec} is neither a folder nor a .parquet file")
        return Parquet([path], spec)
    for folder in (path, *(path / name for name in _CIFAR_FOLDERS)):
        if (folder / "batches.meta").is_file() or (folder / "meta").is_file():
            return Cifar(folder, split)
    if shards := sorted(path.glob("*.parquet")):
        return Parquet(shards, spec)
    return Folder(path)


def expand(spec: str) -> Path:
    """A path with ~ replaced. Raises UserError for the home of nobody."""
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise UserError(f"{spec}: there is no such home folder") from error


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


def decode(encoded: bytes, name: str) -> Tensor:
    """Encoded bytes -> uint8 (3, height, width), EXIF rotation applied; a film's first frame.

    Raises UnreadableImage for what Pillow cannot decode to its end.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks about odd but readable files
            opened = Image.open(io.BytesIO(encoded))
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I"):  # 16 bits, which convert() would clip
                array = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
                image = Image.fromarray(array)
            pixels = np.array(image.convert("RGB"))
    except _PILLOW_ERRORS as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        reason = "not an image" if "BytesIO" in reason else reason
        raise UnreadableImage(f"{name}: {reason}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


# What Pillow's decoders raise on damaged files of one format or another.
_PILLOW_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


class Folder:
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
        self.fingerprint = _digest([f"{name} {size}" for name, size in found])
        parents = [name.split("/") for name in self._names]
        folders = sorted({parts[0] for parts in parents})
        self.classes: tuple[str, ...] = ()
        self.labels: np.ndarray | None = None
        if all(len(parts) == 2 for parts in parents) and len(folders) > 1:
            position = {name: i for i, name in enumerate(folders)}
            self.classes = tuple(folders)
            self.labels = np.array([position[parts[0]] for parts in parents], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> Tensor:
        file = self._path / self._names[index]
        try:
            encoded = file.read_bytes()
        except OSError as error:
            raise UnreadableImage(f"{file}: {error.strerror}") from error
        return decode(encoded, str(file))

    def describe(self, index: int) -> str:
        return str(self._path / self._names[index])


class Parquet:
    """Encoded images in parquet files, held in memory as they are stored."""

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        tables = [self._read(path) for path in paths]
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
        self.fingerprint = _digest(sizes)
        self.labels: np.ndarray | None = None
        self.classes: tuple[str, ...] = ()
        if "label" in table.column_names:
            if table["label"].null_count:
                raise UserError(f"{name}: column label has missing values")
            labels = table["label"].to_numpy().astype(np.int64)
            if labels.min() < 0:
                raise UserError(f"{name}: column label holds negative values")
            if labels.max() >= _MOST_CLASSES:
                return  # numbers of rows or hashes, not classes
            self.labels = labels
            self.classes = tuple(str(i) for i in range(int(labels.max()) + 1))

    @staticmethod
    def _read(path: Path) -> pa.Table:
        try:
            file = pq.ParquetFile(path)
            schema = file.schema_arrow
            if schema.names.count("image") > 1 or schema.names.count("label") > 1:
                raise UserError(f"{path} has two columns of one name")
            if "image" not in schema.names:
                raise UserError(
                    f"{path} has no column image; its columns: {', '.join(schema.names)}"
                )
            columns = ["image"]
            if "label" in schema.names and pa.types.is_integer(schema.field("label").type):
                columns.append("label")
            table = file.read(columns)
            labels = {"label": table["label"].cast(pa.int64())} if "label" in columns else {}
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} is not a readable parquet file: {reason}") from error
        image = table["image"]
        if pa.types.is_struct(image.type):
            if image.type.get_field_index("bytes") < 0:
                raise UserError(f"{path}: column image has no field bytes")
            kind = image.type.field("bytes").type
            image = pa.chunked_array([chunk.field("bytes") for chunk in image.chunks], kind)
        if not (pa.types.is_binary(image.type) or pa.types.is_large_binary(image.type)):
            raise UserError(f"{path}: column image holds {image.type}, not encoded bytes")
        image = image.cast(pa.large_binary())
        return pa.table({"image": image, **labels})

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int) -> Tensor:
        buffer = self._images[index].as_buffer()
        if buffer is None or buffer.size == 0:
            raise UnreadableImage(f"{self.describe(index)}: no bytes")
        return decode(buffer.to_pybytes(), self.describe(index))

    def describe(self, index: int) -> str:
        return f"{self.name} row {index}"
