"""Atomic writing of files, and locks on folders."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from burn.core.errors import UserError
from burn_engine.whole_file import rename_to_new

Returned = TypeVar("Returned")

_BESIDE = ".writing."  # prefix of the folders that hold unfinished files
_OWN_FOLDER = re.compile(re.escape(_BESIDE) + "[0-9a-f]{16}")


class Busy(UserError):
    """Error for a folder that another process of burn holds."""


def require_free(*paths: Path) -> None:
    """Raise UserError unless new files can be created under these names."""
    for path in paths:
        if path.exists():
            raise UserError(f"{path} already exists: remove it, or give another name")
        if not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}: make it first")


def cannot_be_written(what: object, error: OSError) -> str:
    """Say that a file, or an option that names one, cannot be written, and why."""
    return f"{what} cannot be written: {error.strerror or error}"


@contextlib.contextmanager
def write_failures_named(what: object) -> Iterator[None]:
    """Raise UserError, with the text of `cannot_be_written`, in place of OSError."""
    try:
        yield
    except OSError as error:
        raise UserError(cannot_be_written(what, error)) from error


def write_beside(
    path: Path, write: Callable[[Path], Returned], keep: Path | None = None, *, new: bool = False
) -> Returned:
    """Write the file `path` so that it is complete or not there, whatever happens meanwhile.

    `write`, whose result is returned, fills a file of the same name in a hidden folder beside
    `path`, which is then renamed. The folder belongs to this call alone, so two processes that
    write the same `path` do not disturb each other: the last one's file stays. The file is on the
    disk before it is renamed, so that a machine that loses power keeps the old file or the new one.

    An old file at `path` is renamed to `keep`, if that is given. With `new`, it is a UserError,
    even if another process has written it meanwhile. An OSError names `path`; safetensors' and
    torch's own errors for a full disk become OSErrors too.
    """
    try:
        with _own_folder(path.parent) as folder:
            temporary = folder / path.name
            returned = write(temporary)
            mask = os.umask(0)  # it can only be read by setting it
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)  # safetensors makes files only their owner can read
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            if new:
                _rename_to_new(temporary, path)
                return returned
            if keep is not None and path.is_file():
                path.replace(keep)
            temporary.replace(path)
            return returned
    except OSError as error:
        if error.errno is None or (error.filename and _BESIDE not in str(error.filename)):
            raise
        # The error names the user's file, not that in the hidden folder.
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        if (os_error := _as_os_error(error, path)) is None:
            raise
        raise os_error from error


def _rename_to_new(temporary: Path, path: Path) -> None:
    try:
        rename_to_new(temporary, path)
    except FileExistsError:
        raise UserError(
            f"{path} already exists: another command has written it meanwhile; remove it, or give "
            "another name"
        ) from None


def _as_os_error(error: Exception, path: Path) -> OSError | None:
    """Convert safetensors' or torch's error about writing to an OSError; None for other errors."""
    from safetensors import SafetensorError  # not needed by commands that write nothing

    text = str(error)
    if isinstance(error, SafetensorError):
        if match := re.search(r"\(os error (\d+)\)", text):
            return OSError(int(match[1]), os.strerror(int(match[1])), str(path))
        return OSError(errno.EIO, text, str(path))
    if isinstance(error, RuntimeError) and re.search(
        "inline_container|PytorchStreamWriter|iostream", text
    ):
        reason = "the file cannot be written whole, the disk may be full"
        return OSError(errno.EIO, reason, str(path))
    return None


@contextlib.contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """Create a hidden folder in `parent`, hold its lock while it is used, and then remove it.

    A process that is killed leaves it behind without its lock; the next call removes it.
    """
    remove_abandoned(parent)
    with contextlib.ExitStack() as stack:
        while True:
            folder = parent / f"{_BESIDE}{secrets.token_hex(8)}"
            folder.mkdir()
            with contextlib.suppress(FileNotFoundError):
                stack.enter_context(_lock(folder, wait=True))
            if folder.is_dir():
                break
            stack.close()  # another process removed it before it was locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(parent: Path, *, without_locks: bool = False) -> None:
    """Remove the hidden folders of calls of `write_beside` whose process has ended.

    Other processes may write in `parent` meanwhile: folders that they have locked stay.
    `without_locks` removes them where the file system has no locks, too.
    """
    with contextlib.suppress(OSError):  # the folder is missing, or may not be read
        for folder in list(parent.iterdir()):
            if _OWN_FOLDER.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink():
                with contextlib.suppress(OSError), _lock(folder, wait=False) as state:
                    if state or (state is None and without_locks):
                        shutil.rmtree(folder, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove all that killed calls of `write_beside`, of any version of burn, left in a folder.

    Unlike with `remove_abandoned`, no other process may write there: the folder must belong to the
    caller (`locked`). So files of earlier versions, which have no locks, are removed too.
    """
    remove_abandoned(folder, without_locks=True)
    for file in folder.glob(f"{_BESIDE}*"):
        if not file.is_dir():
            file.unlink(missing_ok=True)


def is_unfinished(path: Path) -> bool:
    """Return whether a path is named as what `remove_unfinished` removes."""
    return path.name.startswith(_BESIDE)


def append_lines(path: Path, lines: str) -> None:
    """Append whole lines, which end with a newline, to a text file, safely with several processes.

    A last line that was cut short is ended first. If the lines cannot be written, which raises
    OSError, the file is left as it was. The text is stored in UTF-8, except for names of files that
    are not.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    content = lines.encode("utf-8", "surrogateescape")
    with path.open("a+b", buffering=0) as file:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size and content:
            file.seek(-1, os.SEEK_END)
            content = content if file.read(1) == b"\n" else b"\n" + content
        try:
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(size)
            error.filename = str(path)
            raise


_held: set[int] = set()  # descriptors of locked folders


def _let_go() -> None:
    """Close inherited locks in a forked process, which would otherwise hold them while it lives."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def locked(folder: Path, patience: float = 0) -> Iterator[None]:
    """Hold a folder for this process alone; raise Busy if another holds it for `patience` seconds.

    The lock ends with the process and leaves nothing behind. If the folder does not exist, or its
    file system or the operating system has no such locks, nothing is held.
    """
    if not folder.is_dir():
        yield
        return
    deadline = time.monotonic() + patience
    while True:
        with _lock(folder, wait=False) as state:
            if state is not False:
                yield
                return
        if time.monotonic() >= deadline:
            raise Busy(f"another burn process is using {folder}: wait until it has ended")
        time.sleep(0.05)


@contextlib.contextmanager
def _lock(folder: Path, *, wait: bool) -> Iterator[bool | None]:
    """Lock a folder and yield True if it is held, False if another holds it, None without locks.

    A child process that is forked meanwhile does not hold it.
    """
    if fcntl is None:
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY)
    _held.add(descriptor)
    try:
        state: bool | None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            state = True
        except BlockingIOError:
            state = False
        except OSError:
            state = None
        yield state
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8 except for names of files that are not."""
    write_beside(path, lambda to: to.write_text(text, encoding="utf-8", errors="surrogateescape"))
