"""A source gives undecorated uint8 images by position."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from burn.data.decode import decode, read_image

Split = Literal["train", "test"]


EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")
# Formats of photographs and pictures that are not read, by extension.
UNREAD_EXTENSIONS = (
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".svg",
    ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2",
)  # fmt: skip
HELD_OUT = ("test", "val", "valid", "validation")


class Source(Protocol):
    """Images by position, and their labels where there are any.

    labels: int64 (images,) or None. fingerprint: changes when the images do (names and sizes, not
    every byte). `read` returns uint8 (3, height, width) or raises UnreadableImage.
    """

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray | None
    fingerprint: str

    def __len__(self) -> int: ...
    def read(self, index: int) -> Tensor: ...
    def describe(self, index: int) -> str: ...


def named_part(words: Collection[str], split: Split) -> str | None:
    """The word that names the split, where both are named."""
    held_out = next((word for word in HELD_OUT if word in words), None)
    if held_out is None or "train" not in words:
        return None
    return "train" if split == "train" else held_out


class ImageFiles:
    """Image files, by their names below a folder."""

    _path: Path
    _names: list[str]

    def __len__(self) -> int:
        return len(self._names)

    def read(self, index: int) -> Tensor:
        file = self._path / self._names[index]
        return decode(read_image(file), str(file))

    def describe(self, index: int) -> str:
        return str(self._path / self._names[index])
