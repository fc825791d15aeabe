"""Reads the images that a model accepts: arrays, image files and PIL images.

Arrays (.npy) and binary PPM and PGM need only NumPy, other formats Pillow. Photographs are resized
by the compiled core, or without it by Pillow, with the same result to the byte.
"""

from __future__ import annotations

import os
import stat
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burn_engine.errors import file_name_of, reading
from burn_engine.folders import suffix_of
from burn_engine.format import ImageSize
from burn_engine.kinds import not_regular
from burn_engine.native import resizing_core
from burn_engine.pixels import HOW_TO_GET_PILLOW, MOST_BYTES, PillowMissing, decode, from_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE = 16_384
MAX_PIXELS = 2**26

# A single image, and everything that `read_images` accepts.
ImageLike: TypeAlias = "ArrayLike | str | os.PathLike[str] | Image"
ImagesLike: TypeAlias = "ImageLike | Sequence[ImageLike]"


def read_images(images: ImagesLike, size: ImageSize | None) -> tuple[NDArray[Any], bool]:
    """Read images of any kind that `Model` accepts.

    Args:
        images: The images. Photographs (paths and PIL images) are prepared for `size`; arrays are
            used unchanged.
        size: How photographs are resized and cropped; None to use them unchanged.

    Returns:
        The images, C-contiguous uint8 or float32 (n, h, w, 3), and whether `images` was a single
        image without a batch axis.

    Raises:
        ValueError: The images are of another kind, shape, dtype or size.
        OSError: A file cannot be read.
    """
    if _is_photo(images):
        return check_images(read_image(cast("ImageLike", images), size))[0], True
    if not isinstance(images, list | tuple) or not any(_needs_reading(image) for image in images):
        return check_images(cast("ArrayLike", images))
    inputs = [read_image(image, size, f"images[{i}]: ") for i, image in enumerate(images)]
    for i, image in enumerate(inputs):
        for what, value, first in (
            ("size", image.shape[:2], inputs[0].shape[:2]),
            ("dtype", image.dtype, inputs[0].dtype),
        ):
            if value != first:
                raise ValueError(
                    f"images[{i}] has {what} {_size_text(value)}, images[0] {_size_text(first)}: "
                    "give images of one size and dtype, or one at a time"
                )
    return check_images(np.stack(inputs))


def _is_photo(value: object) -> bool:
    """Return whether a value is a path or a PIL image, without importing Pillow."""
    if isinstance(value, str | os.PathLike):
        return True
    # While another thread imports Pillow, its module is there before its classes are; until they
    # are, no value can be an image of Pillow's.
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return image is not None and isinstance(value, image)


def _needs_reading(value: object) -> bool:
    """Return whether a list with this value is a list of single images, not an array as lists."""
    return _is_photo(value) or (isinstance(value, np.ndarray) and value.ndim == 3)


def read_image(image: ImageLike, size: ImageSize | None, where: str = "") -> NDArray[Any]:
    """Read one image of any kind that `Model` accepts.

    Args:
        image: The image.
        size: How a photograph is resized and cropped; None to use it unchanged.
        where: Prefix of errors that do not name a file.

    Returns:
        The input, uint8 or float32 (height, width, 3).

    Raises:
        ValueError: The image is of another kind, shape, dtype or size.
        OSError: The file cannot be read.
    """
    if isinstance(image, str | os.PathLike):
        return read_input(image, size)
    try:
        if _is_photo(image):
            return prepare(from_pillow(cast("Image", image)), size)
        batch, single = check_images(cast("ArrayLike", image))
        if not single:
            raise ValueError(f"shape {batch.shape}; expected one image, (height, width, 3)")
        return batch[0]
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


def _size_text(value: object) -> str:
    return " × ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_images(images: ArrayLike) -> tuple[NDArray[Any], bool]:
    """Check an array of images.

    Args:
        images: (n, h, w, 3), or (h, w, 3) for one image; uint8, or float32 or float64 from 0 to 1.

    Returns:
        The images, C-contiguous uint8 or float32 (n, h, w, 3), and whether `images` was a single
        image without a batch axis.

    Raises:
        ValueError: The shape, the dtype, the size or a value is not allowed.
    """
    try:
        array = np.asarray(images)
    except ValueError:  # NumPy's own message for lists of different lengths is hard to read
        raise ValueError(
            "images cannot be made into one array: give (n, height, width, 3), or a list of images "
            "of one size and dtype"
        ) from None
    except Exception as error:  # of a stranger's class
        raise ValueError(
            f"a value of type {type(images).__name__} cannot be made into an array of images: "
            f"{type(error).__name__}: {error}"
        ) from error
    floats = array.dtype.kind == "f" and array.dtype.itemsize in (4, 8)
    if array.dtype != np.uint8 and not floats:
        raise ValueError(
            f"images have dtype {array.dtype}; expected uint8 (0 to 255), float32 or float64 on "
            "the scale 0 to 1, the path of a photograph, or a PIL image"
        )
    if array.ndim not in (3, 4) or array.shape[-1] != 3:
        raise ValueError(
            f"images have shape {array.shape}; expected (n, height, width, 3), or "
            "(height, width, 3) for one image"
        )
    height, width = array.shape[-3:-1]
    check_size(height, width)
    if floats and array.size:
        with np.errstate(invalid="ignore"):  # the comparison below refuses NaN
            low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"float images are on the scale 0 to 1, found {low} to {high}: pass bytes as uint8"
            )
    dtype = np.dtype(np.float32 if floats else np.uint8)
    single = array.ndim == 3
    return np.ascontiguousarray(array[None] if single else array, dtype), single


