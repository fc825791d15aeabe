"""Checks of image sources and output folders, made before a long computation starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from burn.core.errors import UserError
from burn.core.paths import resolved
from burn.data.base import PixelSource, Source
from burn.data.decode import UnreadableImage
from burn.data.formats.folder import Folder
from burn.data.formats.labeled import LabeledFiles
from burn.data.formats.shards import ShardedImages
from burn.data.formats.voc import Voc
from burn.data.splits import Subset

_MOST_TRIED = 1000  # images to try before a source counts as unreadable


def require_readable(source: Source, at_least: int = 1) -> None:
    """Raise UserError unless at least `at_least` images of a source can be decoded.

    The first images are tried, and if too few of them can be read, about a thousand from all over
    the source. Reading stops as soon as enough images were decoded.
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
    how_many = "none" if not readable else f"only {readable}"
    total_text = (
        f"the {tried:,} tried of {len(source):,}" if tried < len(source) else f"its {tried:,}"
    )
    raise UserError(f"{source.name}: {how_many} of {total_text} images can be read{reason}")


def _samples(source: Source, at_least: int) -> Iterator[tuple[Source, Sequence[int]]]:
    """Yield a source's first images and then a larger sample, each as (source, positions in it)."""
    count, more = len(source), max(_MOST_TRIED, at_least)
    yield source, range(min(count, at_least + 8))
    if isinstance(source, ShardedImages):  # random access to the images of shards is slow
        some = source.sample(more)
        yield some, range(len(some))
    elif count > more:
        yield source, [index * count // more for index in range(more)]
    else:
        yield source, range(count)


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
    while isinstance(source, Subset):
        source = source.whole
    lines = [text] if (text := getattr(source, "note", "")) else []
    if isinstance(source, Folder) and source.skipped_text:
        lines.append(f"skipped: {source.skipped_text}")
    if isinstance(source, LabeledFiles) and source.missing:
        lines.append(f"{source.missing:,} images it lists have no file")
    if isinstance(source, Voc) and source.skipped:
        lines.append(f"{len(source.skipped):,} faults: {'; '.join(source.skipped[:5])}")
    return lines


def require_outside(out: Path, *sources: Source, option: str = "--out") -> None:
    """Raise UserError if an output folder, which need not exist, lies in a folder of images."""
    for source in sources:
        while isinstance(source, Subset):
            source = source.whole  # noqa: PLW2901
        if isinstance(source, Folder) and resolved(out).is_relative_to(resolved(source.root)):
            raise UserError(
                f"{out} lies in the folder of images {source.root}, which would then hold the "
                f"pictures that are written: give another {option}"
            )
