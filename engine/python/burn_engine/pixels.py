"""Turns encoded images and PIL images into pixels, by one rule for training and for running.

Binary PPM and PGM need only NumPy, other formats Pillow. All limits on the size of an image file
are here. An image of `MOST_PIXELS` takes 1 GB while it is decoded, and a WebP 1.8 GB: Pillow holds
4 bytes per pixel, its copies 3 each, and WebP's decoder two more canvases of 4.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import struct
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from burn_engine.kinds import kind_of

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow's names of the formats that are decoded, whatever a file is called. For some other formats
# Pillow starts a program, e.g. Ghostscript for EPS. MPO, which some phones write, opens as JPEG and
# needs no entry.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF")
MOST_PIXELS = 100_000_000  # of an image, read from its header before anything is allocated
MOST_BYTES = 2**28  # of an encoded image
HOW_TO_GET_PILLOW = "pip install pillow"
# A JPEG may have any number of scans; usual files have a dozen. Each scan is a pass over all
# pixels, at about a nanosecond per pixel, and an empty scan takes only a few bytes of the file.
_MOST_SCANNED = 10**10  # scans times pixels
_LEAST_SCAN = 10  # bytes
_TILE_SIDES = 322, 323  # TIFF's tags of a tile's width and height; Pillow holds a whole tile
_BITS = 258  # TIFF's tag of the bits of a channel
_ORIENTATION = 0x0112  # EXIF's tag
_SHORT = 3  # EXIF's type of 16-bit integers
# How a PNG's samples become Pillow's, by its name for them: they are multiplied, and lose low bits.
_OF_A_SAMPLE = {"L;2": (85, 0), "L;4": (17, 0), "I;16B": (1, 0), "RGB;16B": (1, 8)}
_WITH_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")


class PillowMissing(ValueError):
    """An image needs Pillow, which is not installed."""


def decode(
    encoded: bytes, *, upright: bool = True, shortest: int | None = None
) -> NDArray[np.uint8]:
    """Decode an image.

    Of an animation the first frame is returned, of 16-bit grey the high byte. Transparent pixels
    lie over white.

    Args:
        encoded: The bytes of an image file.
        upright: Apply the rotation that the EXIF data ask for.
        shortest: Pixels of the short side that suffice. A JPEG is decoded at a half, a quarter or
            an eighth of its size, several times as fast, as long as it keeps these. None for all.

    Returns:
        uint8 (height, width, 3), not shared with anything.

    Raises:
        ValueError: The image has none of FORMATS, more than MOST_PIXELS, or a range that nothing
            says; it cannot be decoded to its end; or it needs Pillow, which is missing.
    """
    if encoded[:2] in (b"P5", b"P6"):
        return _decode_netpbm(encoded)
    try:
        from PIL import Image
    except ImportError:
        raise PillowMissing(
            f"images other than .npy, binary PPM and PGM need Pillow: {HOW_TO_GET_PILLOW}"
        ) from None
    with _decoding():
        try:
            image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        except Image.UnidentifiedImageError:
            if not encoded:
                raise ValueError("an empty file") from None
            kind = kind_of(encoded)
            if kind and kind.endswith("image"):
                raise ValueError(f"{kind}, but it is damaged or cut off") from None
            raise ValueError(
                f"not {', '.join(FORMATS[:-1])} or {FORMATS[-1]}" + (f" but {kind}" if kind else "")
            ) from None
        _refuse_bombs(image, encoded)
        if shortest is not None and shortest < min(image.size):
            image.draft(None, _of_short_side(image, shortest))  # does nothing but to JPEG
        samples = str(image.tile[0][3]) if image.format == "PNG" and image.tile else None
        return _pixels_of(image, upright=upright, samples=samples)


def _of_short_side(image: Image, shortest: int) -> tuple[int, int]:
    """Return the least width and height in pixels whose short side has `shortest`."""
    short = min(image.size)
    width, height = (math.ceil(side * shortest / short) for side in image.size)
    return width, height


def from_pillow(image: Image, *, upright: bool = True) -> NDArray[np.uint8]:
    """Convert a PIL image to pixels; arguments, result and errors as those of `decode`.

    But a colour that a PNG of 2, 4 or 16 bits calls transparent is compared as Pillow does, which
    finds it seldom: how it is stored is not known any more.
    """
    _check_pixels(image.height, image.width)
    with _decoding():
        return _pixels_of(image, upright=upright)


def _pixels_of(image: Image, *, upright: bool, samples: str | None = None) -> NDArray[np.uint8]:
    image.load()  # which turns a TIFF upright, and finds EXIF data behind a PNG's pixels
    if samples in _OF_A_SAMPLE:
        pixels = _without_key(image, _opaque(image), *_OF_A_SAMPLE[samples])
    else:
        pixels = _in_frame(image, _colours(image))
    if upright:
        exif = image.info.get("exif")
        pixels = turned(pixels, orientation_of(exif) if isinstance(exif, bytes) else 1)
    return np.array(pixels, order="C")


def orientation_of(exif: bytes) -> int:
    """Return the orientation in EXIF data, 1 to 8.

    It is the tag 0x0112 of the first directory, one 16-bit integer. Without it, or if it is
    anything else, the image is upright: 1. No other tag is read.
    """
    while exif.startswith(b"Exif\0\0"):  # some programs write it where it does not belong
        exif = exif[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    with contextlib.suppress(struct.error):  # cut off
        (at,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, at)
        for entry in range(at + 2, at + 2 + 12 * count, 12):
            tag, kind, number, value = struct.unpack_from(f"{order}HHIH", exif, entry)
            if tag == _ORIENTATION:
                return value if (kind, number) == (_SHORT, 1) and 1 <= value <= 8 else 1
    return 1


def turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Return a view of pixels (height, width, 3) that is upright.

    Args:
        pixels: The pixels.
        orientation: EXIF's, 1 to 8.
    """
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return pixels[::rows, ::columns]


