"""Decoding: equal to Pillow's, and the limits that bound its memory and time."""

from __future__ import annotations

import io
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from burn.data import decode as module
from burn.data.dataset import DatasetSource
from burn.data.decode import UnreadableImage, check_bytes, decode
from burn_engine import pixels


def picture(height: int = 30, width: int = 40) -> Image.Image:
    """Random colours."""
    random = np.random.default_rng(0)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png(width: int, height: int, *chunks: tuple[bytes, bytes], data: bytes = b"") -> bytes:
    """A PNG of RGB pixels, of which `data` is the compressed part."""
    head = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in (head, *chunks, (b"IDAT", data), (b"IEND", b""))
    )


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_is_pillows_bit_for_bit(mode: str, progressive: bool):
    content = encoded(picture().convert(mode), "JPEG", progressive=progressive)
    found = decode(content, "a")
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    assert found.dtype == torch.uint8
    assert np.array_equal(found.permute(1, 2, 0).numpy(), expected)


def test_the_result_is_ours_to_write_in():
    found = decode(encoded(picture(), "PNG"), "a")
    found.zero_()
    assert not found.any()


def test_exif_is_applied_where_it_is_asked_for():
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(picture(), "JPEG", exif=exif.tobytes())
    assert decode(content, "a").shape == (3, 40, 30)
    assert decode(content, "a", upright=False).shape == (3, 30, 40)


def test_damaged_exif_costs_no_jpeg_its_pixels():
    content = encoded(picture(), "JPEG", exif=b"Exif\0\0garbage")
    assert decode(content, "a").shape == (3, 30, 40)


def test_the_limit_of_pixels_is_exact(monkeypatch: pytest.MonkeyPatch):
    content = encoded(picture(30, 40), "PNG")
    monkeypatch.setattr(pixels, "MOST_PIXELS", 1200)
    assert decode(content, "a").shape == (3, 30, 40)
    monkeypatch.setattr(pixels, "MOST_PIXELS", 1199)
    with pytest.raises(UnreadableImage, match=r"^a: more than 1,199 pixels$"):
        decode(content, "a")


def test_pillows_own_limit_is_told_as_ours():
    """Pillow refuses from 179 million pixels on, and would name that number."""
    with pytest.raises(UnreadableImage, match=f"^a: more than {pixels.MOST_PIXELS:,} pixels$"):
        decode(png(30_000, 30_000), "a")


def test_the_limit_of_bytes(monkeypatch: pytest.MonkeyPatch):
    content = encoded(picture(), "PNG")
    monkeypatch.setattr(module, "MOST_BYTES", len(content))
    assert decode(content, "a").shape == (3, 30, 40)
    monkeypatch.setattr(module, "MOST_BYTES", len(content) - 1)
    with pytest.raises(UnreadableImage, match=f"^a: {len(content):,} bytes, more than"):
        decode(content, "a")
    with pytest.raises(UnreadableImage, match=r"^b: 5,000 bytes, more than"):
        check_bytes(5000, "b")


def with_scans(image: Image.Image, times: int) -> bytes:
    """A progressive JPEG whose last scan comes so many times more."""
    whole = encoded(image, "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * times + b"\xff\xd9"


def test_scans_are_counted_where_they_would_take_long():
    """Empty ones: 10,000 passes over a million pixels out of 250 kB."""
    flat = Image.new("RGB", (1000, 1000), (10, 20, 30))
    assert decode(with_scans(flat, 20), "a").shape == (3, 1000, 1000)
    with pytest.raises(UnreadableImage, match=r"^a: 10,0\d\d scans of 1,000,000 pixels$"):
        decode(with_scans(flat, 10_001), "a")


def test_what_looks_like_scans_behind_a_jpeg_is_not_refused():
    """A phone's moving photo has a film behind the picture, and in it any two bytes."""
    content = encoded(picture(300, 400), "JPEG") + b"\xff\xda" * 20_000
    assert decode(content, "a").shape == (3, 300, 400)


def test_floats_are_refused():
    """Nothing says on which scale they are; clipped to bytes, 0 to 1 would be black."""
    content = encoded(Image.fromarray(np.full((4, 4), 0.5, np.float32)), "TIFF")
    with pytest.raises(UnreadableImage, match=r"^a: its pixels are floats: save it with 8"):
        decode(content, "a")


@pytest.mark.parametrize("side", [20_000, 2**31 - 1])
def test_a_tile_larger_than_its_tiff_is_refused(side: int):
    tags = [(256, 10), (257, 10), (258, 8), (259, 8), (262, 1), (277, 1)]
    tags += [(322, side), (323, side), (324, 200), (325, 20)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    content = (head + entries + bytes(4)).ljust(200, b"\0") + zlib.compress(bytes(1000))
    with pytest.raises(UnreadableImage, match=f"^a: tiles of {side}×{side} pixels$"):
        decode(content, "a")


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_compressed_text_is_not_unpacked_without_end(kind: bytes):
    bomb = zlib.compress(bytes(2**25), 9)
    text = b"k\0" + (b"\1\0\0\0" if kind == b"iTXt" else b"\0") + bomb
    with pytest.raises(UnreadableImage, match=r"^a: Decompressed data too large"):
        decode(png(4, 4, (kind, text), data=zlib.compress(bytes(4 * 13))), "a")


def test_pixels_beyond_the_last_row_are_not_unpacked():
    found = decode(png(4, 4, data=zlib.compress(bytes(2**25), 9)), "a")
    assert found.shape == (3, 4, 4)


@pytest.mark.parametrize(
    "kind", ["grey 16", "turned", "alpha", "CMYK", "float", "32 bits", "12 bits"]
)
def test_an_image_of_a_data_set_is_that_of_its_file(kind: str):
    """The same pixels, or refused with the same reason."""
    deep = np.arange(1200, dtype=np.uint16).reshape(30, 40) * 54
    exif = Image.Exif()
    exif[0x0112] = 6
    alpha = picture()
    alpha.putalpha(picture().convert("L"))
    image, form, options = {
        "grey 16": (Image.fromarray(deep), "PNG", {}),
        "turned": (picture(), "PNG", {"exif": exif}),
        "alpha": (alpha, "PNG", {}),
        "CMYK": (picture().convert("CMYK"), "JPEG", {}),
        "float": (Image.fromarray(deep.astype(np.float32)), "TIFF", {}),
        "32 bits": (Image.fromarray(deep.astype(np.int32)), "TIFF", {}),
        "12 bits": (Image.fromarray(deep >> 4), "PNG", {}),
    }[kind]
    content = encoded(image, form, **options)
    source = DatasetSource([Image.open(io.BytesIO(encoded(picture(), "PNG"))), image])
    source._dataset[1] = Image.open(io.BytesIO(content))
    try:
        expected = decode(content, source.describe(1))
    except UnreadableImage as error:
        with pytest.raises(UnreadableImage, match=f"^{re.escape(str(error))}$"):
            source.read(1)
    else:
        assert torch.equal(source.read(1), expected)
