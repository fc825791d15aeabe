"""Reading of files from a user, with limits on what they may be.

A file that burn reads whole must be a regular file of limited size, so that a named pipe, a device
or a file of many gigabytes under an expected name is an error at once instead of a hang. Limits are
in bytes. All functions raise UserError, which names the file, for what cannot be read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from burn.core.errors import UserError
from burn_engine.kinds import FIRST, kind_of

_HEADER_LIMIT = 16 * 2**20  # bytes of a safetensors file's names and shapes
_LONGEST_INTEGER = 40  # digits
JSON_LIMIT = 64 * 2**20  # bytes; the largest description that burn writes has a few kilobytes


_last_opened: list[Path] = []


def last_opened() -> Path | None:
    """Return the file that `open_regular` opened last, for messages about unexpected errors."""
    return _last_opened[-1] if _last_opened else None


def open_regular(path: Path, limit: int | None = None, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, without waiting for a writer of a named pipe.

    Missing, unreadable and other files are a UserError, and so are files of more than `limit`
    bytes. `buffering` is as in Python's `open`: 0 for a file that another process may still write
    to.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits until somebody writes to it.
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except (OSError, ValueError) as error:
        raise UserError(reason(path, error)) from error
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise UserError(f"{path} is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is not a regular file (a pipe or a device): give a file")
        if limit is not None and status.st_size > limit:
            raise UserError(
                f"{path} has {status.st_size:,} bytes; a file of its kind has at most {limit:,}"
            )
        _last_opened[:] = [path]
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(path: Path) -> int:
    """Check a file that a library opens by name, as `open_regular` does; return its size."""
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def status_of(path: Path) -> os.stat_result | None:
    """Return the status of what a path leads to, links followed, or None if there is nothing.

    What cannot be looked up is a UserError: no permission, a loop of links, a name that is too
    long.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(reason(path, error)) from error


def list_folder(path: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder in the order of their names."""
    with _failures_named(path):
        # Listing needs read permission; looking up what is listed needs search permission.
        os.stat(os.path.join(path, os.curdir))  # noqa: PTH116, PTH118 - Path drops the dot
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a whole file of at most `limit` bytes."""
    with open_regular(path, limit) as file, _failures_named(path):
        content = file.read(limit + 1)
    if len(content) > limit:  # it has grown, or its size was not known
        raise UserError(f"{path} has more than {limit:,} bytes")
    return content


def read_text(path: Path, limit: int = JSON_LIMIT, errors: str = "strict") -> str:
    """Read a whole UTF-8 file of at most `limit` bytes; `errors` is as in `bytes.decode`."""
    try:
        return read_bytes(path, limit).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8") from error


def read_end(path: Path, limit: int) -> str:
    """Read the last `limit` bytes of a file as text, with replacements for what is not UTF-8."""
    with open_regular(path) as file, _failures_named(path):
        file.seek(-min(limit, os.fstat(file.fileno()).st_size), os.SEEK_END)
        return file.read(limit).decode("utf-8", "replace")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    with open_regular(path) as file, _failures_named(path):
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def read_json(path: Path) -> Any:
    """Read a JSON file of at most `JSON_LIMIT` bytes."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, origin: str) -> Any:
    """Parse JSON from `origin`, which the error names; integers have at most 40 digits."""
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError as error:
        raise UserError(f"{origin} is not usable JSON: it nests too deeply") from error
    except ValueError as error:
        raise UserError(f"{origin} is not valid JSON: {error}") from error


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def require_safetensors(path: Path, limit: int | None = None) -> int:
    """Check that a file may be given to safetensors' reader and return its size in bytes.

    The reader maps the file and compares the declared sizes with it, but reads the header at once,
    which therefore may have at most 16 MiB.
    """
    with open_regular(path, limit) as file, _failures_named(path):
        start = file.read(FIRST)
        size = os.fstat(file.fileno()).st_size
    if int.from_bytes(start[:8], "little") > min(_HEADER_LIMIT, size):
        kind = kind_of(start)
        why = f", but {kind}" if kind else ", or it is damaged or truncated"
        raise UserError(f"{path} is not a weights file{why}")
    return size


@contextlib.contextmanager
def _failures_named(path: Path) -> Iterator[None]:
    """Name the file in an error of reading it, which the system leaves out."""
    try:
        yield
    except OSError as error:
        raise UserError(reason(path, error)) from error


def reason(path: Path, error: OSError | ValueError) -> str:
    """Return the message for a path that cannot be read."""
    if isinstance(error, ValueError):
        return f"{path}: the name contains a null byte"
    if error.errno == errno.ENOENT:
        return f"{path}: no such file"
    if error.errno == errno.ELOOP:
        return f"{path}: its symbolic links form a loop"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{path}: no permission to read it"
    if error.errno == errno.ENXIO:  # a socket
        return f"{path} is not a regular file: give a file"
    return f"{path}: {error.strerror or error}"
