"""Which images a collection has, under which names, and whether they have changed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from numpy.typing import NDArray

from burn_engine.errors import reading
from burn_engine.folders import Listing, Skipped, is_of_others
from burn_engine.format import ImageSize
from burn_engine.images import enough_for, prepare, read_input
from burn_engine.many import paths_in
from burn_engine.pixels import MOST_BYTES, decode
from burn_engine.tar import COMPRESSED, DamagedTar, members_of

_TAR_SUFFIX = ".tar"
UNKNOWN = (0, 0)  # the stamp of what cannot be opened, or is no file
_IN_TAR = ":"  # between the path of a tar file and the name of its member
_TAR_MEMBER = re.compile(re.escape(_TAR_SUFFIX + _IN_TAR), re.IGNORECASE)


@dataclass(frozen=True)
class Photo:
    """An image of a collection.

    Attributes:
        name: Its path relative to the collection's base, with "/" between folders; for a member of
            a tar file that path, a colon and the member's name.
        path: The file to open.
        stamp: Time of its last change in nanoseconds and its size in bytes; by these it is known
            whether it has changed. UNKNOWN if it is no file.
        offset: Where its bytes begin in the file, if it is a member of a tar file.
        in_tar: Whether it is.
    """

    name: str
    path: str
    stamp: tuple[int, int]
    offset: int = 0
    in_tar: bool = False

    def read(self, size: ImageSize | None) -> NDArray[Any]:
        """Return its pixels, resized and cropped, uint8 (height, width, 3).

        Raises:
            ValueError: It is not an image.
            OSError: It cannot be read.
        """
        if not self.in_tar:
            return read_input(self.path, size)
        if self.stamp[1] > MOST_BYTES:
            raise ValueError(f"{self.name}: more than {MOST_BYTES} bytes: not read as an image")
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            encoded = file.read(self.stamp[1])
        try:
            return prepare(decode(encoded, shortest=enough_for(size)), size)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


def identity_of(path: str | Path) -> tuple[int, int] | None:
    """Return what all names of one file have in common; None if it cannot be opened."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):  # what reads it says why
        return None
    return status.st_dev, status.st_ino


def photos_in(arguments: Sequence[str], base: Path, say: Callable[[str], None]) -> Iterator[Photo]:
    """Yield the images that a command line names; of those with the same path one.

    Args:
        arguments: Files, folders, "-" for a list on standard input, as `many.paths_in` takes them,
            and tar files that are not compressed.
        base: Folder to which names are relative.
        say: Called with a line about what is skipped or cannot be read.

    Raises:
        NoImages: A folder has none.
        ValueError: A tar file is none, is compressed or has no images.
        OSError: A folder cannot be read.
    """
    seen: set[str] = set()
    for argument in arguments:
        if argument != "-":
            argument = _reached(argument, base)  # noqa: PLW2901
        members = _is_tar(argument)
        photos = _members(argument, base, say) if members else _files([argument], base, say)
        for photo in photos:
            if photo.name not in seen:
                seen.add(photo.name)
                yield photo


def roots_of(arguments: Sequence[str], base: Path) -> tuple[str, ...]:
    """Return the beginnings of the names that folders and tar files among arguments stand for."""
    roots = []
    for argument in arguments:
        if argument != "-" and Path(argument).is_dir():
            # Also as earlier versions named what is reached by a link, so that it vanishes.
            for each in {_reached(argument, base), argument}:
                name = name_of(each, base)
                roots.append("" if name == "." else name.rstrip("/") + "/")
        elif _is_tar(argument):
            roots.append(name_of(_reached(argument, base), base) + _IN_TAR)
    return tuple(roots)


def covers(root: str, name: str) -> bool:
    """Return whether a name lies under one of the beginnings that `roots_of` returns."""
    if not name.startswith(root):
        return False
    inside = name[len(root) :]
    elsewhere = inside.startswith("../") or _TAR_MEMBER.search(inside)
    return root.endswith(_IN_TAR) or not elsewhere


def is_gone(argument: str, base: Path, names: Iterable[str]) -> bool:
    """Return whether images of a collection come from a folder or tar file that exists no more."""
    if os.path.lexists(argument):
        return False
    name = name_of(_reached(argument, base), base).rstrip("/")
    roots = (name + "/", name + _IN_TAR)
    return any(covers(root, each) for each in names for root in roots)


