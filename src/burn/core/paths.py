"""Paths as a user types them."""

from __future__ import annotations

import difflib
from pathlib import Path

from burn.core.errors import UserError


def expand(spec: str) -> Path:
    """A path with ~ replaced. Raises UserError for the home of nobody, and for no path at all."""
    if not spec:
        raise UserError("a path is empty: a variable that is not set, perhaps; give a name")
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise UserError(f"{spec}: there is no such home folder") from error


def nearest_path(path: Path, cutoff: float = 0.7) -> Path | None:
    """The most similar name in the folder of a path that does not exist, or None.

    cutoff: least similarity, as difflib measures it, in [0, 1].
    """
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except (OSError, ValueError):
        return None
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=cutoff)
    return path.parent / near[0] if near else None


def same_path(one: str, other: str) -> bool:
    """Whether two names mean the same file or folder: `runs/a`, `./runs/a/` and a link to it do.

    A `stream:` before them, as data may have, must be before both.
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
