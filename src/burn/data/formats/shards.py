"""Shards, i.e. tars and parquet files of encoded images, which are read in place.

Opening shards reads every tar's headers, or every parquet file's footer and labels, and keeps 24
bytes per image. Images are read afterwards by position, and are never written anywhere: names
inside a tar only appear in messages, so a name that points outside the tar's folder is harmless.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from burn.core.errors import UserError, listed, shortened
from burn.core.inputs import list_folder, open_regular, require_regular, status_of
from burn.core.paths import expand
from burn.data.base import PixelSource, Split, named_part, part_word
from burn.data.decode import MOST_BYTES, UnreadableImage, as_tensor, decode_pixels
from burn.data.fingerprint import digest, file_contents
from burn.data.formats.parquet import Budget, images_in, opened, read_labels
from burn.data.labels import (
    MOST_CLASSES,
    UNLABELLED,
    Labels,
    NoLabels,
    can_name,
    joined_labels,
    named,
)
from burn.data.splits import Subset
from burn_engine.folders import is_image
from burn_engine.tar import COMPRESSED, DamagedTar, members_of

if TYPE_CHECKING:
    from torch import Tensor

_LONGEST_CLASS = 1024  # bytes of a class that are read
# Neighbouring images that are read at once: enough for a disk to read sequentially, and for row
# groups, which are decoded again for each of their blocks, not to be decoded too often; few enough
# to hold many blocks in memory, and to shuffle well.
_BLOCK_BYTES = 4 << 20
_BLOCK_IMAGES = 512
_PARQUET_ROWS = 16  # rows decoded at a time


class _Shard(Protocol):
    """One file of images; `read` raises an error if its rows are no longer there.

    Attributes:
        groups: The first row of each group of rows, and the number of rows. A group can only be
            read from its beginning.
        labels: The labels of the rows, or why there are none.
        class_names: Names of the classes; empty if the file has none.
    """

    path: Path
    groups: list[int]
    labels: Labels | str
    class_names: tuple[str, ...]

    def read(self, rows: Sequence[int]) -> Iterator[bytes | None]: ...
    def describe(self, row: int) -> str: ...
    def names(self) -> list[str]: ...


class ShardedImages(PixelSource):
    """A source of the images in shards, whose positions count through the shards in their order.

    Attributes:
        size: Size of all shards in bytes.
        bytes_per_image: Average size of an encoded image in bytes.
    """

    def __init__(self, shards: Sequence[_Shard], name: str, note: str = "") -> None:
        counts = [shard.groups[-1] for shard in shards]
        sizes = [shard.path.stat().st_size for shard in shards]
        self.name = name
        self._shards = list(shards)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        paths = [shard.path for shard in shards]
        self.fingerprint = digest(file_contents(list(zip(paths, sizes, strict=True))))
        self.size = sum(sizes)
        self.bytes_per_image = self.size / max(1, len(self))
        filled = [shard for shard in shards if shard.groups[-1]]
        empty = [shard.path.name for shard in shards if not shard.groups[-1]]
        notes = [note, f"no image in {listed(empty)}" if empty else ""]
        self.notes = ("; ".join(filter(None, notes)),) if any(notes) else ()
        labels, names = [shard.labels for shard in filled], [shard.class_names for shard in filled]
        self.labels, self.classes, self.unlabelled = joined_labels(
            name, labels, names, self.describe
        )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _locate(self, position: int) -> tuple[_Shard, int]:
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self._shards[number], position - int(self._starts[number])

    def describe(self, index: int) -> str:
        """Return the shard, and the member or row in it."""
        shard, row = self._locate(index)
        return shard.describe(row)

    def pixels(self, index: int) -> np.ndarray:
        """Return an image as `PixelSource` does; random access to parquet files is slow."""
        (encoded,) = self.encoded([index])
        return self.decode_pixels(index, encoded)

    def names(self) -> list[str]:
        """Return the names of all images, as `describe` does, with one pass over each shard."""
        return [name for shard in self._shards for name in shard.names()]

    def decode(self, index: int, encoded: bytes | None) -> Tensor:
        """Decode an image as a tensor, uint8 (3, height, width), as `decode_pixels` does."""
        return as_tensor(self.decode_pixels(index, encoded))

    def decode_pixels(self, index: int, encoded: bytes | None) -> np.ndarray:
        """Decode an image from its bytes, or None, as `encoded` yields them."""
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
            first = int(self._starts[number])
            rows = [int(p) - first for p in positions[starts[number] : starts[number + 1]]]
            given = 0
            try:
                for encoded in shard.read(rows) if rows else ():
                    given += 1
                    yield encoded
            except (OSError, UserError, IndexError):  # it is removed, damaged or replaced
                yield from [None] * (len(rows) - given)

    def blocks(self, at_least: int) -> np.ndarray:
        """Cut the images into blocks that are read at once, none beyond a shard or a row group.

        There are at least `at_least`, unless there are fewer images. Returns the positions of all
        boundaries, int64, from 0 to the number of images.
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


