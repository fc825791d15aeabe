"""The parts of a collection of images, each of which becomes one output file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from burn.core.errors import UserError, listed
from burn.core.inputs import status_of
from burn.core.paths import expand, resolved
from burn.data.base import PixelSource
from burn.data.checks import remarks, require_readable
from burn.data.fingerprint import digest, file_contents
from burn.data.formats.shards import ShardedImages, find_shards, open_shard
from burn.data.open import open_source, split_suffix

# Read of each shard for its fingerprint, which must not depend on how many shards there are.
_SHARD_BYTES = 2**23


@dataclass(frozen=True)
class Images:
    """The images of a part, at some positions of a source."""

    source: PixelSource
    positions: range

    @property
    def labels(self) -> np.ndarray | None:
        """The labels of the part's images, int64 (images,), or None."""
        labels = self.source.labels
        return None if labels is None else labels[self.positions.start : self.positions.stop]

    def names(self) -> Sequence[str]:
        """Return the names of the part's images, as messages have them."""
        if isinstance(self.source, ShardedImages):
            return self.source.names()
        return [self.source.describe(position) for position in self.positions]


@dataclass(frozen=True)
class Part:
    """Images that become one output file; `open` raises UserError if they cannot be read."""

    name: str  # of the file, without its suffix
    fingerprint: str
    open: Callable[[], Images]


@dataclass(frozen=True)
class Collection:
    """A collection of images in parts.

    Attributes:
        fingerprint: A string that changes when the images change; None for shards, of which there
            may be more later, and each of which is checked by itself.
        num_images: Number of images; None for shards, which are opened one after the other.
        folder: Folder in and below which no output may be written, because it would become input or
            change what the folder is taken for; None for single files.
        beside: Folders of single files, in which no output may be written.
        notes: Lines on what is read, and what is left out.
    """

    name: str
    fingerprint: str | None
    num_images: int | None
    parts: tuple[Part, ...]
    folder: Path | None
    beside: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def open_collection(spec: str, part_size: int) -> Collection:
    """Divide the images that a specification, as `open_source` takes it, names into parts.

    Each shard of `stream:PATH` is a part, and is not opened yet; two with one name are a UserError.
    Other images are opened as `open_source` does, and divided into parts of `part_size` images, the
    last of which may be smaller.
    """
    return _shards(spec) if spec.startswith("stream:") else _images(spec, part_size)


def _images(spec: str, part_size: int) -> Collection:
    source = open_source(spec)
    require_readable(source)
    assert isinstance(source, PixelSource), "a format of burn's without pixels"
    count = len(source)
    parts = []
    for number, start in enumerate(range(0, count, part_size)):
        positions = range(start, min(start + part_size, count))
        about = digest(source.fingerprint, f"{positions.start} {positions.stop}")
        opened = partial(Images, source, positions)
        parts.append(Part(f"part-{number:05}", about, opened))
    path = expand(split_suffix(spec)[0])
    return Collection(
        source.name,
        source.fingerprint,
        count,
        tuple(parts),
        path if path.is_dir() else None,
        (path.parent,) * (path.suffix == ".parquet"),
        tuple(remarks(source)),
    )


def _shards(spec: str) -> Collection:
    inner = spec.removeprefix("stream:")
    split = "train"
    whole, suffix = split_suffix(inner)
    if suffix in ("train", "test"):
        inner, split = whole, suffix
    paths, name, note = find_shards(inner, split)
    by_stem: dict[str, list[Path]] = {}
    for path in paths:
        by_stem.setdefault(path.stem, []).append(path)
    if twice := next((same_stem for same_stem in by_stem.values() if len(same_stem) > 1), None):
        raise UserError(
            f"{listed(twice, 2)} would give one file {twice[0].stem}.parquet: embed one folder at "
            "a time, each into an --out of its own"
        )
    parts = []
    for path in paths:
        about = digest(file_contents([(path, path.stat().st_size)], _SHARD_BYTES))
        parts.append(Part(path.stem, about, partial(_opened, path)))
    beside = tuple(sorted({path.parent for path in paths}))
    single = len(paths) == 1 and status_of(expand(inner)) is not None
    folder = None if single else Path(os.path.commonpath(beside))
    return Collection(name, None, None, tuple(parts), folder, beside, (note,) if note else ())


def _opened(path: Path) -> Images:
    shard = open_shard(path)
    return Images(shard, range(len(shard)))


def require_apart(out: Path, collection: Collection) -> None:
    """Raise UserError if an output folder lies in one of a collection's folders."""
    place, folder = resolved(out), collection.folder
    below = folder is not None and place.is_relative_to(folder.resolve())
    if below or any(place == parent.resolve() for parent in collection.beside):
        raise UserError(
            f"--out {out} lies in the folder of {collection.name}, whose images the files would "
            "then belong to: give an --out elsewhere"
        )
