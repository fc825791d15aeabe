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
    """Yield the images at given positions, skipping those that cannot be read.

    Args:
        source: The images.
        ascending: Positions in ascending order.

    Yields:
        Position and image, uint8 (3, height, width).
    """
    readers = image_readers(source, ascending, tensors=True)
    for position, read in zip(ascending, readers, strict=True):
        try:
            yield position, read()
        except UnreadableImage:
            continue


def image_readers(
    source: Source, positions: Sequence[int], *, tensors: bool
) -> Iterator[Callable[[], Any]]:
    """Yield a function for each position that reads its image in any thread.

    Shards are read sequentially while the functions are taken, by the thread that takes them, since
    random access to their images is slow.

    Args:
        source: The images; for arrays, a `PixelSource`.
        positions: Positions in ascending order.
        tensors: Whether the functions return tensors, or arrays, which need no torch.

    Yields:
        A function that returns uint8 (3, height, width) as a tensor, or (height, width, 3) as an
        array, or raises UnreadableImage.
    """
    if isinstance(source, ShardedImages):
        decode = source.decode if tensors else source.decode_pixels
        for position, encoded in zip(positions, source.encoded(positions), strict=True):
            yield partial(decode, position, encoded)
        return
    read = source.read if tensors else cast(PixelSource, source).pixels
    for position in positions:
        yield partial(read, position)