class SampledImages(Subset):
    """The images at ascending positions in shards, held in memory still encoded.

    They may not take much more memory than the size of the shards allows for.
    """

    def __init__(self, images: ShardedImages, positions: np.ndarray) -> None:
        super().__init__(images, positions)
        self._images = images
        budget = Budget(images.name, images.size)
        self._encoded: list[bytes | None] = []
        for encoded in images.encoded(positions.tolist()):
            budget.spend(len(encoded or b""))
            self._encoded.append(encoded)

    def read(self, index: int) -> Tensor:
        return self._images.decode(int(self.indices[index]), self._encoded[index])


def open_shards(spec: str, split: Split = "train") -> ShardedImages:
    """Open the shards that a specification names.

    It is a folder of .tar or .parquet files, one such file, or a pattern with * ? [ ] for them. Of
    a folder with shards `train-…` and `test-…` (or val, valid, validation), those of `split` are
    opened. Parquet files have the columns that `open_source` describes.

    Tars are laid out as WebDataset writes them, in any order: every regular member with the
    extension of an image is an image, and so is a link to such a member; a member `KEY.cls` holds
    its class, a number or a text, where KEY is the image's path up to one of the dots of its file
    name (the last one that fits).
    """
    paths, name, note = find_shards(spec, split)
    shards = [_open(path) for path in paths]
    if not any(shard.groups[-1] for shard in shards):
        raise UserError(f"{name} holds no image")
    return ShardedImages(shards, name, note)


def open_shard(path: Path) -> ShardedImages:
    """Open the images of one shard that `find_shards` found, of which there may be none."""
    return ShardedImages([_open(path)], str(path))


def _open(path: Path) -> _Shard:
    return _Tar(path) if path.suffix == ".tar" else _ParquetFile(path)


def find_shards(spec: str, split: Split = "train") -> tuple[list[Path], str, str]:
    """Find the shards that a specification of `open_shards` names, without opening them.

    Returns the shards, all of one kind; the name of the data; and a line on the shards of a folder
    that are left out, or "".
    """
    if not spec:
        raise UserError("stream: names no data: give stream:FOLDER, of .tar or .parquet files")
    path, name = expand(spec), spec
    there = status_of(path)
    if there is None:
        files = sorted(Path(match) for match in glob.glob(str(path)))  # noqa: PTH207
    elif stat.S_ISDIR(there.st_mode):
        files = [path / entry.name for entry in list_folder(path)]
    else:
        files = [path]
    if not files:
        raise UserError(f"no shards at {spec}: give a folder of .tar or .parquet files")
    files = [file for file in files if not (file.name.startswith(".") or file.is_dir())]
    shards = [file for file in files if file.suffix in (".tar", ".parquet")]
    for shard in shards:
        require_regular(shard)  # a dangling link or a pipe is an error, and is not left out
    packed = [file for file in files if file.name.endswith(COMPRESSED)]
    if packed:
        raise UserError(f"{packed[0]} is compressed: unpack it to a plain .tar, e.g. with gunzip")
    if not shards:
        raise UserError(f"{spec} holds no .tar and no .parquet file")
    if len({file.suffix for file in shards}) > 1:
        raise UserError(f"{spec} holds .tar and .parquet files: give a pattern for one kind")
    if not path.is_dir():
        return shards, name, ""
    below = [f"{entry.name}/" for entry in list_folder(path) if _holds_shards(entry)]
    chosen = shards
    if words := named_part([part_word(file) for file in shards], split):
        chosen, name = [file for file in shards if part_word(file) in words], f"{spec}:{words[0]}"
    others = [file.name for file in shards if file not in set(chosen)] + below
    note = f"{spec} also holds {listed(others)}, not read" if others else ""
    return chosen, name, note


