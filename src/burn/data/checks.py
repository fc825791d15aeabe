"""Which images of a source can be read, and checks that are made before a long computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from burn.core.errors import UserError
from burn.core.paths import resolved
from burn.data.base import PixelSource, Source
from burn.data.decode import UnreadableImage
from burn.data.fingerprint import spread
from burn.data.formats.folder import Folder
from burn.data.formats.shards import ShardedImages
from burn.data.splits import Subset

if TYPE_CHECKING:
    from torch import Tensor

_MOST_TRIED = 1000  # images to try before a source counts as unreadable


def readable_images(source: Source, ascending: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield those images at ascending positions that can be read, uint8 (3, height, width)."""
    readers = image_readers(source, ascending, tensors=True)
    for position, read in zip(ascending, readers, strict=True):
        try:
            yield position, read()
        except UnreadableImage:
            continue


def image_readers(
    source: Source, positions: Sequence[int], *, tensors: bool
) -> Iterator[Callable[[], Any]]:
    """Yield a function for each position, in ascending order, that reads its image in any thread.

    It returns a tensor, uint8 (3, height, width), or of a `PixelSource` also an array (height,
    width, 3), which needs no torch; or it raises UnreadableImage. Shards are read sequentially
    while the functions are taken, by the thread that takes them, since random access to their
    images is slow.
    """
    if isinstance(source, ShardedImages):
        decode = source.decode if tensors else source.decode_pixels
        for position, encoded in zip(positions, source.encoded(positions), strict=True):
            yield partial(decode, position, encoded)
        return
    read = source.read if tensors else cast(PixelSource, source).pixels
    for position in positions:
        yield partial(read, position)


def require_readable(source: Source, at_least: int = 1) -> None:
    """Raise UserError unless at least `at_least` images of a source can be decoded.

    The first are tried, and if too few of them can be read, about a thousand from all over it.
    """
    tried = readable = 0
    reason = ""
    for sample, indices in _samples(source, at_least):
        tried, readable = len(indices), 0
        # A packed network needs no torch, which `read` imports.
        read = sample.pixels if isinstance(sample, PixelSource) else sample.read
        for index in indices:
            try:
                read(index)
            except UnreadableImage as error:
                reason = reason or f": {error}"
                continue
            readable += 1
            if readable == at_least:
                return
    how_many = f"only {readable}" if readable else "none"
    total = f"its {tried:,}" if tried == len(source) else f"the {tried:,} tried of {len(source):,}"
    raise UserError(f"{source.name}: {how_many} of {total} images can be read{reason}")


def _samples(source: Source, at_least: int) -> Iterator[tuple[Source, Sequence[int]]]:
    """Yield a source's first images and then a larger sample, each as (source, positions in it)."""
    count, more = len(source), max(_MOST_TRIED, at_least)
    yield source, range(min(count, at_least + 8))
    if isinstance(source, ShardedImages):  # random access to the images of shards is slow
        some = source.sample(more)
        yield some, range(len(some))
    else:
        yield source, spread(count, more)


def missing_labels(source: Source) -> str:
    """Return why not every image of a source has a label, or "" if every image has one."""
    reason = getattr(source, "unlabelled", "")
    if source.labels is None:
        return f"{source.name} has no labels: " + (
            reason
            or "give at least two class folders, a parquet with a column label, a list, CIFAR, CUB "
            "or Birdsnap, or a data set with the attribute targets"
        )
    missing = int((source.labels < 0).sum())
    if not missing:
        return ""
    reason = reason or f"{missing:,} of {len(source):,} images have the label -1"
    return f"{source.name}: {reason}: leave them out, or label them"


def remarks(source: Source) -> list[str]:
    """Return lines on which images of a source are read, and what is left out."""
    return list(getattr(_whole(source), "notes", ()))


def require_outside(out: Path, *sources: Source, option: str = "--out") -> None:
    """Raise UserError if an output folder, which need not exist, lies in a folder of images."""
    for source in map(_whole, sources):
        if isinstance(source, Folder) and resolved(out).is_relative_to(resolved(source.root)):
            raise UserError(
                f"{out} lies in the folder of images {source.root}, which would then hold the "
                f"pictures that are written: give another {option}"
            )


def _whole(source: Source) -> Source:
    """Return the source that a subset is of, or a source itself."""
    while isinstance(source, Subset):
        source = source.whole
    return source
