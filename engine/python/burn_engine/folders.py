"""What a folder holds: which of its files are images, and what in it other programs have left.

This rule is burn's too. It needs nothing but Python.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# The suffixes of images that are read, in lower case.
SUFFIXES = (
    ".apng", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".mpo", ".pbm", ".pgm", ".png",
    ".pnm", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
# The suffixes of images in formats that are not read.
UNREAD_SUFFIXES = (
    ".heic", ".heics", ".heif", ".hif", ".avif", ".jxl", ".jp2", ".psd", ".svg", ".exr", ".tga",
    ".dng", ".cr2", ".cr3", ".nef", ".nrw", ".arw", ".orf", ".pef", ".raf", ".rw2", ".srw",
)  # fmt: skip
# Folders that operating systems, file servers and archives create, in lower case. Hidden folders,
# such as .ipynb_checkpoints, .thumbnails and .Trash-1000, need no entry.
_OTHERS_FOLDERS = frozenset((
    "__macosx", "__pycache__", "lost+found", "$recycle.bin", "system volume information", "@eadir",
    "@tmp", "@recycle", "@recently-snapshot", "@__thumb", "#recycle", "#snapshot",
    "network trash folder", "temporary items",
))  # fmt: skip
# Links to folders: more than folders that are made of links have, and few enough that folders
# whose links multiply are noticed soon.
_MOST_LINKS = 100_000
_LONGEST_SUFFIX = 5  # characters, including the dot


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name in lower case, with its dot; "" if there is none."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 - ten times as fast as Path


def is_named_otherwise(path: Path, suffix: str) -> bool:
    """Return whether a file to write is named as one of another kind than those ending in `suffix`.

    Such a name is a slip, as that of a photograph that a shell put in place of `*.jpg`.
    """
    others = {*SUFFIXES, *UNREAD_SUFFIXES, ".npy", ".tar", ".html", ".bnn", ".index"} - {suffix}
    return suffix_of(path.name) in others


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden by its name, as macOS's `._photo.jpg` is."""
    return name.startswith(".")


def is_image(name: str) -> bool:
    """Return whether a file in a folder is taken to be an image, by its name."""
    return suffix_of(name) in SUFFIXES and not is_hidden(name)


def is_of_others(name: str) -> bool:
    """Return whether a folder belongs to another program, by its name, and is skipped."""
    return is_hidden(name) or name.lower() in _OTHERS_FOLDERS


class Listing(NamedTuple):
    """The names in a folder, each list sorted.

    Attributes:
        path: The folder.
        folders: Its subfolders, which are walked through next, in this order.
        files: Its files.
        skipped: Its subfolders that belong to other programs.
    """

    path: str
    folders: list[str]
    files: list[str]
    skipped: list[str]


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


def walk(root: str | Path, dangling: list[str] | None = None) -> Iterator[Listing]:
    """Walk through a folder at any depth: a folder before its subfolders, names in order.

    Links to folders are followed, except to a folder that contains the link. Folders of other
    programs are not entered, unless `root` itself is one.

    Args:
        root: The folder.
        dangling: Receives the paths of links without a suffix that lead to nothing, each before the
            listing of its folder; None to raise an error for them.

    Raises:
        OSError: A folder cannot be read.
        ValueError: A link without a suffix leads to nothing, or there are too many links to
            folders.
    """
    waiting: list[tuple[str, _Place | None]] = [(str(root), None)]
    links = 0
    while waiting:
        folder, parent = waiting.pop()
        # Listing needs read permission; looking up what is listed needs search permission.
        try:
            status = os.stat(os.path.join(folder, os.curdir))  # noqa: PTH116, PTH118 - with the dot
            with os.scandir(folder) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            error.filename = folder
            raise
        place = _Place((status.st_dev, status.st_ino), parent)
        listing = Listing(folder, [], [], [])
        for entry in entries:
            if not entry.is_symlink():
                is_folder = entry.is_dir(follow_symlinks=False)
            else:
                try:
                    target = _target(entry)
                except _LinkToNothing:
                    if dangling is None:
                        raise
                    dangling.append(entry.path)
                    continue
                is_folder = target is not None and stat.S_ISDIR(target.st_mode)
                if target is not None and is_folder:
                    if place.lies_in((target.st_dev, target.st_ino)):
                        continue
                    links += not is_of_others(entry.name)
            if not is_folder:
                listing.files.append(entry.name)
            else:
                (listing.skipped if is_of_others(entry.name) else listing.folders).append(
                    entry.name
                )
        if links > _MOST_LINKS:
            raise ValueError(f"{root} holds more than {_MOST_LINKS:,} links to folders")
        yield listing
        waiting += [(str(Path(folder, name)), place) for name in reversed(listing.folders)]


