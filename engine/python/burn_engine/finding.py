"""What `burn-engine index` and `search` do: keep an index of folders up to date, and ask it."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from burn_engine.collection import UNKNOWN, Photo, absolute, covers, located
from burn_engine.errors import ModelError, file_name_of, path_of
from burn_engine.format import Floats
from burn_engine.images import PillowMissing
from burn_engine.index import Index, Match
from burn_engine.many import IMAGE_ERRORS, Progress, read_ahead
from burn_engine.model import Model
from burn_engine.pretrained import name_of

_AT_ONCE = 256  # images that are added to the index at once
_COPIES = 64  # about as often is an index copied at most in which all images have changed
_TOGETHER = 8  # images that a thread takes at once, so that threads seldom wait for each other
_SAVE_EVERY = 60.0  # seconds between two saves of an index that is being made


@dataclass
class Changes:
    """What an update of an index did.

    Attributes:
        added: number of images that are new in it.
        changed: number of images whose files had changed.
        removed: number of images whose files have vanished.
        failed: number of images that could not be read and are left out.
        unchanged: number of images that were in it as they are.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    failed: int = 0
    unchanged: int = 0

    def text(self) -> str:
        """Describe the changes in one line."""
        more = {
            "changed": self.changed,
            "vanished": self.removed,
            "left out": self.failed,
            "unchanged": self.unchanged,
        }
        parts = [f"{count:,} {word}" for word, count in more.items() if count]
        return ", ".join([f"{self.added:,} new", *parts])


def open_index(path: Path, model: Model, vectors: str | None = None) -> Index:
    """Read an index, or make an empty one if there is no such file.

    Args:
        path: The file.
        model: The network of its features.
        vectors: What a new index keeps, as in `Index`, and what one that exists must keep; None
            for "float16" and anything.

    Raises:
        ModelError: The file is no index, or one of another network or with other vectors.
        OSError: The file cannot be read.
    """
    if not path.exists():
        return Index(model.num_features, vectors=vectors or "float16", network=model.fingerprint)
    index = Index.load(path)
    require_network(index, path, model)
    if vectors is not None and vectors != index.vectors:
        raise ModelError(f"{path}: it was made with --vectors {index.vectors}: make a new index")
    return index


def require_network(index: Index, path: Path, model: Model) -> None:
    """Raise ModelError if an index was made with another network."""
    if index.network != model.fingerprint:
        name = name_of(index.network)
        which = "another network: give that one as --model"
        if name is not None:
            which = f"the network {name}: give --model {name}"
        raise ModelError(f"{path}: it was made with {which}, or another file")


