"""Parquet files of encoded images, with limits on how much memory they may expand to.

A parquet file of some kilobytes can expand to gigabytes: rows that are null, one value that a
dictionary repeats, pages that decompress to a thousand times their size. The sizes that a file
declares are compared with its own before anything is decoded, and images are decoded in batches
that take little memory even if every image is as large as the largest page.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from burn.core.errors import UserError, listed, shortened
from burn.core.inputs import open_regular, require_regular
from burn.data.base import PixelSource
from burn.data.decode import UnreadableImage, check_bytes, decode_pixels
from burn.data.fingerprint import digest, file_contents
from burn.data.labels import MOST_CLASSES, Labels, NoLabels, joined_labels, labels_of

_MOST_ROWS = 2**20  # of a file with fewer bytes than rows
# Parquet hardly compresses JPEGs; it compresses bitmaps or PNGs of few colours several times.
_MOST_EXPANSION = 20  # times the size of a file
_LEAST_LIMIT = 2**28  # bytes, which are harmless for a file of any size
_BATCH_BYTES = 2**26  # of a batch, if each of its values were as large as a page
_BATCH_ROWS = 2**16
_HEADER_BYTES = 2**16  # of a page; statistics take most of it


class Budget:
    """A limit, by the size of some files in bytes, on the memory of all of their images."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self.limit = self._left = max(_LEAST_LIMIT, _MOST_EXPANSION * size)

    def spend(self, count: int) -> None:
        """Take `count` bytes, or give them back if negative; UserError if too few are left."""
        self._left -= count
        if self._left < 0:
            raise UserError(
                f"{self._name}: its images expand to more than {self.limit:,} bytes, too much for "
                "the size of its files"
            )


@dataclass(frozen=True)
class Columns:
    """The columns of a parquet file that are read."""

    image: str
    in_struct: bool  # whether `image` holds {bytes, path} instead of bytes
    label: str | None
    class_names: tuple[str, ...]  # empty if the file does not name its classes

    @property
    def image_leaf(self) -> str:
        """Path of the column that holds the bytes of the images."""
        return f"{self.image}.bytes" if self.in_struct else self.image


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[pq.ParquetFile, Columns]]:
    """Open a parquet file after checking the sizes that it declares, and find the columns to read.

    Errors of pyarrow inside the `with` block become a UserError that names the file. So does a file
    that is not regular, is damaged, lacks a column of images, or declares more rows or bytes than a
    file of its size can hold.
    """
    size = require_regular(path)
    try:
        # Absolute: of a relative path, pyarrow would take a colon for the end of a scheme.
        # With a buffer, pages are read one by one (most hold up to 1,024 images); without, a row
        # group is read as a whole.
        with pq.ParquetFile(path.absolute(), buffer_size=1 << 18, pre_buffer=False) as file:
            schema = file.schema_arrow
            image, in_struct = image_column_of(schema, path)
            label = next((c for c in _LABEL_COLUMNS if c in schema.names), None)
            names = class_names_of(schema, label) if label else ()
            columns = Columns(image, in_struct, label, names)
            _require_plausible(path, size, file.metadata, columns)
            yield file, columns
    except UnicodeError as error:
        raise UserError(
            f"{path} cannot be read: its own name or that of a column is not UTF-8"
        ) from error
    except (pa.ArrowException, OSError, MemoryError) as error:
        reason = str(error).strip().partition("\n")[0][:100] or type(error).__name__
        raise UserError(f"{path} is not a readable parquet file: {reason}") from error


