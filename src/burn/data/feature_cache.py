"""A teacher's features of views, kept on disk for the runs that draw the same views.

A view is a function of (seed, epoch, image, view), so what a frozen teacher makes of it is one,
too. A cache is a folder for each teacher, view settings and images (`about.json` tells which), and
in it for each seed and view a file an epoch: a record for each image in the order of their
positions, at a fixed place, so that runs whose batches differ share them.

A record is a CRC-32 and the features in float16. The checksum begins with the record's place: a
hole of the file, a record that was torn by a killed process or by two that wrote at once, or one
that was copied from elsewhere fails it, and counts as not known. So nothing has to be locked.
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
from burn.core.files import write_text
from burn.core.inputs import read_json

_ABOUT = "about.json"
_FORMAT = 1
_CRC = 4  # bytes


@dataclass(frozen=True)
class CacheFolder:
    """The folder of one teacher, view settings and images in a cache.

    path: it exists. dimension: of the teacher's features. num_images: of the source.
    """

    path: Path
    dimension: int
    num_images: int

    @staticmethod
    def known_dimension(cache: Path, about: Mapping[str, Any]) -> int | None:
        """The dimension of the features that are kept for `about`; None where none are.

        Raises UserError for a folder whose description is damaged, or cannot be read.
        """
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
        """The folder for `about`, plain JSON values that everything in it depends on.

        Raises UserError where it cannot be made.
        """
        path = _folder(cache, about)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / _ABOUT).exists():
                text = json.dumps(_described(about, dimension), indent=2) + "\n"
                write_text(path / _ABOUT, text)
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"--teacher-cache {cache} cannot be written: {reason}") from error
        return CacheFolder(path, dimension, num_images)


def _folder(cache: Path, about: Mapping[str, Any]) -> Path:
    text = json.dumps(about, sort_keys=True)
    return cache / hashlib.sha256(text.encode()).hexdigest()[:16]


def _described(about: Mapping[str, Any], dimension: int) -> dict[str, Any]:
    return {"format": _FORMAT, **json.loads(json.dumps(about)), "dimension": dimension}


class FeatureCache:
    """The features of the first `num_views` views of every image, for one seed.

    Every process has its own files open, those of one epoch at a time.
    """

    def __init__(self, folder: CacheFolder, seed: int, num_views: int) -> None:
        self.folder, self.seed, self.num_views = folder, seed, num_views
        self._size = _CRC + 2 * folder.dimension  # bytes of a record
        # Of which process and epoch: a forked process would share the place in the file.
        self._opened: tuple[int, int, list[BinaryIO | None]] = (-1, -1, [])

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        for file in self._opened[2]:
            if file is not None:
                file.close()

    def __getstate__(self) -> dict[str, Any]:
        """Workers open their own files."""
        return {**self.__dict__, "_opened": (-1, -1, [])}

    @property
    def known_shape(self) -> tuple[int, int]:
        """Number of views, and dimension of the features of each."""
        return self.num_views, self.folder.dimension

    def file(self, epoch: int, view: int) -> Path:
        """Where the features of a view are kept."""
        return self.folder.path / f"seed{self.seed}-view{view}" / f"epoch{epoch:05d}.f16"

    def read(self, epoch: int, index: int) -> NDArray[np.float16] | None:
        """Float16 (views, dimension) of an image; None where one of them is not known, or torn."""
        found = [self._record(file, epoch, index, v) for v, file in enumerate(self._files(epoch))]
        known = [record for record in found if record is not None]
        return np.stack(known) if len(known) == self.num_views else None

    def write(self, epoch: int, view: int, indices: Sequence[int], values: NDArray[Any]) -> None:
        """Keep float16 (images, dimension) of a view of some images. Raises OSError."""
        assert values.dtype == np.float16
        assert values.shape == (len(indices), self.folder.dimension)
        path = self.file(epoch, view)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab"):  # make it, if it is not there
            pass
        with path.open("r+b", buffering=0) as file:
            for index, row in zip(indices, values.astype("<f2"), strict=True):
                content = row.tobytes()
                file.seek(index * self._size)
                record = struct.pack("<I", self._crc(content, epoch, index, view)) + content
                if file.write(record) != len(record):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def share_known(self, keys: Sequence[tuple[int, int]]) -> float:
        """The share of some (epoch, index) whose features are known."""
        return sum(self.read(epoch, index) is not None for epoch, index in keys) / len(keys)

    def num_bytes(self, epochs: int) -> int:
        """Bytes of all features of so many epochs."""
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
        except OSError:  # of the disk: the features are made once more
            return None
        if len(record) != self._size:
            return None
        content = record[_CRC:]
        if struct.unpack("<I", record[:_CRC])[0] != self._crc(content, epoch, index, view):
            return None
        return np.frombuffer(bytearray(content), dtype="<f2")

    def _files(self, epoch: int) -> list[BinaryIO | None]:
        """Those of an epoch; one that is not there yet is looked for again."""
        process = os.getpid()
        if self._opened[:2] != (process, epoch):
            self._close()
            self._opened = (process, epoch, [None] * self.num_views)
        files = self._opened[2]
        for view, file in enumerate(files):
            if file is None:
                with contextlib.suppress(OSError):
                    files[view] = self.file(epoch, view).open("rb", buffering=0)
        return files
