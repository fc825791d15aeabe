"""Writes a file completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_ABANDONED = 60.0  # seconds after which a file that no process holds is left of one that was killed


@contextlib.contextmanager
def whole_file(path: Path, *, new: bool = False) -> Iterator[BinaryIO]:
    """Open a hidden file in the folder of a path; it takes the path's name if nothing is raised.

    Args:
        path: The file, which is replaced if it exists, by one with the same permissions. Of a link
            its target is.
        new: Whether it may not exist at the end either, as one that another process has written
            meanwhile.

    Raises:
        ValueError: The file cannot be written, or exists although it is to be new.
    """
    target = Path(os.path.realpath(path))
    beside = hidden_name(target)
    try:
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")
        try:
            with beside.open("xb") as file:
                hold(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
            (rename_to_new if new else replace)(beside, target)
        finally:
            beside.unlink(missing_ok=True)
    except FileExistsError:
        raise ValueError(
            f"{path} exists: another command has written it meanwhile; give another name"
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


def hidden_name(path: Path) -> Path:
    """Return a new name in a file's folder, under which it is written, and remove old such files.

    A process that is killed leaves one. Those of the same `path` are removed that have not changed
    for a minute and that no process holds (`hold`).
    """
    prefix = ".writing." + hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]
    for left in path.parent.glob(f"{prefix}????????"):
        with contextlib.suppress(OSError):  # it is another's, or on a file system without locks
            _remove_abandoned(left)
    return path.parent / (prefix + secrets.token_hex(4))


def replace(beside: Path, path: Path) -> None:
    """Give a file another one's name, and its permissions if there is one."""
    with contextlib.suppress(FileNotFoundError):
        beside.chmod(stat.S_IMODE(path.stat().st_mode))
    beside.replace(path)


def rename_to_new(beside: Path, path: Path) -> None:
    """Give a file a name that no other file has, by a hard link, which replaces none.

    The file keeps its old name as well, except on a file system without hard links.

    Raises:
        FileExistsError: There is one, perhaps since a moment ago.
        OSError: The file cannot get the name.
    """
    try:
        os.link(beside, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        beside.replace(path)


def hold(file: BinaryIO) -> None:
    """Keep others from taking an open file to be abandoned, as long as this process lives."""
    if fcntl is not None:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)  # waits while another process looks at its age


def _remove_abandoned(left: Path) -> None:
    if fcntl is None or left.is_symlink() or not left.is_file():
        return
    with left.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.fstat(file.fileno()).st_mtime > _ABANDONED:
            left.unlink()
