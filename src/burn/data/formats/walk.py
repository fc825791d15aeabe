"""Every folder below a folder, or an error: what cannot be looked into is never left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from burn.core.errors import UserError
from burn.core.inputs import list_folder, status_of

# Links to folders: more than data sets that are made of links have, and few enough that folders
# whose links multiply are noticed soon.
_MOST_LINKS = 100_000
_LONGEST_EXTENSION = 5  # with its dot


@dataclass(frozen=True)
class _Place:
    """A folder by device and inode, and the one that it was reached from."""

    identity: tuple[int, int]
    parent: _Place | None

    def lies_in(self, identity: tuple[int, int]) -> bool:
        place: _Place | None = self
        while place is not None:
            if place.identity == identity:
                return True
            place = place.parent
        return False


def walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Folder, names of its subfolders and of its files, as `os.walk` with the names sorted.

    Other than there, links to folders are followed, but for those back to a folder that holds them;
    and a folder that cannot be read is an error, unless it is hidden or called
    lost+found: those are skipped.

    Raises:
        UserError: A folder cannot be read, or a link of a folder's name leads to nothing.
    """
    waiting: list[tuple[Path, _Place | None]] = [(root, None)]
    links = 0
    while waiting:
        folder, parent = waiting.pop()
        try:
            entries = list_folder(folder)
        except UserError:
            if parent is not None and _is_the_systems(folder.name):
                continue
            raise
        place = _Place(_identity(folder.stat()), parent)
        subfolders, files = [], []
        for entry in entries:
            if not entry.is_symlink():
                (subfolders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
                continue
            target = _target(folder / entry.name)
            if target is None or not stat.S_ISDIR(target.st_mode):
                files.append(entry.name)
            elif not place.lies_in(_identity(target)):
                subfolders.append(entry.name)
                links += 1
        if links > _MOST_LINKS:
            raise UserError(f"{root} holds more than {_MOST_LINKS:,} links to folders")
        yield str(folder), subfolders, files
        waiting += [(folder / name, place) for name in reversed(subfolders)]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_the_systems(name: str) -> bool:
    """Whether a folder's name says that it holds no data of the user's."""
    return name.startswith(".") or name == "lost+found"


def _target(link: Path) -> os.stat_result | None:
    """What a link leads to; None for a file's that leads nowhere, which its reader will notice."""
    named_as_file = link.name.startswith(".") or 1 < len(link.suffix) <= _LONGEST_EXTENSION
    try:
        found = status_of(link)
    except UserError:
        if named_as_file:
            return None
        raise
    if found is None and not named_as_file:
        raise UserError(f"{link} is a link to nothing: fix it, or remove it")
    return found
