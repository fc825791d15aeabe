"""Paths from a user, and files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from burn.errors import UserError

_BESIDE = ".writing."  # how the name of a file begins that is not whole yet


def expand(spec: str) -> Path:
    """A path with ~ replaced. Raises UserError for the home of nobody, and for no path at all."""
    if not spec:
        raise UserError("a path is empty: a variable that is not set, perhaps; give a name")
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise UserError(f"{spec}: there is no such home folder") from error


def require_free(*paths: Path) -> None:
    """Raise UserError where a file cannot be written anew."""
    for path in paths:
        if path.exists():
            raise UserError(f"{path} already exists: remove it, or give another name")
        if not path.parent.is_dir():
            raise UserError(f"{path}: there is no such folder")


def write_beside(path: Path, write: Callable[[Path], Any], keep: Path | None = None) -> None:
    """Have `write` fill a hidden file beside `path`, then rename it to `path`.

    The hidden file ends as `path` does, for writers that go by the suffix. It is on the disk before
    it gets its name, so that a machine that loses power keeps the old file or the new one. The old
    file becomes `keep`, if that is given.
    """
    temporary = path.with_name(f"{_BESIDE}{path.name}")
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())  # safetensors leaves its files to their owner alone
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        if keep is not None and path.is_file():
            path.replace(keep)
        temporary.replace(path)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(path)  # the name that the user knows
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Delete what `write_beside` leaves in a folder when its process is killed."""
    for file in folder.glob(f"{_BESIDE}*"):
        file.unlink(missing_ok=True)


_held: set[int] = set()  # descriptors of locked folders


def _let_go() -> None:
    """In a forked process, which would hold a lock as long as it lives."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone. Raises UserError where another burn holds it.

    The lock ends with the process and leaves nothing behind. Where there is no folder, or its file
    system or the operating system has no such locks, nothing is held.
    """
    if fcntl is None or not folder.is_dir():
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    _held.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another burn is at work in {folder}: wait until it has ended"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not there, in UTF-8 but for names of files that are not."""
    write_beside(path, lambda to: to.write_text(text, encoding="utf-8", errors="surrogateescape"))