def _holds_shards(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or not entry.is_dir():
        return False
    try:
        names = [below.name for below in list_folder(Path(entry.path))]
    except UserError:  # no permission to list it
        return False
    return any(name.endswith((".tar", ".parquet")) for name in names)


class _Tar:
    """A tar of images; only the images' offsets, sizes and labels are held in memory."""

    class_names: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        places: list[tuple[int, int]] = []
        classes = _TarClasses()
        try:
            with open_regular(path) as file:
                for member in members_of(file, path.stat().st_size):
                    if member.is_sparse:
                        raise DamagedTar(
                            f"holds {_shown(member.name)} with holes, which burn cannot read: "
                            "recreate the tar without --sparse"
                        )
                    if _is_image(member.name):
                        classes.add_image(member.name)
                        places.append((member.offset, member.size))
                    elif member.name.lower().endswith(b".cls"):
                        file.seek(member.offset)
                        text = file.read(min(member.size, _LONGEST_CLASS))
                        classes.add_class(member.name, text)
        except DamagedTar as error:
            raise UserError(f"{path} {error}") from None
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error
        self._places = np.array(places, dtype=np.int64).reshape(-1, 2)
        self.groups = [0, len(places)]
        self.labels = classes.labels(path.name)

    def read(self, rows: Sequence[int]) -> Iterator[bytes | None]:
        with open_regular(self.path) as file:
            for offset, size in self._places[rows].tolist():
                encoded = b""
                if size <= MOST_BYTES:
                    file.seek(offset)
                    encoded = file.read(size)
                yield encoded if len(encoded) == size else None

    def describe(self, row: int) -> str:
        """Look the name up in the tar, since a million names would take most of the memory."""
        return next(islice(self._names(), row, None), f"{self.path} image {row}")

    def names(self) -> list[str]:
        names = list(islice(self._names(), len(self._places)))
        return names + [f"{self.path} image {i}" for i in range(len(names), len(self._places))]

    def _names(self) -> Iterator[str]:
        with contextlib.suppress(OSError, UserError, DamagedTar), open_regular(self.path) as file:
            for member in members_of(file, self.path.stat().st_size):
                if _is_image(member.name):
                    yield f"{self.path} member {_shown(member.name)}"


class _TarClasses:
    """Matches the images of a tar with the members that hold their classes.

    Usually an image and its class are neighbours, as WebDataset requires it, and only such a group
    is held in memory. What has no match among its neighbours is matched at the end.
    """

    def __init__(self) -> None:
        self._texts: dict[bytes, int] = {}  # number of each different text
        self._text_of_image: list[int] = []  # the number of each image's text, or UNLABELLED
        self._group = b""
        self._images: dict[int, bytes] = {}  # of the group: row and name
        self._classes: dict[bytes, int] = {}  # of the group: key and text
        # Rows without a class so far, and hashes of their keys, since names take too much memory.
        self._waiting = array("q"), array("q")
        # Hashes of all keys that have a class, and its text, for images in other places of the tar.
        self._class_keys = array("q"), array("q")

    def add_image(self, name: bytes) -> None:
        self._begin(name)
        self._images[len(self._text_of_image)] = name
        self._text_of_image.append(UNLABELLED)

    def add_class(self, name: bytes, text: bytes) -> None:
        self._begin(name)
        key = name.rpartition(b".")[0]
        number = self._texts.setdefault(text.strip(), len(self._texts))
        if self._classes.setdefault(key, number) != number:
            raise DamagedTar(f"gives {_shown(key)} two classes")

    def _begin(self, name: bytes) -> None:
        """Begin a new group unless a member belongs to the last one."""
        folder, slash, file = name.rpartition(b"/")
        group = folder + slash + file.partition(b".")[0]
        if group != self._group:
            self._end()
            self._group = group

    def _end(self) -> None:
        for row, name in self._images.items():
            keys = _keys(name)
            key = next((key for key in keys if key in self._classes), None)
            if key is None:
                self._waiting[0].extend(row for _ in keys)
                self._waiting[1].extend(map(hash, keys))
            else:
                self._text_of_image[row] = self._classes[key]
        self._class_keys[0].extend(map(hash, self._classes))
        self._class_keys[1].extend(self._classes.values())
        self._images, self._classes = {}, {}

    def labels(self, name: str) -> Labels | str:
        """Return the labels of the images, or why there are none; `name` is that of the tar."""
        self._end()
        wanted = set(self._waiting[1])
        by_key = {key: text for key, text in zip(*self._class_keys, strict=True) if key in wanted}
        for row, key in zip(*self._waiting, strict=True):
            if self._text_of_image[row] == UNLABELLED:
                self._text_of_image[row] = by_key.get(key, UNLABELLED)
        labels = np.array(self._text_of_image, dtype=np.int64)
        if not self._texts or (labels == UNLABELLED).all():
            if not self._texts:
                return f"{name} has no .cls members"
            return f"{name}: none of its .cls members has the name of an image"
        texts = [text.decode("utf-8", "replace") for text in self._texts]
        numbers = [_class_number(text) for text in texts]
        counts = np.bincount(labels[labels != UNLABELLED], minlength=len(texts))
        are_numbers = np.array([number is not None for number in numbers])
        # A text among numbers is a mistake, unless most are texts.
        usable: list[Any]
        if numeric := 2 * counts[are_numbers].sum() >= counts.sum():
            usable = [n if n is not None and n < MOST_CLASSES else None for n in numbers]
        else:
            usable = [text if can_name(text) and "\ufffd" not in text else None for text in texts]
        bad = next((i for i, use in enumerate(usable) if use is None and counts[i]), None)
        reason = ""
        if bad is not None:
            text = shortened(ascii(texts[bad]), 80)
            reason = f"a .cls member of {name} holds {text}, which is no class"
        if numeric:
            class_numbers = [UNLABELLED if n is None else n for n in usable]
            return Labels(np.array([*class_numbers, UNLABELLED])[labels], None, reason)
        try:
            naming = named(usable, name)
        except NoLabels as error:
            return str(error)
        return Labels(np.append(naming.numbers, UNLABELLED)[labels], naming.names, reason)


def _class_number(text: str) -> int | None:
    """Return the number that the text of a class is, -1 for unlabelled, or None."""
    if text in ("", "-1"):
        return UNLABELLED
    match = re.fullmatch(r"([0-9]{1,18})(?:\.0*)?", text)
    return int(match[1]) if match else None


def _keys(name: bytes) -> list[bytes]:
    """Return a member's path up to each dot of its file name, the longest first."""
    folder, slash, file = name.rpartition(b"/")
    words = file.split(b".")
    return [folder + slash + b".".join(words[:i]) for i in range(len(words) - 1, 0, -1)]


def _is_image(name: bytes) -> bool:
    return is_image(name.rpartition(b"/")[2].decode("latin-1"))


def _shown(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    return text if text.isprintable() else ascii(text)


class _ParquetFile:
    """A parquet file of images; only the row groups' first rows and the labels are in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with opened(path) as (file, columns):
            data = file.metadata
            counts = [data.row_group(i).num_rows for i in range(data.num_row_groups)]
            self.groups = [0, *np.cumsum(counts, dtype=np.int64).tolist()]
            self.labels = read_labels(path, file, columns)
            self.class_names = columns.class_names

    def read(self, rows: Sequence[int]) -> Iterator[bytes | None]:
        chosen = np.asarray(rows)
        groups = np.searchsorted(self.groups, chosen, side="right") - 1
        with opened(self.path) as (file, columns):
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
        return f"{self.path} row {row}"

    def names(self) -> list[str]:
        return [self.describe(row) for row in range(self.groups[-1])]