def check_size(height: int, width: int) -> None:
    """Raise ValueError if images are empty or larger than the format allows; sides in pixels."""
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_PIXELS):
        raise ValueError(
            f"images of {height} × {width} pixels; expected 1 to {MAX_SIDE} in height and width, "
            f"and at most {MAX_PIXELS} in all"
        )


def read_input(path: str | os.PathLike[str], size: ImageSize | None) -> NDArray[Any]:
    """Read an image file as one input of a model.

    Args:
        path: A photograph, which is prepared for `size`, or an array (.npy), uint8, or float from 0
            to 1, which is used unchanged.
        size: How a photograph is resized and cropped; None to use it unchanged.

    Returns:
        The input, uint8 or float32 (height, width, 3).

    Raises:
        ValueError: The file is not an image, or needs Pillow, which is missing.
        OSError: The file cannot be read.
    """
    name = file_name_of(path)  # a Path takes as long as opening the file, and is for errors alone
    try:
        require_regular(name)
        if suffix_of(name) == ".npy":
            return _read_npy(name)
        return prepare(read_photo(name, enough_for(size)), size)
    except OSError as error:
        if error.filename == name:
            error.filename = str(Path(name))
        raise
    except PillowMissing as error:
        raise PillowMissing(f"{Path(name)}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{Path(name)}: {error}") from None


def require_regular(path: str | os.PathLike[str]) -> None:
    """Raise ValueError for what is no regular file; a pipe would wait for ever to be opened."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - a Path takes as long as opening
    if not stat.S_ISREG(mode):
        raise ValueError(not_regular(mode))


def read_photo(path: str | os.PathLike[str], shortest: int | None = None) -> NDArray[np.uint8]:
    """Read an image file as uint8 (height, width, 3), upright; `shortest` as in `decode`."""
    with reading(path), open(path, "rb") as file:
        # Not MOST_BYTES at once: Python takes the memory for as many as are asked for.
        encoded = file.read(min(os.fstat(file.fileno()).st_size, MOST_BYTES) + 1)
    if len(encoded) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes: not read as an image")
    return decode(encoded, shortest=shortest)


def enough_for(size: ImageSize | None) -> int | None:
    """Return how many pixels of a JPEG's short side suffice to resize it well; None for all."""
    return None if size is None else 2 * size.resize


def prepare(photo: NDArray[np.uint8], size: ImageSize | None) -> NDArray[np.uint8]:
    """Resize the short side of a photograph (bicubic, antialiased), then cut out its centre.

    docs/project/pack-format.md has the rule, to the byte.

    A photograph that is more than 4 times as long as wide loses its ends first.

    Args:
        photo: uint8 (h, w, 3).
        size: Lengths in pixels; None to return the photograph unchanged.

    Returns:
        uint8 (size.size, size.size, 3).

    Raises:
        ValueError: Pillow is needed and missing.
    """
    if size is None:
        return photo
    most = 4 * min(photo.shape[:2])  # do not enlarge a very long image only to crop it
    photo = _centre(photo, min(photo.shape[0], most), min(photo.shape[1], most))
    height, width = photo.shape[:2]
    if min(height, width) != size.resize:
        scale = size.resize / min(height, width)
        new = [max(size.resize, round(side * scale)) for side in (height, width)]
        return _resized_centre(photo, new[0], new[1], size.size)
    return np.ascontiguousarray(_centre(photo, size.size, size.size))


def _centre(photo: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    top, left = _corner(photo.shape[0], photo.shape[1], height, width)
    return photo[top : top + height, left : left + width]


def _corner(height: int, width: int, wanted_height: int, wanted_width: int) -> tuple[int, int]:
    """Return row and column at which the centre of an image begins, all in pixels."""
    # half to even, as torchvision's center_crop rounds
    return round((height - wanted_height) / 2), round((width - wanted_width) / 2)


def _resized_centre(
    photo: NDArray[np.uint8], height: int, width: int, size: int
) -> NDArray[np.uint8]:
    """Resize a photograph to a height and width, and cut out its centre of `size` × `size`."""
    core = resizing_core()
    if core is not None:
        top, left = _corner(height, width, size, size)
        return core.resize(np.ascontiguousarray(photo), height, width, top, left, size, size)
    return np.ascontiguousarray(_centre(_resized(photo, height, width), size, size))


def _resized(photo: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise PillowMissing(
            f"{photo.shape[0]} × {photo.shape[1]} pixels, to be resized to {height} × {width}; "
            f"without the compiled core that needs Pillow: {HOW_TO_GET_PILLOW}"
        ) from None
    image = Image.fromarray(np.ascontiguousarray(photo))
    # First across, then down: Pillow chooses the order by the lengths, and so the rounding.
    image = image.resize((width, image.height), Image.Resampling.BICUBIC)
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def _read_npy(path: str) -> NDArray[Any]:
    try:
        # Mapped, so that the header's shape is checked against the file's length before memory is
        # allocated.
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # absurd sizes, refused below
            array = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception:
        # NumPy parses the header as Python, with all of its errors, such as MemoryError for too
        # many parentheses. Its own texts give advice about its options, some of it unsafe.
        raise ValueError("not an array of numbers as numpy.save writes it") from None
    batch, single = check_images(array)
    if not single:
        raise ValueError(f"shape {array.shape}; expected one image, (height, width, 3)")
    return batch[0]
