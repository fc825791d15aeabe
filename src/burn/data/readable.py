"""Iterate over the readable images of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from burn.data.base import PixelSource, Source
from burn.data.decode import UnreadableImage
from burn.data.formats.shards import ShardedImages

if TYPE_CHECKING:
    from torch import Tensor


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


def image_readers(
    source: PixelSource, ascending: Sequence[int], *, tensors: bool
) -> Iterator[Callable[[], Any]]:
    """Yield a function for each position that reads its image in any thread.

    Shards are read sequentially while the functions are taken, by the thread that takes them.

    Args:
        source: The images.
        ascending: Positions in ascending order.
        tensors: Whether the functions return tensors, or arrays, which need no torch.

    Yields:
        A function that returns uint8 (3, height, width) as a tensor, or (height, width, 3) as an
        array, or raises UnreadableImage.
    """
    if isinstance(source, ShardedImages):
        decode = source.decode if tensors else source.decode_pixels
        for position, encoded in zip(ascending, source.encoded(ascending), strict=True):
            yield partial(decode, position, encoded)
        return
    read = source.read if tensors else source.pixels
    for position in ascending:
        yield partial(read, position)