class _LinkToNothing(ValueError):
    """A link that looks like one to a folder leads to nothing."""


def _target(link: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of a link's target, or None if the link is named as a file and dangles.

    Whoever reads the file will report the dangling link.
    """
    named_as_file = is_hidden(link.name) or 1 < len(suffix_of(link.name)) <= _LONGEST_SUFFIX
    try:
        return link.stat()
    except OSError as error:
        if named_as_file:
            return None
        to = {errno.ENOENT: "nothing", errno.ELOOP: "itself"}.get(error.errno or 0)
        if to is None:
            raise
        raise _LinkToNothing(f"{link.path} is a link to {to}: fix it, or remove it") from None


@dataclass
class Skipped:
    """What is skipped of a folder.

    Attributes:
        files: Number of files that are not read, by lower-case suffix ("" for none), without hidden
            ones.
        folders: Number of folders of other programs, by name.
        hidden: Number of hidden files that are named as images.
    """

    files: Counter[str] = field(default_factory=Counter)
    folders: Counter[str] = field(default_factory=Counter)
    hidden: int = 0

    def add(self, listing: Listing, is_read: Callable[[str], bool] = is_image) -> list[str]:
        """Count what is skipped of a listing, and return the names of the other files.

        Args:
            listing: The listing.
            is_read: Tells by its name whether a file is read.
        """
        self.folders.update(listing.skipped)
        read = []
        for name in listing.files:
            if is_hidden(name):
                self.hidden += suffix_of(name) in SUFFIXES
            elif is_read(name):
                read.append(name)
            else:
                self.files[suffix_of(name)] += 1
        return read

    def text(self, *, others: bool = True) -> str:
        """Describe what is skipped in words.

        Args:
            others: Also count hidden images, and files that are not images.

        Returns:
            The description; "" if there is nothing to tell.
        """
        parts = [skipped_files(self.files, others=others)]
        if others and self.hidden:
            parts.append(f"{self.hidden:,} hidden image{'s' if self.hidden > 1 else ''}")
        if self.folders:
            count = sum(self.folders.values())
            names = ", ".join(sorted(self.folders)[:4]) + (", …" if len(self.folders) > 4 else "")
            parts.append(f"{count:,} folder{'s' if count > 1 else ''} of other programs ({names})")
        return ", ".join(part for part in parts if part)


def skipped_files(counts: Mapping[str, int], *, others: bool = True) -> str:
    """Describe the files of a folder that are not read, in words.

    Args:
        counts: Number of files by suffix.
        others: Also count files that are not images.

    Returns:
        The description; "" if there is nothing to tell.
    """
    unread = sorted((e for e in counts if e in UNREAD_SUFFIXES), key=lambda e: (-counts[e], e))
    parts = []
    if unread:
        named = ", ".join(f"{counts[e]:,} {e[1:].upper()}" for e in unread[:4])
        more = sum(counts[e] for e in unread[4:])
        named += f", {more:,} in other formats" if more else ""
        parts.append(f"{named} (not read: convert them to JPEG or PNG)")
    rest = sum(counts.values()) - sum(counts[e] for e in unread)
    if rest and others:
        parts.append(f"{rest:,} other file{'s' if rest > 1 else ''}")
    return ", ".join(parts)
