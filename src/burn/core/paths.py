"""Paths as a user types them."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from burn.core.errors import UserError

RUN_FILE = "run.json"  # by which the folder of a run is known


def expand(spec: str) -> Path:
    """Return a path with ~ replaced; an empty path or an unknown home folder is a UserError."""
    if not spec:
        raise UserError("a path is empty, perhaps because a variable is not set: give a path")
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise UserError(f"{spec}: there is no such home folder") from error


def resolved(path: Path) -> Path:
    """Return a path without symbolic links and `..`; it need not exist."""
    try:
        return path.resolve()
    except (RuntimeError, OSError) as error:  # RuntimeError before Python 3.13
        raise UserError(f"{path}: its symbolic links form a loop") from error


def run_around(path: Path) -> Path | None:
    """Return the folder of a run that a path is or lies in, or None. The path need not exist."""
    place = resolved(path)
    return next((p for p in (place, *place.parents) if (p / RUN_FILE).is_file()), None)


def require_kept(what: str, spec: str | None, out: Path, option: str = "--out") -> None:
    """Raise UserError if `--overwrite` would delete what is to be read.

    `what` and `spec` are its kind and its name, which may be a path or None; `out` is the folder
    whose content is deleted, and `option` names it.
    """
    if spec and is_there(expand(spec)) and resolved(expand(spec)).is_relative_to(resolved(out)):
        raise UserError(f"--overwrite would delete the {what} {spec}: give another {option}")


def is_there(name: str | Path) -> bool:
    """Return whether there is anything at a path, or False for a name that can be no path."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def _is_place(name: str, place: str | Path) -> bool:
    """Return whether a name means what is at a place.

    A single word means a folder only if that is a run: `photos` is a network that comes with burn
    also beside a folder of photos.
    """
    if not name or not is_there(place):
        return False
    return Path(name).name != name or is_file_or_run(Path(place))


def is_file_or_run(path: Path) -> bool:
    """Return whether a path is a file, or the folder of a run with a trained stage."""
    return path.is_file() or any(path.glob("stage*.safetensors"))


def stored_path(name: str, folder: Path) -> str:
    """Return how a file in a folder names a path, so that both can be moved together.

    That is relative to the folder, or the name itself where there is nothing at that path, such as
    the name of a teacher.
    """
    if not _is_place(name, name):
        return name
    try:
        return os.path.relpath(os.path.realpath(name), os.path.realpath(folder))
    except ValueError:  # on another drive of Windows
        return os.path.realpath(name)


def located_path(name: str, folder: Path) -> str:
    """Return the path that `stored_path` stored in a file, which is now in a folder.

    It is absolute, without links. Files of burn 0.2 and earlier name paths as the command did,
    which is tried second. A name with nothing at either place is returned as it is.
    """
    for place in (folder.resolve() / name, Path(name)):
        if _is_place(name, place):
            return str(Path(place).resolve())
    return name


def nearest_path(path: Path) -> Path | None:
    """Return a similar name in the folder of a path that does not exist, or None."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        return None
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return path.parent / near[0] if near else None


def same_path(first: str, second: str) -> bool:
    """Return whether two names mean the same file or folder, like `runs/a` and `./runs/a/`.

    A `stream:` in front, which data may have, must be in front of both.
    """
    if first == second:
        return True
    prefix = "stream:"
    if first.startswith(prefix) != second.startswith(prefix):
        return False
    try:
        return expand(first.removeprefix(prefix)).samefile(expand(second.removeprefix(prefix)))
    except (OSError, ValueError):  # one of them is not there, or is no path
        return False
