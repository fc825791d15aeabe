"""The images of a source that can be read, at given positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from burn.data.base import Source
from burn.data.decode import UnreadableImage
from burn.data.formats.shards import ShardedImages


def readable_images(source: Source, ascending: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """Position and image, uint8 (3, height, width), of each that can be read, in ascending order.

    Shards are read forwards: one by one, their images are slow to reach.
    """
    if isinstance(source, ShardedImages):
        for position, encoded in zip(ascending, source.encoded(ascending), strict=True):
            try:
                yield position, source.decode(position, encoded)
            except UnreadableImage:
                continue
        return
    for position in ascending:
        try:
            yield position, source.read(position)
        except UnreadableImage:
            continue
