"""Decode images, and refuse other formats, damaged files, and decompression bombs.

All limits on the size of an image are defined here. An image of `MOST_PIXELS` takes 1 GB while it
is decoded, and a WebP 1.8 GB: Pillow holds 4 bytes per pixel, its copies 3 each, and WebP's decoder
two more canvases of 4. This bounds the memory of a process that loads images.
"""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin

from burn.core.errors import UserError
from burn.core.inputs import open_regular

if TYPE_CHECKING:
    from torch import Tensor

# Pillow's names of the formats that are decoded, whatever a file is called. For some other formats
# Pillow starts a program, e.g. Ghostscript for EPS. MPO, which some phones write, opens as JPEG and
# needs no entry.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF")
MOST_PIXELS = 100_000_000  # of an image, read from its header before anything is allocated
MOST_BYTES = 2**28  # of an encoded image
# A JPEG may have any number of scans; usual files have a dozen. Each scan is a pass over all
# pixels, at about a nanosecond per pixel, and an empty scan takes only a few bytes of the file.
_MOST_SCANNED = 10**10  # scans times pixels
_LEAST_SCAN = 10  # bytes
_TILE_SIDES = (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH)  # Pillow holds a whole tile


class UnreadableImage(Exception):
    """Raised if an image of a source cannot be decoded; the message names it and says why."""


def decode(encoded: bytes, name: str, *, upright: bool = True) -> Tensor:
    """Decode an image as a tensor, as `decode_pixels` does.

    Returns:
        uint8 (3, height, width) in the channels-last layout, so not contiguous.

    Raises:
        UnreadableImage: As `decode_pixels`.
    """
    return as_tensor(decode_pixels(encoded, name, upright=upright))


def as_tensor(pixels: np.ndarray) -> Tensor:
    """Return pixels, uint8 (height, width, 3), as a tensor (3, height, width) of the same memory.

    Torch is imported here, because a packed network reads images without it.
    """
    import torch

    return torch.from_numpy(pixels).permute(2, 0, 1)


def decode_pixels(encoded: bytes, name: str, *, upright: bool = True) -> np.ndarray:
    """Decode an image.

    Of an animation the first frame is returned, of 16-bit values the high byte. Transparency is
    dropped.

    Args:
        encoded: The bytes of an image file.
        name: Name of the image for messages.
        upright: Apply the rotation that the EXIF data ask for.

    Returns:
        uint8 (height, width, 3).

    Raises:
        UnreadableImage: The image has none of FORMATS or more than MOST_PIXELS or MOST_BYTES, or
            Pillow cannot decode it to its end.
    """
    check_bytes(len(encoded), name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd but readable files
            image = Image.open(io.BytesIO(encoded), formats=FORMATS)
            _refuse_bombs(image, encoded)
            if upright:
                ImageOps.exif_transpose(image, in_place=True)
            if image.mode == "F":  # on a scale that nothing says; convert() would clip it
                raise ValueError("its pixels are floats: save it with 8 or 16 bits a channel")
            if image.mode.startswith("I"):  # convert() would clip 16-bit values
                array = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
                image = Image.fromarray(array)
            return np.array(image if image.mode == "RGB" else image.convert("RGB"))
    except _PILLOW_ERRORS as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if "BytesIO" in reason:  # Pillow does not know the format, and names the BytesIO object
            reason = f"not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        if isinstance(error, Image.DecompressionBombError):  # its text may name Pillow's limit
            reason = f"more than {MOST_PIXELS:,} pixels"
        raise UnreadableImage(f"{name}: {reason}") from error


def read_image(file: Path) -> bytes:
    """Return the bytes of an image file.

    Raises:
        UnreadableImage: The file cannot be read, is not a regular file, or is larger than
            MOST_BYTES.
    """
    try:
        with open_regular(file) as opened:
            check_bytes(os.fstat(opened.fileno()).st_size, str(file))
            encoded = opened.read(MOST_BYTES + 1)
    except UserError as error:
        raise UnreadableImage(str(error)) from error
    except OSError as error:
        raise UnreadableImage(f"{file}: {error.strerror}") from error
    check_bytes(len(encoded), str(file))  # the file may have grown since
    return encoded


def check_bytes(number: int, name: str) -> None:
    """Raise UnreadableImage if an encoded image has more than MOST_BYTES.

    Args:
        number: Size of the encoded image in bytes.
        name: Name of the image for the message.
    """
    if number > MOST_BYTES:
        raise UnreadableImage(f"{name}: {number:,} bytes, more than {MOST_BYTES:,}")


def _refuse_bombs(image: Image.Image, encoded: bytes) -> None:
    """Raise an exception if an image is too large to decode, by its header and number of scans."""
    pixels = image.width * image.height
    if pixels > MOST_PIXELS:
        raise Image.DecompressionBombError
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        sides = [image.tag_v2.get(tag, 1) for tag in _TILE_SIDES]
        if not all(isinstance(side, int) for side in sides) or math.prod(sides) > MOST_PIXELS:
            raise ValueError(f"tiles of {sides[0]}×{sides[1]} pixels")
    if image.format not in ("JPEG", "MPO") or len(encoded) * pixels < _LEAST_SCAN * _MOST_SCANNED:
        return  # counting the scans takes time itself
    scans = encoded.count(b"\xff\xda")
    if scans * pixels > _MOST_SCANNED:
        raise ValueError(f"{scans} scans of {pixels:,} pixels")


# The exceptions that Pillow's decoders raise on damaged files.
_PILLOW_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
