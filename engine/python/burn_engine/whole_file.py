"""Writes a file completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a hidden file in the folder of a path; it takes the path's name if nothing is raised.

    Args:
        path: The file, which is replaced if it exists.

    Raises:
        ValueError: The file cannot be written.
    """
    beside = path.parent / f".writing.{secrets.token_hex(8)}"
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")
        try:
            with beside.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error