def absolute(name: str, base: str) -> Iterator[str]:
    """Yield the absolute path of an image, and those of the tar files that its name may mean.

    Args:
        name: Its name in a collection.
        base: The collection's base, an absolute path.
    """
    path = os.path.normpath(os.path.join(base, name))  # noqa: PTH118 - of any name
    yield path
    for match in _TAR_MEMBER.finditer(path):
        yield path[: match.end() - len(_IN_TAR)]


def name_of(path: str, base: Path) -> str:
    """Return the name of a file in a collection with a base."""
    relative = os.path.relpath(os.path.abspath(path), os.path.abspath(base))  # noqa: PTH100
    return relative.replace(os.sep, "/")


def _reached(argument: str, base: Path) -> str:
    """Return the path of an argument from a base that it lies in, whichever links lead to both."""
    if not name_of(argument, base).startswith("../"):
        return argument
    folder, name = os.path.split(argument)
    if os.path.isdir(argument):  # noqa: PTH112 - of any name
        folder, name = argument, ""
    real = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118
    below = os.path.relpath(real, os.path.realpath(base))
    outside = below.split(os.sep, 1)[0] == os.pardir
    return argument if outside else os.path.normpath(os.path.join(base, below))  # noqa: PTH118


def located(name: str, base: Path) -> tuple[str, str | None]:
    """Return the path of the file of an image, and in a tar file the member's name, else None."""
    match = _TAR_MEMBER.search(name)
    if match is None:
        return os.path.normpath(base / name), None
    return os.path.normpath(base / name[: match.end() - len(_IN_TAR)]), name[match.end() :]


def _of_others(folders: Sequence[tuple[str, ...]]) -> list[tuple[str, ...] | None]:
    """Return for each folder of a tar file the first around it that is another program's, or None.

    The one that all lie in is taken, as a folder that is named itself is.
    """
    common = len({folder[:1] for folder in folders}) == 1
    owners = []
    for folder in folders:
        parts = enumerate(folder[common:], 1 + common)
        end = next((n for n, name in parts if name != ".." and is_of_others(name)), None)
        owners.append(None if end is None else folder[:end])
    return owners


def _in_64_bits(nanoseconds: int) -> int:
    return max(-(2**63), min(nanoseconds, 2**63 - 1))


def _is_tar(argument: str) -> bool:
    return argument.lower().endswith((_TAR_SUFFIX, *COMPRESSED)) and Path(argument).is_file()


def _files(arguments: Sequence[str], base: Path, say: Callable[[str], None]) -> Iterator[Photo]:
    for path in paths_in(arguments, say):
        try:
            status = Path(path).stat()
        except (OSError, ValueError):  # the reader says why
            status = None
        stamp = UNKNOWN
        if status and stat.S_ISREG(status.st_mode):
            stamp = (_in_64_bits(status.st_mtime_ns), status.st_size)
        yield Photo(name_of(path, base), path, stamp)


def _members(path: str, base: Path, say: Callable[[str], None]) -> Iterator[Photo]:
    """Yield the images of a tar file, which is not unpacked: only bytes at offsets are read."""
    name = name_of(path, base)
    changed = _in_64_bits(Path(path).stat().st_mtime_ns)
    members: dict[str, Photo] = {}  # of those with the same name the last, as tar unpacks them
    skipped = Skipped()
    try:
        with reading(path), open(path, "rb") as file:
            for member in members_of(file, os.fstat(file.fileno()).st_size):
                inside = os.fsdecode(member.name)
                if skipped.add(Listing("", [], [PurePosixPath(inside).name], [])):
                    if member.is_sparse:
                        members.pop(inside, None)
                        say(f"{path}: {inside}: stored with holes: left out, unpack it")
                        continue
                    members[inside] = Photo(
                        f"{name}{_IN_TAR}{inside}",
                        path,
                        (changed, member.size),
                        member.offset,
                        in_tar=True,
                    )
    except DamagedTar as error:
        raise ValueError(f"{path} {error}") from None
    others = _of_others([PurePosixPath(name).parts[:-1] for name in members])
    skipped.folders.update(folder[-1] for folder in set(filter(None, others)))
    members = {
        name: photo
        for (name, photo), folder in zip(members.items(), others, strict=True)
        if folder is None
    }
    text = skipped.text(others=False)
    if not members:
        raise ValueError(
            f"{path}: no images in this tar file" + (f"; skipped: {text}" if text else "")
        )
    if text:
        say(f"{path}: skipped: {text}")
    yield from members.values()
