"""A cache on disk of a teacher's features, shared by runs that draw the same views.

A cache holds one folder for each combination of teacher, view settings and images, described by its
`about.json`, with one file for each seed, view and epoch. A file has one record for each image, at
an offset given by the image's position: a CRC-32 and the features in float16.

The checksum also covers the record's seed, epoch, image and view. It fails for a hole in the file,
for a record that a killed process or two concurrent writers left incomplete, and for one that was
copied from elsewhere. Such a record counts as missing, so no locks are needed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from burn.core.errors import UserError
from burn.core.files import write_failures_named, write_text
from burn.core.inputs import open_regular, read_json

_ABOUT = "about.json"
_FORMAT = 1
_CRC = 4  # bytes


@dataclass(frozen=True)
class CacheFolder:
    """The existing folder, in a cache, for one combination of teacher, view settings and images."""

    path: Path
    dimension: int  # of the teacher's features
    num_images: int  # of the source

    @staticmethod
    def stored_dimension(cache: Path, about: Mapping[str, Any]) -> int | None:
        """Return the dimension of the features that a cache holds for a description, or None."""
        path = _folder(cache, about) / _ABOUT
        if not path.exists():
            return None
        try:
            stored = read_json(path)
        except UserError as error:
            raise UserError(f"{error}; remove the folder {path.parent}") from error
        dimension = stored.get("dimension") if isinstance(stored, dict) else None
        if not isinstance(dimension, int) or not 0 < dimension < 2**20:
            raise UserError(f"{path} is damaged: remove the folder {path.parent}")
        if stored != _described(about, dimension):
            raise UserError(
                f"{path} describes other features than its folder is for: remove {path.parent}"
            )
        return dimension

    @staticmethod
    def make(cache: Path, about: Mapping[str, Any], dimension: int, num_images: int) -> CacheFolder:
        """Create the folder for a description of features in a cache if it does not exist.

        `about` is everything that the features depend on, in plain JSON values.
        """
        path = _folder(cache, about)
        with write_failures_named(f"--teacher-cache {cache}"):
            path.mkdir(parents=True, exist_ok=True)
            if not (path / _ABOUT).exists():
                text = json.dumps(_described(about, dimension), indent=2) + "\n"
                write_text(path / _ABOUT, text)
        return CacheFolder(path, dimension, num_images)


def _folder(cache: Path, about: Mapping[str, Any]) -> Path:
    text = json.dumps(about, sort_keys=True)
    return cache / hashlib.sha256(text.encode()).hexdigest()[:16]


def _described(about: Mapping[str, Any], dimension: int) -> dict[str, Any]:
    return {"format": _FORMAT, **json.loads(json.dumps(about)), "dimension": dimension}


class FeatureCache:
    """A teacher's cached features of the first `num_views` views of every image, for one seed.

    Every process opens its own files, those of one epoch at a time.
    """

    def __init__(self, folder: CacheFolder, seed: int, num_views: int) -> None:
        self.folder, self.seed, self.num_views = folder, seed, num_views
        self._size = _CRC + 2 * folder.dimension  # bytes of a record
        # Process, epoch, and open files. A forked process must open its own files, since it would
        # share the file offset with its parent.
        self._opened: tuple[int, int, list[BinaryIO | None]] = (-1, -1, [])

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        for file in self._opened[2]:
            if file is not None:
                file.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open files: data-loader workers open them themselves."""
        return {**self.__dict__, "_opened": (-1, -1, [])}

    @property
    def cached_shape(self) -> tuple[int, int]:
        """Number of views, and dimension of the features of each view."""
        return self.num_views, self.folder.dimension

    def file(self, epoch: int, view: int) -> Path:
        return self.folder.path / f"seed{self.seed}-view{view}" / f"epoch{epoch:05d}.f16"

    def read(self, epoch: int, index: int) -> NDArray[np.float16] | None:
        """Return float16 (views, dimension), or None if any view's are missing or damaged."""
        records = [self._record(file, epoch, index, v) for v, file in enumerate(self._files(epoch))]
        intact = [record for record in records if record is not None]
        return np.stack(intact) if len(intact) == self.num_views else None

    def write(self, epoch: int, view: int, indices: Sequence[int], values: NDArray[Any]) -> None:
        """Write one view's features, float16 (images, dimension), of the images at `indices`."""
        assert values.dtype == np.float16
        assert values.shape == (len(indices), self.folder.dimension)
        path = self.file(epoch, view)
        path.parent.mkdir(exist_ok=True)
        # Without O_NONBLOCK, a device or a named pipe of that name might wait forever.
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0) as file:
            for index, row in zip(indices, values.astype("<f2"), strict=True):
                content = row.tobytes()
                file.seek(index * self._size)
                record = struct.pack("<I", self._crc(content, epoch, index, view)) + content
                if file.write(record) != len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def share_cached(self, keys: Sequence[tuple[int, int]]) -> float:
        """Return the share of some (epoch, index) pairs whose features are cached."""
        return sum(self.read(epoch, index) is not None for epoch, index in keys) / len(keys)

    def num_bytes(self, epochs: int) -> int:
        """Return the size in bytes of all records of a number of epochs."""
        return epochs * self.num_views * self.folder.num_images * self._size

    def _crc(self, content: bytes, epoch: int, index: int, view: int) -> int:
        place = struct.pack("<QQQQ", self.seed, epoch, index, view)
        return zlib.crc32(content, zlib.crc32(place))

    def _record(
        self, file: BinaryIO | None, epoch: int, index: int, view: int
    ) -> NDArray[np.float16] | None:
        if file is None:
            return None
        try:
            file.seek(index * self._size)
            record = file.read(self._size)
        except OSError:  # an error of the disk: the features are computed again
            return None
        if len(record) != self._size:
            return None
        content = record[_CRC:]
        if struct.unpack("<I", record[:_CRC])[0] != self._crc(content, epoch, index, view):
            return None
        return np.frombuffer(bytearray(content), dtype="<f2")

    def _files(self, epoch: int) -> list[BinaryIO | None]:
        """Return an epoch's open files; a missing one is None, and is tried again at each call."""
        process = os.getpid()
        if self._opened[:2] != (process, epoch):
            self._close()
            self._opened = (process, epoch, [None] * self.num_views)
        files = self._opened[2]
        for view, file in enumerate(files):
            if file is None:
                with contextlib.suppress(UserError):
                    files[view] = open_regular(self.file(epoch, view), buffering=0)
        return files
