"""The interface of an image source, which returns unaugmented uint8 images by position."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from burn.data.decode import as_tensor, decode_pixels, read_image

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["train", "test"]


# The words for the parts of data, in lower case; of several the first is taken.
_WORDS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation", "eval", "evaluation", "dev"),
}


class Source(Protocol):
    """A source of images, with labels or without.

    `read` returns an image as uint8 (3, height, width), or raises UnreadableImage if it cannot be
    decoded. `describe` returns the name of an image for messages.

    Attributes:
        name: Name of the source for messages.
        classes: Names of the classes, in the order of their labels; empty without labels.
        labels: int64 (images,), -1 for an image without a label; None if no image has one.
        fingerprint: A string that changes when the images or their labels change, and does not
            depend on their place or times; `burn.data.fingerprint` says what burn's own sources
            read for it.

    A source may also have `unlabelled`, which says why images have no label ("" if all have one),
    and `notes`, lines on what is read or left out.
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

    def read(self, index: int) -> Tensor:
        return as_tensor(self.pixels(index))


def is_part(name: str) -> bool:
    """Return whether a name is a word for a part of data, whatever its case."""
    return any(name.lower() in words for words in _WORDS.values())


def named_part(names: Collection[str], split: Split) -> list[str]:
    """Find the names of a split among names of folders or files.

    Case does not matter: `Train`, `training` and `train` name the training split, `test`, `val` and
    others the test split. Several names that are returned differ in case alone; there are none
    unless both the training and the test split are named.
    """
    parts: dict[Split, list[str]] = {}
    for part, words in _WORDS.items():
        word = next((w for w in words if any(name.lower() == w for name in names)), None)
        if word is None:
            return []
        parts[part] = sorted({name for name in names if name.lower() == word})
    return parts[split]


def part_word(file: Path) -> str:
    """Return the first word of a shard's name, as `train` of train-00000-of-00002.parquet."""
    return re.split("[-_.]", file.name)[0]


class ImageFiles(PixelSource):
    """Base class of sources that read image files below a folder."""

    root: Path
    _names: list[str]

    def __len__(self) -> int:
        return len(self._names)

    def pixels(self, index: int) -> np.ndarray:
        return decode_pixels(read_image(self.root / self._names[index]), self.describe(index))

    def describe(self, index: int) -> str:
        return str(self.root / self._names[index])
