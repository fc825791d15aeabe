"""Encoded bytes to pixels, and what is not decoded: foreign formats, damage, and bombs.

The limits stand here alone. An image of `MOST_PIXELS` takes 1 GB while it is decoded, and a WebP
1.8 GB: Pillow holds 4 bytes a pixel, its copies 3 each, WebP's decoder two more canvases of 4. That
bounds the memory of a process that loads images.
"""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, TiffImagePlugin
from torch import Tensor

from burn.core.errors import UserError
from burn.core.inputs import open_regular

# Pillow's names of the formats that are decoded, whatever a file is called. For others it may start
# a program: Ghostscript for EPS. Phones' MPO opens as JPEG and has no entry of its own.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF")
MOST_PIXELS = 100_000_000  # of an image, by its header, before anything is allocated for it
MOST_BYTES = 2**28  # of an encoded image
# A JPEG has as many scans as its file says, a dozen by custom. Each is a pass over all its pixels,
# of about a nanosecond a pixel, and an empty one takes few bytes.
_MOST_SCANNED = 10**10  # scans times pixels
_LEAST_SCAN = 10  # bytes
_TILE_SIDES = (TiffImagePlugin.TILEWIDTH, TiffImagePlugin.TILELENGTH)  # held whole, however large


class UnreadableImage(Exception):
    """One image of a source cannot be decoded; the message names it and says why."""


def decode(encoded: bytes, name: str, *, upright: bool = True) -> Tensor:
    """Encoded bytes -> uint8 (3, height, width), not contiguous: a pixel's values lie together.

    A film's first frame; the high byte of 16-bit values; transparency dropped. upright: apply the
    rotation that EXIF asks for. Raises UnreadableImage for what is none of FORMATS, has more than
    MOST_PIXELS or MOST_BYTES, or cannot be decoded to its end by Pillow.
    """
    check_bytes(len(encoded), name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks about odd but readable files
            image = Image.open(io.BytesIO(encoded), formats=FORMATS)
            _refuse_bombs(image, encoded)
            if upright:
                ImageOps.exif_transpose(image, in_place=True)
            if image.mode.startswith("I"):  # 16 bits, which convert() would clip
                array = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
                image = Image.fromarray(array)
            pixels = np.array(image if image.mode == "RGB" else image.convert("RGB"))
    except _PILLOW_ERRORS as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if "BytesIO" in reason:  # Pillow's own words for a format it does not know
            reason = f"not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        if isinstance(error, Image.DecompressionBombError):  # which names Pillow's limit, not ours
            reason = f"more than {MOST_PIXELS:,} pixels"
        raise UnreadableImage(f"{name}: {reason}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def read_image(file: Path) -> bytes:
    """The bytes of an image file. Raises UnreadableImage, which says why they cannot be had."""
    try:
        with open_regular(file) as opened:
            check_bytes(os.fstat(opened.fileno()).st_size, str(file))
            encoded = opened.read(MOST_BYTES + 1)
    except UserError as error:
        raise UnreadableImage(str(error)) from error
    except OSError as error:
        raise UnreadableImage(f"{file}: {error.strerror}") from error
    check_bytes(len(encoded), str(file))  # it grew
    return encoded


def check_bytes(number: int, name: str) -> None:
    """Raise UnreadableImage for an encoded image of more than MOST_BYTES, before it is read."""
    if number > MOST_BYTES:
        raise UnreadableImage(f"{name}: {number:,} bytes, more than {MOST_BYTES:,}")


def _refuse_bombs(image: Image.Image, encoded: bytes) -> None:
    """Raise for an image of which only the header is read so far, where the rest would explode."""
    pixels = image.width * image.height
    if pixels > MOST_PIXELS:
        raise Image.DecompressionBombError
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        sides = [image.tag_v2.get(tag, 1) for tag in _TILE_SIDES]
        if not all(isinstance(side, int) for side in sides) or math.prod(sides) > MOST_PIXELS:
            raise ValueError(f"tiles of {sides[0]}×{sides[1]} pixels")
    if image.format not in ("JPEG", "MPO") or len(encoded) * pixels < _LEAST_SCAN * _MOST_SCANNED:
        return  # counting takes a while itself
    scans = encoded.count(b"\xff\xda")
    if scans * pixels > _MOST_SCANNED:
        raise ValueError(f"{scans} scans of {pixels:,} pixels")


# What Pillow's decoders raise on damaged files of one format or another.
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
