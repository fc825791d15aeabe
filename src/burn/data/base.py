"""The interface of an image source, which returns unaugmented uint8 images by position."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from burn.data.decode import as_tensor, decode_pixels, read_image

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["train", "test"]


EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")
# Extensions of image formats that cannot be read.
UNREAD_EXTENSIONS = (
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".svg",
    ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2",
)  # fmt: skip
HELD_OUT = ("test", "val", "valid", "validation")


class Source(Protocol):
    """A source of images, with labels or without.

    `read` returns an image as uint8 (3, height, width), or raises UnreadableImage if it cannot be
    decoded. `describe` returns the name of an image for messages.

    Attributes:
        name: Name of the source for messages.
        classes: Names of the classes, in the order of their labels; empty without labels.
        labels: int64 (images,), or None.
        fingerprint: A string that changes when the images or their labels change, and does not
            depend on their place or times; `burn.data.fingerprint` says what burn's own sources
            read for it.
    """

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray | None
    fingerprint: str

    def __len__(self) -> int: ...
    def read(self, index: int) -> Tensor: ...
    def describe(self, index: int) -> str: ...


@runtime_checkable
class PixelSource(Source, Protocol):
    """A source that returns its images without torch, too; all of burn's own formats do.

    `pixels` returns an image as uint8 (height, width, 3), and raises UnreadableImage as `read`.
    """

    def pixels(self, index: int) -> np.ndarray: ...


def named_part(words: Collection[str], split: Split) -> str | None:
    """Find the word that names a split among names of folders or files.

    Args:
        words: The names. A word of `HELD_OUT` names the test split; the first that occurs is used.
        split: The split to find.

    Returns:
        The word, or None unless both the training and the test split are named.
    """
    held_out = next((word for word in HELD_OUT if word in words), None)
    if held_out is None or "train" not in words:
        return None
    return "train" if split == "train" else held_out


class ImageFiles:
    """Base class of sources that read image files below a folder."""

    _path: Path
    _names: list[str]

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> Tensor:
        return as_tensor(self.pixels(index))

    def pixels(self, index: int) -> np.ndarray:
        file = self._path / self._names[index]
        return decode_pixels(read_image(file), str(file))

    def describe(self, index: int) -> str:
        return str(self._path / self._names[index])