def update(
    index: Index,
    model: Model,
    photos: Sequence[Photo],
    roots: Sequence[str],
    *,
    readers: int,
    say: Callable[[Photo, Exception], None],
    save: Callable[[], None],
    progress: Progress,
) -> Changes:
    """Bring an index up to date: read what is new or has changed, remove what has vanished.

    What is finished is in the index, and nothing half of it, if an exception ends the work.

    Args:
        index: The index.
        model: The network of its features.
        photos: The images that there are.
        roots: Beginnings of names. Images of the index with such a name that are not among
            `photos` have vanished.
        readers: Number of threads that read images.
        say: Called for each image that cannot be read, which is left out.
        save: Saves the index; called every minute, so that a crash loses little.
        progress: Shows how many images are done.
    """
    changes = Changes()
    before = index.stamps()
    there = {photo.name for photo in photos}
    # A link to nothing may be one to a disk that will be there again.
    unknown = tuple(photo.name + "/" for photo in photos if photo.stamp == UNKNOWN)
    vanished = [
        name
        for name in before
        if name not in there
        and not name.startswith(unknown)
        and any(covers(root, name) for root in roots)
    ]
    index.remove(vanished)
    changes.removed = len(vanished)
    work = [photo for photo in photos if before.get(photo.name) != photo.stamp]
    changes.unchanged = len(photos) - len(work)
    ready: list[tuple[Photo, Floats]] = []
    gone: list[str] = []

    def settle() -> None:
        index.remove(name for name in gone if name in index)  # an interrupt may have come before
        gone.clear()
        _add(index, ready)

    saved = time.monotonic()
    try:
        for done, (photo, vector) in enumerate(_embeddings(model, work, readers), 1):
            if isinstance(vector, Exception):
                changes.failed += 1
                if photo.name in before and _is_no_image(vector):
                    gone.append(photo.name)
                say(photo, vector)
            else:
                ready.append((photo, vector))
                changes.changed += photo.name in before
                changes.added += photo.name not in before
            # To replace or to remove images copies the whole index, however few they are.
            if len(ready) >= max(_AT_ONCE, len(index) // _COPIES):
                settle()
            if time.monotonic() - saved > _SAVE_EVERY:
                settle()
                save()
                saved = time.monotonic()
            progress.show(done)
    finally:
        settle()
    return changes


def remove(index: Index, base: Path, paths: Sequence[str]) -> int:
    """Remove images, and all that are in a folder or tar file, whether or not these still exist.

    Args:
        index: The index.
        base: Its folder.
        paths: Images, folders and tar files.

    Returns:
        The number of images that were removed.

    Raises:
        ValueError: The index has no image of a path; nothing is removed then.
    """
    given: dict[str, str] = {}  # what was given, by its absolute paths
    for path in paths:
        folder, name = os.path.split(file_name_of(path).rstrip("/") or "/")
        given[os.path.abspath(path)] = path  # noqa: PTH100 - a link is not followed
        given[os.path.normpath(os.path.join(os.path.realpath(folder), name))] = path  # noqa: PTH118
    bases = {os.path.abspath(base), os.path.realpath(base)}  # noqa: PTH100

    @cache  # many images are in the same folder
    def around(folder: str) -> set[str]:
        folders = (folder, *map(str, PurePath(folder).parents))
        return {given[each] for each in folders if each in given}

    used: set[str] = set()
    chosen = []
    for name in index.names:
        reasons: set[str] = set()
        for path in (path for at in bases for path in absolute(name, at)):
            reasons |= around(os.path.dirname(path))  # noqa: PTH120 - as fast as it can be
            if path in given:
                reasons.add(given[path])
        if reasons:
            used |= reasons
            chosen.append(name)
    if unused := [path for path in paths if path not in used]:
        raise ValueError(f"{unused[0]}: the index has no image of this name, and none in it")
    index.remove(chosen)
    return len(chosen)


def _is_no_image(error: Exception) -> bool:
    """Return whether an image is gone for good, and not only unreadable at this moment."""
    if isinstance(error, FileNotFoundError):
        return True
    return isinstance(error, ValueError) and not isinstance(error, PillowMissing)


def _embeddings(
    model: Model, photos: Sequence[Photo], readers: int
) -> Iterator[tuple[Photo, Floats | Exception]]:
    """Yield each image with its vector of length 1, or with the error that it caused.

    The threads that read images run the network on them, too: it would be the limit in one thread.
    """
    some = max(1, min(_TOGETHER, len(photos) // (4 * readers)))
    if model.backend == "reference":  # which adds in another order for several images
        some = 1
    parts = [photos[begin : begin + some] for begin in range(0, len(photos), some)]
    reading = read_ahead(parts, lambda part: _embedded(part, model), readers)
    with contextlib.closing(reading) as parts_read:
        for part, vectors in parts_read:
            if isinstance(vectors, Exception):
                raise vectors
            yield from zip(part, vectors, strict=True)


def _embedded(photos: Sequence[Photo], model: Model) -> list[Floats | Exception]:
    """Return the vectors of some images, or the errors that they cause."""
    outcomes: list[NDArray[Any] | Exception] = []
    alike: dict[tuple[Any, ...], list[int]] = {}  # positions of images that make one array
    for at, photo in enumerate(photos):
        try:
            image = photo.read(model.image)
        except IMAGE_ERRORS as error:
            outcomes.append(error)
        else:
            outcomes.append(image)
            alike.setdefault((image.shape, image.dtype), []).append(at)
    for places in alike.values():
        vectors = _vectors(model, [cast("NDArray[Any]", outcomes[at]) for at in places])
        for at, vector in zip(places, vectors, strict=True):
            outcomes[at] = vector
            if isinstance(vector, Exception):
                outcomes[at] = type(vector)(f"{photos[at].name}: {vector}")
    return outcomes


def _vectors(model: Model, images: Sequence[NDArray[Any]]) -> list[Floats | Exception]:
    """Return the vectors of images of one shape, or the errors that they cause."""
    try:
        return list(model.embed(np.stack(images)))
    except (ValueError, MemoryError) as error:
        if len(images) == 1:
            return [error]
    return [_vectors(model, [image])[0] for image in images]


def _add(index: Index, ready: list[tuple[Photo, Floats]]) -> None:
    if ready:
        photos, vectors = zip(*ready, strict=True)
        index.add([p.name for p in photos], np.stack(vectors), [p.stamp for p in photos])
        ready.clear()


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Lock an index for writing, so that of two commands that update it one is refused.

    Raises:
        ValueError: Another process is writing it, or its folder cannot be written.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    while True:
        try:
            # Not blocked by a pipe of that name, nor led elsewhere by a link.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            held = os.open(lock, flags, 0o666)
        except OSError as error:
            if lock.is_symlink():
                raise ValueError(_in_the_way(lock)) from None
            raise ValueError(f"{path} cannot be written: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(held).st_mode) or os.fstat(held).st_size:
                raise ValueError(_in_the_way(lock))
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"{path}: another process is writing it; try again later"
                ) from None
            if not lock.exists() or not os.path.samestat(os.fstat(held), lock.stat()):
                continue  # who held it has removed it meanwhile
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)  # while it is held
            return
        finally:
            os.close(held)


def _in_the_way(lock: Path) -> str:
    return f"{lock} is no lock of burn-engine: remove it, or give the index another name"


def results(matches: Sequence[Match], base: Path) -> list[dict[str, object]]:
    """Return what a search found as JSON has it, with paths as they are opened from here."""
    return [
        {
            "image": location(match.name, base)[0],
            "distance": match.distance,
            **({} if match.similarity is None else {"similarity": round(match.similarity, 4)}),
        }
        for match in matches
    ]


def file_of(index: str) -> Path:
    """Return the file of an index, not a link to it: names are relative to its folder."""
    path = path_of(index)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def files_of(index: Index, path: Path) -> set[str]:
    """Return the files that the images of an index are in.

    Args:
        index: The index.
        path: Its file.
    """
    return {located(name, path.parent)[0] for name in index.names}


def location(name: str, base: Path) -> tuple[str, bool]:
    """Return where an image of an index is, relative to the current folder if it lies in it.

    Args:
        name: Its name in the index.
        base: The index's folder.

    Returns:
        Its path, in a tar file followed by a colon and its name there, and whether the path is
        that of a file.
    """
    file, member = located(name, base)
    path = os.path.abspath(file)  # noqa: PTH100
    here = os.getcwd() + os.sep  # noqa: PTH109
    path = path[len(here) :] if path.startswith(here) else path
    return (path, True) if member is None else (f"{path}:{member}", False)
