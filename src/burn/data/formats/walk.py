"""Walk through folders, with an error instead of an omission if a folder cannot be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from burn.core.errors import UserError
from burn.core.inputs import list_folder, status_of

# Links to folders: more than datasets that are made of links have, and few enough that folders
# whose links multiply are noticed soon.
_MOST_LINKS = 100_000
_LONGEST_EXTENSION = 5  # characters, including the dot


@dataclass(frozen=True)
class _Place:
    """A folder, identified by device and inode, and the folder that it was reached from."""

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
    """Walk through a folder like `os.walk`, with sorted names.

    Unlike `os.walk`, it follows links to folders, except to a folder that contains the link, and it
    raises an error if a folder cannot be read. Hidden folders and lost+found are skipped if they
    cannot be read.

    Args:
        root: The folder.

    Yields:
        A folder, the names of its subfolders, and the names of its files.

    Raises:
        UserError: A folder cannot be read, a link without a file extension leads to nothing, or
            there are too many links to folders.
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
    """Return whether a folder belongs to the system, by its name, and holds no data of the user."""
    return name.startswith(".") or name == "lost+found"


def _target(link: Path) -> os.stat_result | None:
    """Return the status of a link's target, or None if the link is named as a file and dangles.

    Whoever reads the file will report the dangling link.
    """
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
