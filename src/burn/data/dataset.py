"""A source of images that reads a PyTorch dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from burn.core.errors import UserError, shortened
from burn.data.decode import UnreadableImage
from burn.data.fingerprint import digest, spread
from burn.data.labels import NoLabels, classes_of, labels_of, unnamed
from burn.runtime.signals import StopsAreErrors
from burn_engine.pixels import from_pillow

# The fingerprint is computed from evenly spread images of this size in all, but from 16 at least.
_LOOKED_AT = 2**26  # bytes of pixels
_LEAST_IMAGES = 16


class DatasetSource:
    """The images of a dataset with `__len__` and `__getitem__`.

    An item is an image or a tuple that begins with one: a PIL image, a uint8 tensor or array, or a
    floating-point tensor in [0, 1]. Tensors are (3, height, width) or (1, height, width), arrays
    (height, width, 3), (height, width, 1) or (height, width). Grey images become three equal
    channels; PIL images are converted as those in files are. Labels are taken from the attribute
    `targets` or `labels`, with -1 or None for an image without one, and names of classes from
    `classes`, as torchvision's datasets have them.

    The dataset must return the same image for the same position every time, so it must not apply
    random transforms: an image among 16 items that are tried is read twice.
    """

    def __init__(self, dataset: Any) -> None:
        self.name = type(dataset).__name__
        if isinstance(dataset, (bytes, bytearray)) or not hasattr(dataset, "__len__"):
            what = "is no path" if isinstance(dataset, (bytes, bytearray)) else "has no length"
            raise UserError(f"{self.name} {what}: give a path as text, or a map-style data set")
        try:
            self._length = len(dataset)
        except Exception as error:  # the dataset is the user's code, which may return -1 or None
            raise UserError(f"{self.name}: its length cannot be used: {_reason(error)}") from error
        if not self._length:
            raise UserError(f"{self.name} holds no image")
        self._dataset = dataset
        self.labels, self.classes, self.unlabelled = self._read_labels()
        self.fingerprint = self._read_fingerprint()

    def __len__(self) -> int:
        return self._length

    def read(self, index: int) -> Tensor:
        """Return an image as `Source.read` does; what the dataset raises makes it unreadable."""
        try:
            with StopsAreErrors():
                item = self._dataset[index]
        except Exception as error:  # the dataset is the user's code
            raise UnreadableImage(f"{self.describe(index)}: {_reason(error)}") from error
        image = item[0] if isinstance(item, (tuple, list)) and item else item
        if isinstance(image, Image.Image):
            try:
                image = from_pillow(image)  # Pillow decodes here
            except ValueError as error:
                reason = shortened(" ".join(str(error).split()), 200)
                raise UnreadableImage(f"{self.describe(index)}: {reason}") from error
        if isinstance(image, np.ndarray):
            pixels = image[:, :, None] if image.ndim == 2 else image
            if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or pixels.dtype != np.uint8:
                raise self._unknown(index, f"an array {image.dtype} {image.shape}")
            image = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        if not isinstance(image, Tensor):
            raise self._unknown(index, f"a {type(image).__name__}")
        if image.ndim != 3 or image.shape[0] not in (1, 3) or not min(image.shape[1:]):
            raise self._unknown(index, f"a tensor {tuple(image.shape)}")
        image = image.expand(3, -1, -1).contiguous()
        if image.dtype == torch.uint8:
            return image
        if not image.is_floating_point() or not 0 <= float(image.min()) <= float(image.max()) <= 1:
            raise self._unknown(index, f"a {image.dtype} tensor outside of [0, 1]")
        return (image * 255).round().to(torch.uint8)

    def describe(self, index: int) -> str:
        return f"{self.name} item {index}"

    def _read_fingerprint(self) -> str:
        first = self._read_twice()
        count = max(_LEAST_IMAGES, _LOOKED_AT // first.numel())
        contents = []
        for index in spread(self._length, count):
            try:
                image = self.read(index)
            except UnreadableImage:  # a loader skips and counts single unreadable images
                contents.append(b"unreadable")
            else:
                contents.append(repr(image.shape).encode() + image.numpy().tobytes())
        labels = b"" if self.labels is None else self.labels.tobytes()
        return digest(str(self._length), labels, *contents)

    def _read_twice(self) -> Tensor:
        """Return an image, the first of 16 that can be read, after checking that it stays."""
        reason = ""
        for index in spread(self._length, _LEAST_IMAGES):
            try:
                image, again = self.read(index), self.read(index)
            except UnreadableImage as error:
                reason = reason or str(error)
                continue
            if image.shape != again.shape or not torch.equal(image, again):
                raise UserError(
                    f"{self.describe(index)} is a different image when it is read again: leave "
                    "random transforms to the recipe's views"
                )
            return image
        raise UserError(reason)

    def _unknown(self, index: int, what: str) -> UnreadableImage:
        return UnreadableImage(
            f"{self.describe(index)} is {shortened(what, 80)}: give PIL images, uint8 tensors (3, "
            "height, width) or arrays (height, width, 3), or float tensors in [0, 1]"
        )

    def _read_labels(self) -> tuple[np.ndarray | None, tuple[str, ...], str]:
        targets = self._attribute("targets", "labels")
        if targets is None:
            return None, (), ""
        wanted = f"one class number, 0 or more, for each of {self._length:,} images"
        try:
            values = np.asarray(targets)
            if values.dtype.kind not in "iufbO" or values.shape != (self._length,):
                what = f"{values.dtype.name} {values.shape}"
                raise UserError(f"{self.name}: its labels are not {wanted}, but {what}")
            labels = labels_of(
                pa.array(values, from_pandas=True), f"{self.name}: its list of labels"
            )
        except UserError:
            raise
        except NoLabels as error:
            raise UserError(f"{error}: give {wanted}") from error
        except Exception as error:  # of lists of several lengths, or of objects of any kind
            raise UserError(
                f"{self.name}: its labels are not {wanted}: {_reason(error)}"
            ) from error
        names = self._names()
        if names and (odd := unnamed(labels, names)) is not None:
            raise UserError(
                f"{self.name}: its labels hold {shortened(ascii(odd), 80)}, which its attribute "
                "classes does not name"
            )
        if names and len(names) <= labels.numbers.max():
            raise UserError(
                f"{self.name}: its attribute classes names {len(names):,} classes, but there is a "
                f"label {labels.numbers.max()}"
            )
        return classes_of(labels, names, self.describe)

    def _names(self) -> list[str]:
        names = self._attribute("classes")
        if names is None:
            return []
        if not isinstance(names, (list, tuple, np.ndarray)):
            raise UserError(
                f"{self.name}: its attribute classes is of type {type(names).__name__}: give a "
                "list of names, one for each class"
            )
        return [str(name) for name in names]

    def _attribute(self, *names: str) -> Any:
        """Return the first attribute of the dataset that is there and not None."""
        for name in names:
            try:
                value = getattr(self._dataset, name, None)
            except Exception as error:  # a property is the user's code
                raise UserError(
                    f"{self.name}: its attribute {name} cannot be read: {_reason(error)}"
                ) from error
            if value is not None:
                return value
        return None


def _reason(error: Exception) -> str:
    return shortened(" ".join(f"{type(error).__name__}: {error}".split()), 200)
