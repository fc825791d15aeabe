"""Features of many images in a .npy file, written row by row."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from burn_engine.format import Floats


class FeaturesFile:
    """A .npy file of float32 (images, features), complete or not there at all.

    It is a context manager: the rows are written beside the file and renamed when its block ends
    without an error. If no row was added, no file is written.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.num_rows = 0
        self._path = path
        self._beside = path.with_name(f".writing.{path.name}")
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
                self._file = open(self._beside, "wb")  # noqa: SIM115 - closed by __exit__
                self._start = self._write_header(self._file)
            self._file.write(np.ascontiguousarray(features, "<f4").tobytes())
        except OSError as error:
            raise self._unwritable(error) from error
        self.num_rows += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is None:
            return
        try:
            with self._file as file:
                if kind is None:
                    file.seek(0)
                    end = self._write_header(file)
                    assert end == self._start, "the header has another length than at first"
            if kind is None:
                self._beside.replace(self._path)
        except OSError as failed:
            raise self._unwritable(failed) from failed
        finally:
            self._beside.unlink(missing_ok=True)

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
