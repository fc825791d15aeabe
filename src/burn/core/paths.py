"""Paths as a user types them."""

from __future__ import annotations

import difflib
from pathlib import Path

from burn.core.errors import UserError

RUN_FILE = "run.json"  # by which the folder of a run is known


def expand(spec: str) -> Path:
    """Return a path with ~ replaced.

    Raises:
        UserError: The path is empty, or ~ names a user who does not exist.
    """
    if not spec:
        raise UserError("a path is empty, perhaps because a variable is not set: give a path")
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise UserError(f"{spec}: there is no such home folder") from error


def resolved(path: Path) -> Path:
    """Return a path without symbolic links and `..`; it need not exist.

    Raises:
        UserError: Its symbolic links form a loop.
    """
    try:
        return path.resolve()
    except (RuntimeError, OSError) as error:  # RuntimeError before Python 3.13
        raise UserError(f"{path}: its symbolic links form a loop") from error


def run_around(path: Path) -> Path | None:
    """Return the folder of a run that a path is or lies in, or None. The path need not exist.

    Raises:
        UserError: Its symbolic links form a loop.
    """
    place = resolved(path)
    return next((p for p in (place, *place.parents) if (p / RUN_FILE).is_file()), None)


def nearest_path(path: Path, cutoff: float = 0.7) -> Path | None:
    """Return the most similar name in the folder of a path that does not exist, or None.

    Args:
        path: The path.
        cutoff: Least similarity, as difflib measures it, in [0, 1].
    """
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        return None
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=cutoff)
    return path.parent / near[0] if near else None


def same_path(one: str, other: str) -> bool:
    """Return whether two names mean the same file or folder, like `runs/a` and `./runs/a/`.

    A `stream:` in front, which data may have, must be in front of both.
    """
    if one == other:
        return True
    prefix = "stream:"
    if one.startswith(prefix) != other.startswith(prefix):
        return False
    try:
        return expand(one.removeprefix(prefix)).samefile(expand(other.removeprefix(prefix)))
    except (OSError, ValueError):  # one of them is not there, or is no path
        return False
