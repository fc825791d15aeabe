"""Shards, i.e. tars and parquet files of encoded images, which are read in place.

Opening shards reads every tar's headers, or every parquet file's footer and labels, and keeps 24
bytes per image. Images are read afterwards by position, and are never written anywhere: names
inside a tar only appear in messages, so a name that points outside the tar's folder is harmless.
"""

from __future__ import annotations

import contextlib
import glob
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
import pyarrow.parquet as pq

from burn.core.errors import UserError
from burn.core.inputs import list_folder, open_regular, require_regular, status_of
from burn.core.paths import expand
from burn.data.base import EXTENSIONS, Split, named_part
from burn.data.decode import MOST_BYTES, UnreadableImage, as_tensor, decode_pixels
from burn.data.fingerprint import digest, file_contents
from burn.data.formats.labeled import MOST_CLASSES
from burn.data.formats.parquet import Budget, Columns, images_in, opened, read_labels

if TYPE_CHECKING:
    from torch import Tensor

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_MOST_NAME = 1 << 20  # bytes of the entry in a tar that holds a long name
# Neighbouring images that are read at once: enough for a disk to read sequentially, and for row
# groups, which are decoded again for each of their blocks, not to be decoded too often; few enough
# to hold many blocks in memory, and to shuffle well.
_BLOCK_BYTES = 4 << 20
_BLOCK_IMAGES = 512
_PARQUET_ROWS = 16  # rows decoded at a time


class _Shard(Protocol):
    """One file of images.

    Attributes:
        path: The file.
        groups: The first row of each group of rows, and the number of rows. A group can only be
            read from its beginning.
        labels: int64 (rows,), or None.
        class_names: Names of the classes; empty if the file has none.
    """

    path: Path
    groups: list[int]
    labels: np.ndarray | None
    class_names: tuple[str, ...]

    def read(self, rows: Sequence[int]) -> Iterator[bytes | None]: ...
    def describe(self, row: int) -> str: ...
    def names(self) -> list[str]: ...