def images_in(
    path: Path, file: pq.ParquetFile, columns: Columns, group: int, most_rows: int = _BATCH_ROWS
) -> Iterator[pa.Array]:
    """Yield the encoded images of a row group in order, as binary arrays of `most_rows` at most."""
    page = _largest_page(path, file.metadata.row_group(group), columns)
    rows = max(1, min(_BATCH_ROWS, most_rows, _BATCH_BYTES // max(1, page)))
    for batch in file.iter_batches(rows, [group], [columns.image_leaf], use_threads=False):
        images = batch.column(0)
        images = images.field("bytes") if columns.in_struct else images
        if pa.types.is_dictionary(images.type) or pa.types.is_binary_view(images.type):
            images = images.cast(pa.large_binary())
        yield images


def read_labels(path: Path, file: pq.ParquetFile, columns: Columns) -> Labels | str:
    """Return the labels of a file, or why it has none."""
    schema = file.schema_arrow
    if columns.label is None:
        return (
            f"{path.name} has no column {' or '.join(_LABEL_COLUMNS[:2])}; its columns: "
            f"{listed(schema.names, 5, each=20)}"
        )
    kind = schema.field(columns.label).type
    if pa.types.is_nested(kind):
        return f"{path.name}: column {columns.label} holds {shortened(str(kind), 80)}, not classes"
    with contextlib.ExitStack() as stack:
        if not pa.types.is_primitive(kind):  # a text may be large, and occur in every row
            options = {"read_dictionary": [columns.label], "buffer_size": 1 << 18}
            file = stack.enter_context(pq.ParquetFile(path.absolute(), pre_buffer=False, **options))
        values = file.read([columns.label], use_threads=False)[columns.label]
    try:
        return labels_of(values, f"{path.name}: column {columns.label}")
    except NoLabels as error:
        return str(error)


def _require_plausible(path: Path, size: int, metadata: pq.FileMetaData, columns: Columns) -> None:
    """Raise UserError if a file declares more rows or bytes than `size` bytes can hold."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    counts = [group.num_rows for group in groups]
    if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
        raise UserError(f"{path} is not a readable parquet file: its numbers of rows disagree")
    if metadata.num_rows > max(_MOST_ROWS, size):
        raise UserError(
            f"{path} declares {metadata.num_rows:,} rows in {size:,} bytes: too many for images"
        )
    wanted = {columns.image_leaf, columns.label}
    expanded = sum(
        chunk.total_uncompressed_size
        for group in groups
        for chunk in map(group.column, range(group.num_columns))
        if chunk.path_in_schema in wanted
    )
    _check_expansion(path, size, expanded)


def _check_expansion(path: Path, size: int, expanded: int) -> None:
    if not 0 <= expanded <= max(_LEAST_LIMIT, _MOST_EXPANSION * size):
        raise UserError(
            f"{path} has {size:,} bytes and declares that they expand to {expanded:,}: too many"
        )


def _largest_page(path: Path, group: pq.RowGroupMetaData, columns: Columns) -> int:
    """Return the decompressed size in bytes of the largest page of a row group's images.

    Pages are decompressed into as much memory as their own headers ask for, whatever the file's
    metadata say, and no value is larger than its page.
    """
    largest = 0
    with open_regular(path) as file:
        size = file.seek(0, 2)
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema != columns.image_leaf:
                continue
            at = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                at = min(at, chunk.dictionary_page_offset)
            stop = at + chunk.total_compressed_size
            while 0 < at < min(stop, size):
                expanded, compressed, length = _page_header(path, file, at)
                largest = max(largest, expanded)
                _check_expansion(path, size, expanded)
                at += length + compressed
    return largest


def _page_header(path: Path, file: BinaryIO, at: int) -> tuple[int, int, int]:
    """Return the decompressed and compressed sizes of the page at an offset, and its header's."""
    for count in (2**9, _HEADER_BYTES):
        file.seek(at)
        reader = _Thrift(file.read(count))
        try:
            fields = reader.struct()
            expanded, compressed = fields[2], fields[3]
        except IndexError:  # the header is longer than the bytes that were read
            continue
        except (KeyError, ValueError):
            break
        if expanded < 0 or compressed < 0:
            break
        return expanded, compressed, reader.at
    raise UserError(f"{path} is not a readable parquet file: no page at byte {at}")


class _Thrift:
    """A reader for the integers of a struct in Thrift's compact protocol; it skips other fields.

    Its methods raise IndexError if the bytes end before the struct does, and ValueError if the
    bytes are not a struct.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Read a struct; return the number and value of each integer field."""
        fields: dict[int, int] = {}
        number = 0
        while kind := self._byte():
            delta, kind = kind >> 4, kind & 15
            number = number + delta if delta else self._integer()
            value = self._value(kind, depth)
            if value is not None:
                fields[number] = value
        return fields

    def _value(self, kind: int, depth: int, in_list: bool = False) -> int | None:
        if depth > 8:
            raise ValueError
        if kind in (1, 2):  # booleans, which take a byte of their own only in lists
            self.at += in_list
        elif kind == 3:
            self.at += 1
        elif kind in (4, 5, 6):
            return self._integer()
        elif kind == 7:
            self.at += 8
        elif kind == 8:
            length = self._unsigned()
            self.at += length
        elif kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            for _ in range(count):
                self._value(head & 15, depth + 1, True)
                if self.at > len(self._content):
                    raise IndexError
        elif kind == 12:
            self.struct(depth + 1)
        else:
            raise ValueError
        return None

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError

    def _integer(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)


_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")


def image_column_of(schema: pa.Schema, path: Path) -> tuple[str, bool]:
    """Find the column of encoded images, and whether it holds {bytes, path} instead of bytes."""
    for column in (*_IMAGE_COLUMNS, *_LABEL_COLUMNS):
        if schema.names.count(column) > 1:
            raise UserError(f"{path} has two columns {column}")
    column = next((c for c in _IMAGE_COLUMNS if c in schema.names), None)
    if column is None:
        raise UserError(
            f"{path} has no column image; its columns: {listed(schema.names, 5, each=20) or 'none'}"
        )
    kind = schema.field(column).type
    in_struct = pa.types.is_struct(kind)
    if in_struct:
        if kind.get_field_index("bytes") < 0:
            raise UserError(f"{path}: column {column} has no field bytes")
        kind = kind.field("bytes").type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(is_bytes(plain) for is_bytes in _BYTES):
        raise UserError(f"{path}: column {column} holds {kind}, not encoded bytes")
    return column, in_struct


_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)


def class_names_of(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """Return the class names that Hugging Face's datasets store with the schema, or () if none."""
    try:
        described = json.loads(schema.metadata[b"huggingface"])
        names = described["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    if not isinstance(names, list) or len(names) > MOST_CLASSES:
        return ()
    plain = all(isinstance(name, str) and name.isprintable() for name in names)
    return tuple(names) if plain else ()


class Parquet(PixelSource):
    """A source of the images in parquet files, which are held in memory still encoded.

    The classes are those that Hugging Face's metadata in the files name, or texts that are labels,
    otherwise numbers.
    """

    def __init__(self, paths: Sequence[Path], name: str, note: str = "") -> None:
        sizes = [require_regular(path) for path in paths]
        budget = Budget(name, sum(sizes))
        images, labels, names = zip(*(self._read(path, budget) for path in paths), strict=True)
        self._images = pa.chunked_array(
            [c for column in images for c in column.chunks], images[0].type
        )
        if not len(self._images):
            raise UserError(f"{name} holds no rows")
        self.name, self.notes = name, [note] if note else []
        if self._images.null_count == len(self._images):
            raise UserError(f"{name} holds no image: all {len(self._images):,} values are missing")
        self.fingerprint = digest(file_contents(list(zip(paths, sizes, strict=True))))
        self.labels, self.classes, self.unlabelled = joined_labels(
            name, labels, names, self.describe
        )

    @staticmethod
    def _read(path: Path, budget: Budget) -> tuple[pa.ChunkedArray, Labels | str, tuple[str, ...]]:
        chunks: list[pa.Array] = []
        with opened(path) as (file, columns):
            for group in range(file.metadata.num_row_groups):
                for images in images_in(path, file, columns, group):
                    budget.spend(images.nbytes)
                    chunks.append(images.cast(pa.large_binary()))
            labels = read_labels(path, file, columns)
            return pa.chunked_array(chunks, pa.large_binary()), labels, columns.class_names

    def __len__(self) -> int:
        return len(self._images)

    def pixels(self, index: int) -> np.ndarray:
        buffer = self._images[index].as_buffer()
        if buffer is None or buffer.size == 0:
            raise UnreadableImage(f"{self.describe(index)}: no bytes")
        check_bytes(buffer.size, self.describe(index))
        return decode_pixels(buffer.to_pybytes(), self.describe(index))

    def describe(self, index: int) -> str:
        return f"{self.name} row {index}"
