"""Features of many images in a .npy file, written row by row."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from burn_engine.format import Floats
from burn_engine.whole_file import hidden_name, hold, replace


class FeaturesFile:
    """A .npy file of float32 (images, features), complete or not there at all.

    It is a context manager: the rows are written to a new hidden file of their own in the same
    folder, which is renamed when the block ends without an error. So of two processes that write
    the same path, the last one's file stays. If no row was added, no file is written.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.num_rows = 0
        self._path = path
        self._target = Path(os.path.realpath(path))
        self._beside: Path | None = None
        self._file: BinaryIO | None = None
        self._width = 0
        self._start = 0

    def __enter__(self) -> FeaturesFile:
        return self

    def add(self, features: Floats) -> None:
        """Write the features of one image, float32 (features,).

        Raises:
            ValueError: The file cannot be written.
        """
        try:
            if self._file is None:
                self._width = len(features)
                self._file = self._begin()
                hold(self._file)
                self._start = self._write_header(self._file)
            self._file.write(np.ascontiguousarray(features, "<f4").tobytes())
        except OSError as error:
            raise self._unwritable(error) from error
        self.num_rows += 1

    def _begin(self) -> BinaryIO:
        """Create the hidden file, whose name is known first: a signal may come at any moment."""
        beside = hidden_name(self._target)
        if beside.exists() or beside.is_symlink():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self._beside = beside
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.fdopen(os.open(beside, flags, 0o600), "wb")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._beside is None:
            return
        try:
            if self._file is not None:
                self._finish(self._file, self._beside, whole=kind is None)
        except OSError as failed:
            raise self._unwritable(failed) from failed
        finally:
            with contextlib.suppress(OSError):  # as of a read-only file system, where none is
                self._beside.unlink(missing_ok=True)

    def _finish(self, file: BinaryIO, beside: Path, *, whole: bool) -> None:
        with file:
            if whole:
                file.seek(0)
                end = self._write_header(file)
                assert end == self._start, "the header has another length than at first"
        if whole:
            beside.chmod(0o666 & ~_umask())  # it was its owner's alone
            replace(beside, self._target)

    def _write_header(self, file: BinaryIO) -> int:
        """Write the header for the rows so far, and return where the first row begins."""
        # NumPy reserves room in the header for a longer first axis.
        header: dict[str, Any] = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (self.num_rows, self._width),
        }
        np.lib.format.write_array_header_1_0(file, header)
        return file.tell()

    def _unwritable(self, error: OSError) -> ValueError:
        return ValueError(f"{self._path} cannot be written: {error.strerror or error}")


def _umask() -> int:
    """Return the permissions that new files do not get; the only way to read them sets them."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