class ShardedImages:
    """A source of the images in shards.

    Args:
        shards: The shards; positions of images count through them in this order.
        name: Name of the data for messages and results.

    Attributes:
        name: Name of the data.
        classes: Names of the classes; numbers if the shards name none.
        labels: int64 (images,), or None if there are none.
        fingerprint: Hash of the shards' sizes and content.
        size: Size of all shards in bytes.
        bytes_per_image: Average size of an encoded image in bytes.

    Raises:
        UserError: There are no images, or only some shards have labels.
    """

    def __init__(self, shards: Sequence[_Shard], name: str) -> None:
        counts = [shard.groups[-1] for shard in shards]
        sizes = [shard.path.stat().st_size for shard in shards]
        self.name = name
        self._shards = list(shards)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        if not len(self):
            raise UserError(f"{name} holds no image")
        paths = [shard.path for shard in shards]
        self.fingerprint = digest(file_contents(list(zip(paths, sizes, strict=True))))
        self.size = sum(sizes)
        self.bytes_per_image = self.size / len(self)
        self.labels: np.ndarray | None = None
        self.classes: tuple[str, ...] = ()
        self._read_labels([shard for shard in shards if shard.groups[-1]])

    def _read_labels(self, shards: Sequence[_Shard]) -> None:
        found = [shard.labels for shard in shards if shard.labels is not None]
        if not found:
            return
        if len(found) < len(shards):
            raise UserError(f"{self.name}: only some of its shards have labels")
        labels = np.concatenate(found)
        if labels.min() < 0:
            raise UserError(f"{self.name}: column label holds negative values")
        if labels.max() >= MOST_CLASSES:
            return  # these are numbers of rows or hashes, not classes
        numbers = tuple(str(i) for i in range(int(labels.max()) + 1))
        names = shards[0].class_names
        self.labels, self.classes = labels, names if len(names) >= len(numbers) else numbers

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _locate(self, position: int) -> tuple[_Shard, int]:
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self._shards[number], position - int(self._starts[number])

    def describe(self, index: int) -> str:
        """Return the name of an image for messages: the shard, and the member or row in it."""
        shard, row = self._locate(index)
        return shard.describe(row)

    def read(self, index: int) -> Tensor:
        """Return an image, uint8 (3, height, width); random access to parquet files is slow.

        Raises:
            UnreadableImage: The image cannot be read or decoded.
        """
        return as_tensor(self.pixels(index))

    def pixels(self, index: int) -> np.ndarray:
        """Return an image as `read` does, uint8 (height, width, 3).

        Raises:
            UnreadableImage: The image cannot be read or decoded.
        """
        (encoded,) = self.encoded([index])
        return self.decode_pixels(index, encoded)

    def names(self) -> list[str]:
        """Return the names of all images, as `describe` does, with one pass over each shard."""
        return [name for shard in self._shards for name in shard.names()]

    def decode(self, index: int, encoded: bytes | None) -> Tensor:
        """Decode an image as a tensor, uint8 (3, height, width), as `decode_pixels` does."""
        return as_tensor(self.decode_pixels(index, encoded))

    def decode_pixels(self, index: int, encoded: bytes | None) -> np.ndarray:
        """Decode an image.

        Args:
            index: Position of the image.
            encoded: Its bytes, or None, as `encoded` yields them.

        Returns:
            uint8 (height, width, 3).

        Raises:
            UnreadableImage: There are no bytes, or they cannot be decoded.
        """
        if not encoded:
            raise UnreadableImage(f"{self.describe(index)}: no bytes")
        try:
            return decode_pixels(encoded, self.name)
        except UnreadableImage as error:  # a name in a tar is looked up only for an error
            reason = str(error).removeprefix(f"{self.name}: ")
            raise UnreadableImage(f"{self.describe(index)}: {reason}") from error

    def encoded(self, positions: Sequence[int]) -> Iterator[bytes | None]:
        """Yield the bytes of images at ascending positions, None for images that cannot be read."""
        starts = np.searchsorted(positions, self._starts)
        for number, shard in enumerate(self._shards):
            chosen = positions[starts[number] : starts[number + 1]]
            if len(chosen):
                yield from shard.read([int(p) - int(self._starts[number]) for p in chosen])

    def blocks(self, at_least: int) -> np.ndarray:
        """Cut the images into blocks that are read at once.

        A block does not extend beyond a shard or a row group.

        Args:
            at_least: Least number of blocks; there are fewer only if there are fewer images.

        Returns:
            The positions of all boundaries, int64, from 0 to the number of images.
        """
        longest = int(_BLOCK_BYTES // max(1, self.bytes_per_image))
        longest = max(1, min(longest, _BLOCK_IMAGES, len(self) // at_least))
        cuts = [len(self)]
        for start, shard in zip(self._starts.tolist(), self._shards, strict=False):
            for first, stop in zip(shard.groups, shard.groups[1:], strict=False):
                cuts.extend(range(start + first, start + stop, longest))
        return np.unique(np.array(cuts, dtype=np.int64))

    def sample(self, count: int) -> SampledImages:
        """Return the first images of every shard, `count` in all, held in memory still encoded."""
        rows = np.arange(len(self)) - np.repeat(self._starts[:-1], np.diff(self._starts))
        whole = int(np.searchsorted(np.cumsum(np.bincount(rows)), count, side="right"))
        chosen = np.flatnonzero(rows < whole)
        next_rows = np.flatnonzero(rows == whole)
        missing = min(count, len(self)) - len(chosen)
        spread = np.arange(missing) * len(next_rows) // max(1, missing)
        return SampledImages(self, np.sort(np.concatenate([chosen, next_rows[spread]])))


class SampledImages:
    """A source of some images of shards, held in memory.

    Args:
        images: The shards.
        positions: int64 (images,), ascending positions in the shards.

    Raises:
        UserError: The images take much more memory than the size of the shards allows for.
    """

    def __init__(self, images: ShardedImages, positions: np.ndarray) -> None:
        self.name, self.classes = images.name, images.classes
        self.labels = None if images.labels is None else images.labels[positions]
        self.positions = positions
        self.fingerprint = digest(images.fingerprint, positions.tobytes())
        self._images = images
        budget = Budget(images.name, images.size)
        self._encoded: list[bytes | None] = []
        for encoded in images.encoded(positions.tolist()):
            budget.spend(len(encoded or b""))
            self._encoded.append(encoded)

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, index: int) -> Tensor:
        """Return an image, uint8 (3, height, width).

        Raises:
            UnreadableImage: The image cannot be read or decoded.
        """
        return self._images.decode(int(self.positions[index]), self._encoded[index])

    def describe(self, index: int) -> str:
        """Return the name of an image for messages: the shard, and the member or row in it."""
        return self._images.describe(int(self.positions[index]))


def open_shards(
    spec: str, split: Split = "train", advance: Callable[[int], None] = lambda _: None
) -> ShardedImages:
    """Open the shards that a specification names.

    Parquet files have the columns that `open_source` describes. Tars are laid out as WebDataset
    writes them: every regular member with the extension of an image is an image; a member `KEY.cls`
    beside it holds its class as an ASCII number, where KEY is the member's path up to the first dot
    of its file name.

    Args:
        spec: A folder of .tar or .parquet files, one such file, or a pattern with * ? [ ] for them.
        split: The part to open if a folder has shards `train-…` and `test-…` (or val, valid,
            validation).
        advance: Called after every shard with its number of images.

    Raises:
        UserError: A shard is damaged or compressed, the kinds of files are mixed, or there are no
            images.
    """
    paths, name = find_shards(spec, split)
    shards: list[_Shard] = []
    for path in paths:
        shard = _open(path)
        shards.append(shard)
        advance(shard.groups[-1])
    return ShardedImages(shards, name)


def open_shard(path: Path) -> ShardedImages | None:
    """Open the images of one shard that `find_shards` found; None if it holds no image.

    Raises:
        UserError: The shard is missing, damaged or compressed.
    """
    shard = _open(path)
    return ShardedImages([shard], str(path)) if shard.groups[-1] else None


def _open(path: Path) -> _Shard:
    return _Tar(path) if path.suffix == ".tar" else _ParquetFile(path)


def find_shards(spec: str, split: Split = "train") -> tuple[list[Path], str]:
    """Find the shards that a specification of `open_shards` names, without opening them.

    Returns:
        The shards, all of one kind, and the name of the data.

    Raises:
        UserError: There are none, they are of several kinds, or one is no regular file.
    """
    if not spec:
        raise UserError("stream: names no data: give stream:FOLDER, of .tar or .parquet files")
    path, name = expand(spec), spec
    there = status_of(path)
    if there is None:
        found = sorted(Path(match) for match in glob.glob(str(path)))  # noqa: PTH207
    elif stat.S_ISDIR(there.st_mode):
        found = [path / entry.name for entry in list_folder(path)]
    else:
        found = [path]
    if not found:
        raise UserError(f"no shards at {spec}: give a folder of .tar or .parquet files")
    found = [file for file in found if not (file.name.startswith(".") or file.is_dir())]
    shards = [file for file in found if file.suffix in (".tar", ".parquet")]
    for shard in shards:
        require_regular(shard)  # a dangling link or a pipe is an error, and is not left out
    packed = [file for file in found if file.name.endswith(_COMPRESSED)]
    if packed:
        raise UserError(f"{packed[0]} is compressed: unpack it to a plain .tar, e.g. with gunzip")
    if not shards:
        raise UserError(f"{spec} holds no .tar and no .parquet file")
    if len({file.suffix for file in shards}) > 1:
        raise UserError(f"{spec} holds .tar and .parquet files: give a pattern for one kind")
    words = {file: file.stem.partition("-")[0] for file in shards}
    if path.is_dir() and (word := named_part(words.values(), split)):
        shards, name = [file for file in shards if words[file] == word], f"{spec}:{word}"
    return shards, name


class _Damaged(Exception):
    """Raised for a tar that cannot be read; the message follows the name of the tar."""


class _Tar:
    """A tar of images; only the images' offsets, sizes and labels are held in memory."""

    class_names: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        places: list[tuple[int, int]] = []
        classes: list[int | None] = []
        readable = True  # whether every class is a number so far
        key, seen, unlabelled = b"", None, 0
        try:
            with open_regular(path) as file:
                for name, offset, size in _members(file, path.stat().st_size):
                    member_key, extension = _split(name)
                    if member_key != key:
                        key, seen, unlabelled = member_key, None, len(places)
                    if _is_image(name):
                        places.append((offset, size))
                        classes.append(seen)
                    elif extension == b"cls":
                        file.seek(offset)
                        text = file.read(min(size, 32)).strip()
                        readable &= text.isdigit() and len(text) < 19
                        number = int(text) if readable else 0
                        if seen not in (None, number):
                            raise _Damaged(f"gives {_shown(key)} two classes")
                        seen = number
                        classes[unlabelled:] = [number] * (len(places) - unlabelled)
        except _Damaged as error:
            raise UserError(f"{path} {error}") from None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error
        self._places = np.array(places, dtype=np.int64).reshape(-1, 2)
        self.groups = [0, len(places)]
        labels = [label for label in classes if label is not None]
        self.labels: np.ndarray | None = None
        if labels and readable:
            if len(labels) < len(classes):
                row = classes.index(None)
                raise UserError(f"{self.describe(row)} has no .cls member, but other images do")
            self.labels = np.array(labels, dtype=np.int64)

    def read(self, rows: Sequence[int]) -> Iterator[bytes | None]:
        """Yield the encoded images of ascending rows, None for those that cannot be read."""
        given = 0
        try:
            with open_regular(self.path) as file:
                for offset, size in self._places[rows].tolist():
                    encoded = b""
                    if size <= MOST_BYTES:
                        file.seek(offset)
                        encoded = file.read(size)
                    given += 1
                    yield encoded if len(encoded) == size else None
        except (OSError, UserError):
            yield from [None] * (len(rows) - given)

    def describe(self, row: int) -> str:
        """Return the name of an image for messages.

        The name is looked up in the tar, since a million names would take most of the memory.
        """
        offset = int(self._places[row, 0])
        try:
            with open_regular(self.path) as file:
                for name, at, _ in _members(file, self.path.stat().st_size):
                    if at == offset:
                        return f"{self.path} member {_shown(name)}"
        except (OSError, UserError, _Damaged):
            pass
        return f"{self.path} image {row}"

    def names(self) -> list[str]:
        """Return the names of all rows, as `describe` does."""
        found: dict[int, bytes] = {}
        with contextlib.suppress(OSError, UserError, _Damaged), open_regular(self.path) as file:
            members = _members(file, self.path.stat().st_size)
            found.update((offset, name) for name, offset, _ in members)
        return [
            f"{self.path} member {_shown(found[at])}" if at in found else f"{self.path} image {row}"
            for row, at in enumerate(self._places[:, 0].tolist())
        ]


def _members(file: BinaryIO, length: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and size of every regular file of a tar of `length` bytes.

    Python's tarfile takes a damaged header for the end of the tar, and is four times as slow.

    Raises:
        _Damaged: The tar is damaged, compressed, or holds entries that are not supported.
    """
    at = 0
    long_name: bytes | None = None
    long_size: int | None = None
    while True:
        file.seek(at)
        header = file.read(512)
        if header == bytes(512):
            return
        if header[:2] == b"\x1f\x8b":
            raise _Damaged("is compressed: unpack it to a plain .tar, e.g. with gunzip")
        if len(header) < 512:
            raise _Damaged(f"is cut off at byte {at + len(header)}, before its end mark")
        kind = header[156:157]
        size = _number(header[124:136])
        if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 32:
            raise _Damaged(f"is damaged at byte {at}, or is not a tar")
        if kind == b"S" or size is None:
            raise _Damaged(f"holds an entry at byte {at} that burn cannot read: recreate the tar")
        if kind in b"123456":  # links, devices, folders and pipes have no contents
            size = 0
        elif long_size is not None and kind not in b"xgLK":
            size = long_size
        start = at + 512
        at = start + -(-size // 512) * 512
        if at > length:
            raise _Damaged(f"is cut off: an entry at byte {start - 512} ends at {start + size}")
        if kind in b"xL":
            if size > _MOST_NAME:
                raise _Damaged(f"has a name of {size} bytes at byte {start - 512}")
            content = file.read(size)
            if kind == b"L":
                long_name = content.rstrip(b"\0")
            else:
                long_name, long_size = _extended(content, long_name, long_size)
            continue
        if kind in b"gK":
            continue
        if kind in b"0\x007":
            name = header[:100].partition(b"\0")[0]
            if header[257:263] == b"ustar\0" and header[345]:
                name = header[345:500].partition(b"\0")[0] + b"/" + name
            yield long_name or name, start, size
        long_name = long_size = None


def _number(field: bytes) -> int | None:
    """Parse a number of a header: octal digits, or GNU's binary format for large numbers."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    return int(digits or b"0", 8) if not digits.strip(b"01234567") else None


def _extended(
    content: bytes, name: bytes | None, size: int | None
) -> tuple[bytes | None, int | None]:
    """Update name and size from an extended header's records `LENGTH KEY=VALUE`."""
    at = 0
    while at < len(content):
        length, space, _ = content[at : at + 10].partition(b" ")
        if not (space and length.isdigit() and len(length) < int(length) <= len(content) - at):
            raise _Damaged("has a damaged extended header")
        record = content[at + len(length) + 1 : at + int(length) - 1]
        at += int(length)
        key, _, value = record.partition(b"=")
        if key.startswith(b"GNU.sparse."):  # the member then holds only the parts with data
            raise _Damaged(
                "holds a sparse file, which burn cannot read: recreate the tar without --sparse"
            )
        if key == b"path":
            name = value
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise _Damaged("has a damaged extended header")
            size = int(value)
    return name, size


def _split(name: bytes) -> tuple[bytes, bytes]:
    """Split the name of a member into WebDataset's key and extension."""
    folder, slash, file = name.rpartition(b"/")
    key, _, extension = file.partition(b".")
    return folder + slash + key, extension.lower()


_SUFFIXES = tuple(extension.encode() for extension in EXTENSIONS)


def _is_image(name: bytes) -> bool:
    file = name.rpartition(b"/")[2]
    return file.lower().endswith(_SUFFIXES) and not file.startswith(b".")


def _shown(name: bytes) -> str:
    """Return a name from a tar as printable text."""
    text = name.decode("utf-8", "replace")
    return text if text.isprintable() else ascii(text)


class _ParquetFile:
    """A parquet file of images; only the row groups' first rows and the labels are in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.labels: np.ndarray | None = None
        with opened(path) as (file, columns):
            data = file.metadata
            counts = [data.row_group(i).num_rows for i in range(data.num_row_groups)]
            self.groups = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
            labels = read_labels(path, file, columns)
            if labels is not None:
                self.labels = labels.to_numpy()
            self.class_names = columns.class_names

    def read(self, rows: Sequence[int]) -> Iterator[bytes | None]:
        """Yield the encoded images of ascending rows, None for those that cannot be read."""
        given = 0
        try:
            with opened(self.path) as (file, columns):
                for encoded in self._picked(file, columns, rows):
                    given += 1
                    yield encoded
        except (UserError, IndexError):
            yield from [None] * (len(rows) - given)  # removed, damaged or replaced

    def _picked(
        self, file: pq.ParquetFile, columns: Columns, rows: Sequence[int]
    ) -> Iterator[bytes | None]:
        chosen = np.asarray(rows)
        groups = np.searchsorted(self.groups, chosen, side="right") - 1
        for group in np.unique(groups).tolist():
            wanted = chosen[groups == group] - self.groups[group]
            at = done = 0
            for images in images_in(self.path, file, columns, group, _PARQUET_ROWS):
                stop = int(np.searchsorted(wanted, at + len(images)))
                for row in wanted[done:stop].tolist():
                    yield images[row - at].as_py()
                at, done = at + len(images), stop
                if done == len(wanted):
                    break
            if done < len(wanted):
                raise IndexError(f"{self.path} has lost rows")

    def describe(self, row: int) -> str:
        """Return the name of an image for messages."""
        return f"{self.path} row {row}"

    def names(self) -> list[str]:
        """Return the names of all rows, as `describe` does."""
        return [self.describe(row) for row in range(self.groups[-1])]
