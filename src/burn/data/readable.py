"""Iterate over the readable images of a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from burn.data.base import Source
from burn.data.decode import UnreadableImage
from burn.data.formats.shards import ShardedImages


def readable_images(source: Source, ascending: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield the images at given positions, skipping those that cannot be read.

    Shards are read sequentially, since random access to their images is slow.

    Args:
        source: The images.
        ascending: Positions in ascending order.

    Yields:
        Position and image, uint8 (3, height, width).
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
