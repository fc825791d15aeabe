"""Image files for the command line.

Arrays (.npy) and binary PPM and PGM need NumPy alone; other formats, and resizing, need Pillow.
"""

from __future__ import annotations

import io
import re
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burn_engine.format import ImageSize
from burn_engine.model import check_images, check_size

_HOW_TO_GET_PILLOW = "pip install 'burn-engine[images]'"


def read_input(path: str | Path, size: ImageSize | None) -> NDArray[Any]:
    """An image file -> one input of a model, (height, width, 3).

    A photograph is prepared as `size` says. An array (.npy) is an input already, uint8 or float on
    the scale 0 to 1, and goes in as it is.

    Raises ValueError for what is no image or needs Pillow, OSError for what cannot be read.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block
        raise ValueError(f"{path}: not a regular file")
    if path.suffix.lower() == ".npy":
        return _read_npy(path)
    try:
        return prepare(read_photo(path), size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_photo(path: Path) -> NDArray[np.uint8]:
    """An image file -> uint8 (height, width, 3), upright."""
    with open(path, "rb") as file:
        magic = file.read(2)
    if magic in (b"P5", b"P6"):
        return _read_netpbm(path)
    return _read_with_pillow(path)


def prepare(photo: NDArray[np.uint8], size: ImageSize | None) -> NDArray[np.uint8]:
    """uint8 (h, w, 3) -> (size, size, 3): short side resized (bicubic, antialiased), then cropped.

    A photo more than 4 times as long as it is wide loses its ends first. Without `size` the photo
    stays as it is. Raises ValueError where Pillow is needed and missing.
    """
    if size is None:
        return photo
    most = 4 * min(photo.shape[:2])  # a very long image is not blown up only to be cropped
    photo = _centre(photo, min(photo.shape[0], most), min(photo.shape[1], most))
    height, width = photo.shape[:2]
    if min(height, width) != size.resize:
        scale = size.resize / min(height, width)
        new = [max(size.resize, round(side * scale)) for side in (height, width)]
        photo = _resize(photo, new[0], new[1])
    return np.ascontiguousarray(_centre(photo, size.size, size.size))


def _centre(photo: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    top = round((photo.shape[0] - height) / 2)  # to even, as torchvision's center_crop has it
    left = round((photo.shape[1] - width) / 2)
    return photo[top : top + height, left : left + width]


def _resize(photo: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(
            f"{photo.shape[0]} × {photo.shape[1]} pixels, to be resized to {height} × {width}; "
            f"that needs Pillow: {_HOW_TO_GET_PILLOW}"
        ) from None
    image = Image.fromarray(np.ascontiguousarray(photo))
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        # Mapped: the header's shape is compared with the file's length before memory is taken.
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of absurd sizes, refused below
            array = np.lib.format.open_memmap(path, mode="r")
        batch, single = check_images(array)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not single:
        raise ValueError(f"{path}: shape {array.shape}; expected one image, (height, width, 3)")
    return batch[0]


_NETPBM_HEADER = re.compile(rb"P([56])" + 3 * rb"(?:\s|#[^\n]*+\n)++(\d{1,9})" + rb"\s")


def _read_netpbm(path: Path) -> NDArray[np.uint8]:
    """Binary PPM or PGM; 16-bit values are rounded to 8 bits."""
    with open(path, "rb") as file:
        header = _NETPBM_HEADER.match(file.read(4096))
        if header is None:
            raise ValueError("not a PPM or PGM image: its header is damaged")
        channels = 3 if header[1] == b"6" else 1
        width, height, highest = (int(header[index]) for index in (2, 3, 4))
        check_size(height, width)
        if not 1 <= highest <= 65535:
            raise ValueError(f"not a PPM or PGM image: highest value {highest}")
        dtype = np.dtype(np.uint8 if highest < 256 else ">u2")
        num_bytes = height * width * channels * dtype.itemsize
        file.seek(header.end())
        data = file.read(num_bytes)
    if len(data) < num_bytes:
        raise ValueError(f"cut off: {len(data)} bytes of pixels, expected {num_bytes}")
    pixels = np.frombuffer(data, dtype).reshape(height, width, channels)
    if highest != 255:
        pixels = np.round(np.minimum(pixels, highest) * (255 / highest))
    return np.broadcast_to(pixels.astype(np.uint8), (height, width, 3))


def _read_with_pillow(path: Path) -> NDArray[np.uint8]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ValueError(
            f"images other than .npy, binary PPM and PGM need Pillow: {_HOW_TO_GET_PILLOW}"
        ) from None
    encoded = path.read_bytes()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks about odd but readable files
            image = Image.open(io.BytesIO(encoded))
            check_size(image.height, image.width)
            image = ImageOps.exif_transpose(image)
            if image.mode.startswith("I"):  # 16 bits, which convert() would clip
                return np.broadcast_to(_high_byte(np.asarray(image)), (*image.size[::-1], 3))
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # decoders raise of every kind on damaged files
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "not an image in a format that Pillow knows"
        raise ValueError(reason) from None


def _high_byte(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    return (pixels.astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)[..., None]
