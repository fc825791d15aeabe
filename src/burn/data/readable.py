"""Iterate over the readable images of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from burn.data.base import PixelSource, Source
from burn.data.decode import UnreadableImage
from burn.data.formats.shards import ShardedImages

if TYPE_CHECKING:
    from torch import Tensor


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