def _colours(image: Image) -> NDArray[np.uint8]:
    if image.mode in _WITH_ALPHA or (
        "transparency" in image.info and not image.mode.startswith(("I", "F"))
    ):
        return _over_white(np.asarray(_straight(image).convert("RGBA")))
    return _opaque(image)


def _opaque(image: Image) -> NDArray[np.uint8]:
    if image.mode == "F":  # on a scale that nothing says; convert() would clip it
        raise ValueError("its pixels are floats: save it with 8 or 16 bits a channel")
    if image.mode.startswith("I"):
        return np.broadcast_to(_high_byte(image)[..., None], (image.height, image.width, 3))
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _without_key(
    image: Image, pixels: NDArray[np.uint8], scale: int, bits: int
) -> NDArray[np.uint8]:
    """Make white what a PNG calls transparent by its colour, which Pillow compares unscaled.

    Of colours of 16 bits Pillow has the high bytes alone, so that these decide.
    """
    key = image.info.get("transparency")
    if not isinstance(key, int | tuple):
        return pixels
    clear = np.asarray(image).reshape(*pixels.shape[:2], -1) == scale * np.array(key) >> bits
    pixels = np.array(pixels)
    pixels[clear.all(axis=2)] = 255
    return pixels


def _in_frame(image: Image, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Make white what the first frame of a GIF does not cover, which is transparent."""
    left, top, right, bottom = frame = getattr(image, "dispose_extent", None) or (0, 0, *image.size)
    if image.format != "GIF" or image.tell() or frame == (0, 0, *image.size):
        return pixels
    white = np.full_like(pixels, 255)
    white[top:bottom, left:right] = pixels[top:bottom, left:right]
    return white


def _straight(image: Image) -> Image:
    return image.convert("LA") if image.mode == "La" else image  # which becomes RGBA by LA alone


def _over_white(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    alpha = pixels[..., 3:]
    if alpha.min() == 255:
        return pixels[..., :3]
    wide = alpha.astype(np.uint16)  # wide enough: the sums below are at most 255² + 127
    return ((pixels[..., :3] * wide + 255 * (255 - wide) + 127) // 255).astype(np.uint8)


def _high_byte(image: Image) -> NDArray[np.uint8]:
    """Return 12- or 16-bit grey as 8 bits; convert() would clip it."""
    pixels = np.asarray(image)
    if getattr(image, "tag_v2", {}).get(_BITS) == (12,):  # a TIFF
        return (pixels >> 4).astype(np.uint8)
    # Some versions of Pillow read 16 bits of a PNG or PGM as 32.
    if not image.mode.startswith("I;16") and image.format not in ("PNG", "PPM"):
        raise ValueError("its integers have no known range: save it with 8 or 16 bits a channel")
    highest = int(pixels.max())
    if 0 < highest < 2**12:
        raise ValueError(
            f"its 16-bit pixels are at most {highest} of 65535, perhaps of a camera with fewer "
            "bits: stretch them to the whole range, or save it with 8 bits"
        )
    return (pixels >> 8).astype(np.uint8)


def _check_pixels(height: int, width: int) -> None:
    if not 1 <= height * width <= MOST_PIXELS:
        raise ValueError(
            f"more than {MOST_PIXELS:,} pixels" if height * width else f"{height} × {width} pixels"
        )


def _refuse_bombs(image: Image, encoded: bytes) -> None:
    """Raise ValueError if an image is too large to decode, by its header and number of scans."""
    _check_pixels(image.height, image.width)
    tags = getattr(image, "tag_v2", {})  # which only a TIFF has
    sides = [tags.get(tag, 1) for tag in _TILE_SIDES]
    if not all(isinstance(side, int) for side in sides) or math.prod(sides) > MOST_PIXELS:
        raise ValueError(f"tiles of {sides[0]}×{sides[1]} pixels")
    pixels = image.width * image.height
    if image.format not in ("JPEG", "MPO") or len(encoded) * pixels < _LEAST_SCAN * _MOST_SCANNED:
        return  # counting the scans takes time itself
    # FF DA, as numbers of 16 bits from each other byte: bytes.count takes ten times as long.
    pairs = (np.frombuffer(encoded, "<u2", (len(encoded) - at) // 2, at) for at in (0, 1))
    scans = sum(np.count_nonzero(pair == 0xDAFF) for pair in pairs)
    if scans * pixels > _MOST_SCANNED:
        raise ValueError(f"{scans:,} scans of {pixels:,} pixels")


@contextlib.contextmanager
def _decoding() -> Iterator[None]:
    """Turn every exception of a decoder into a ValueError of one line, and silence its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd but readable files
            yield
    except Exception as error:  # on damaged files decoders raise exceptions of every kind
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if type(error).__name__.startswith("DecompressionBomb"):  # its text has Pillow's own limit
            reason = f"more than {MOST_PIXELS:,} pixels"
        if reason.startswith("decoder error"):
            reason = f"damaged ({reason})"
        raise ValueError(reason) from error


_NETPBM_HEADER = re.compile(rb"P([56])" + 3 * rb"(?:\s|#[^\n]*+\n)++(\d{1,9})" + rb"\s")


def _decode_netpbm(encoded: bytes) -> NDArray[np.uint8]:
    """Decode a binary PPM or PGM file; values are scaled by their maximum and rounded."""
    header = _NETPBM_HEADER.match(encoded[:4096])
    if header is None:
        raise ValueError("not a PPM or PGM image: its header is damaged")
    channels = 3 if header[1] == b"6" else 1
    width, height, highest = (int(header[index]) for index in (2, 3, 4))
    _check_pixels(height, width)
    if not 1 <= highest <= 65535:
        raise ValueError(f"not a PPM or PGM image: its maximum value is {highest}, not 1 to 65535")
    dtype = np.dtype(np.uint8 if highest < 256 else ">u2")
    count = height * width * channels
    available = len(encoded) - header.end()
    if available < count * dtype.itemsize:
        raise ValueError(
            f"truncated: {available} bytes of pixels, expected {count * dtype.itemsize}"
        )
    values: NDArray[Any] = np.frombuffer(encoded, dtype, count, header.end())
    if highest != 255:
        scaled = np.round(np.arange(highest + 1) * (255 / highest)).astype(np.uint8)
        values = scaled[np.minimum(values, highest)]
    return np.array(np.broadcast_to(values.reshape(height, width, channels), (height, width, 3)))
