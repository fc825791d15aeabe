"""What a source must fulfil before hours are spent on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from burn.core.errors import UserError
from burn.data.base import Source
from burn.data.decode import UnreadableImage
from burn.data.formats.folder import Folder

_MOST_TRIED = 1000  # images, before a source is taken for one without any


def require_readable(source: Source, at_least: int = 1) -> None:
    """Raise UserError unless so many images can be decoded; stops reading as soon as they are.

    The first images are tried, and where those cannot be read some thousand all over the source.
    """
    tried = readable = 0
    reason = ""
    for some, indices in _samples(source, at_least):
        tried, readable = len(indices), 0
        for index in indices:
            try:
                some.read(index)
            except UnreadableImage as error:
                reason = reason or f": {error}"
                continue
            readable += 1
            if readable == at_least:
                return
    found = "none" if not readable else f"only {readable}"
    of = f"the {tried:,} tried of {len(source):,}" if tried < len(source) else f"its {tried:,}"
    raise UserError(f"{source.name}: {found} of {of} images can be read{reason}")


def _samples(source: Source, at_least: int) -> Iterator[tuple[Source, Sequence[int]]]:
    """A source's first images, and then more of them: sources, and positions in these."""
    count, more = len(source), max(_MOST_TRIED, at_least)
    yield source, range(min(count, at_least + 8))
    if isinstance(source, _HasSample):  # one by one, images of shards are slow to reach
        some = source.sample(more)
        yield some, range(len(some))
    elif count > more:
        yield source, [index * count // more for index in range(more)]
    else:
        yield source, range(count)


@runtime_checkable
class _HasSample(Protocol):
    def sample(self, count: int) -> Source: ...


def require_outside(out: Path, *sources: Source) -> None:
    """Raise UserError where a folder to write into lies in a folder of images.

    The pictures that are written there would be images of it from then on.
    """
    for source in sources:
        if isinstance(source, Folder) and out.resolve().is_relative_to(source.root.resolve()):
            raise UserError(
                f"--out {out} lies in the folder of images {source.root}, which would then hold "
                "the pictures that are written: give an --out elsewhere"
            )
