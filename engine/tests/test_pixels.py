"""Tests of the one conversion of images to pixels: orientation, transparency, grey of many bits."""

from __future__ import annotations

import io
import struct
import zlib
from fractions import Fraction

import numpy as np
import pytest

import packed
from burn_engine.pixels import decode, from_pillow, orientation_of

Image = pytest.importorskip("PIL.Image")
PIXELS = packed.random_images(0, (6, 9, 3))
FLIPS = {
    1: lambda p: p,
    2: np.fliplr,
    3: lambda p: np.rot90(p, 2),
    4: np.flipud,
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: np.rot90(p.swapaxes(0, 1), 2),
    8: np.rot90,
}


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(
        buffer, form, **options
    )
    return buffer.getvalue()


def exif(*entries, order="<"):
    """EXIF data with entries (tag, type, count, 4 bytes or a 16-bit value)."""
    data = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(entries))
    for tag, kind, count, value in entries:
        last = value if isinstance(value, bytes) else struct.pack(f"{order}HH", value, 0)
        data += struct.pack(f"{order}HHI", tag, kind, count) + last
    return data + bytes(4)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("orientation", FLIPS)
def test_every_orientation_in_every_container(orientation, order):
    data = exif((0x0112, 3, 1, orientation), order=order)
    expected = FLIPS[orientation](PIXELS)
    for form in ("PNG", "WEBP"):
        for start in (b"", b"Exif\0\0"):
            content = encoded(PIXELS, form, exif=start + data, lossless=True)
            np.testing.assert_array_equal(decode(content), expected)
            np.testing.assert_array_equal(decode(content, upright=False), PIXELS)
            np.testing.assert_array_equal(from_pillow(Image.open(io.BytesIO(content))), expected)
    plain = decode(encoded(PIXELS, "JPEG"))
    content = encoded(PIXELS, "JPEG", exif=b"Exif\0\0" + data)
    np.testing.assert_array_equal(decode(content), FLIPS[orientation](plain))
    tiff = encoded(PIXELS, "TIFF", tiffinfo={0x0112: orientation})
    np.testing.assert_array_equal(decode(tiff), expected)


SIX = (0x0112, 3, 1, 6)
LATER = struct.pack("<I", 8)  # an offset


@pytest.mark.parametrize(
    ("data", "orientation"),
    [
        (exif((0x011A, 10, 1, LATER), SIX), 6),  # a rational, of whatever is there
        (exif((0x0103, 2, 4, b"abc\0"), SIX), 6),  # ASCII in a tag of integers
        (exif((0x9999, 77, 1, LATER), SIX), 6),  # an unknown type
        (exif((0x0100, 3, 2**31, b"\xff" * 4), SIX), 6),  # an offset beyond the end
        (exif(SIX, (0x0112, 3, 1, 3)), 6),
        (exif((0x0112, 3, 1, 0)), 1),
        (exif((0x0112, 3, 1, 9)), 1),
        (exif((0x0112, 2, 4, b"6\0\0\0")), 1),
        (exif((0x0112, 3, 0, 6)), 1),
        (exif((0x0112, 5, 1, LATER)), 1),
        (exif(SIX)[:-8], 1),
        (exif(SIX)[:9], 1),
        (b"II*\0" + b"\xff" * 4, 1),
        (b"XX*\0" + exif(SIX)[4:], 1),
        (b"", 1),
        (b"Exif\0\0Exif\0\0" + exif(SIX), 6),
    ],
)
def test_only_the_orientation_of_exif_is_read(data, orientation):
    assert orientation_of(data) == orientation
    if data:
        start = b"" if data.startswith(b"Exif") else b"Exif\0\0"
        plain = decode(encoded(PIXELS, "JPEG"))
        content = encoded(PIXELS, "JPEG", exif=start + data)
        np.testing.assert_array_equal(decode(content), FLIPS[orientation](plain))


def test_a_rational_that_cannot_be_written_again_costs_nothing():
    """-1/0, which Pillow reads, but cannot write into the EXIF data of a turned image."""
    data = exif((0x9204, 10, 1, struct.pack("<I", 8 + 2 + 24 + 4)), SIX) + struct.pack("<ii", -1, 0)
    content = encoded(PIXELS, "JPEG", exif=b"Exif\0\0" + data)
    assert decode(content).shape == (9, 6, 3)


def test_xmp_and_text_turn_nothing():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><d tiff:Orientation="6"/></x:xmpmeta>'
    for form in ("JPEG", "WEBP"):
        content = encoded(PIXELS, form, xmp=xmp, lossless=True)
        assert decode(content).shape == PIXELS.shape


def test_transparent_pixels_lie_over_white():
    alpha = packed.random_images(1, (6, 9, 1))
    alpha[0], alpha[1] = 0, 255
    both = np.concatenate([PIXELS, alpha], 2)
    share = [[[Fraction(int(a), 255) for a in pixel] for pixel in row] for row in alpha]
    expected = np.array(
        [
            [
                [int(int(c) * share[y][x][0] + 255 * (1 - share[y][x][0]) + Fraction(1, 2))]
                for c in PIXELS[y, x]
            ]
            for y in range(6)
            for x in range(9)
        ]
    ).reshape(6, 9, 3)
    for content in (encoded(both), encoded(both, "WEBP", lossless=True, exact=True)):
        np.testing.assert_array_equal(decode(content), expected)
    np.testing.assert_array_equal(from_pillow(Image.fromarray(both)), expected)
    both[..., 3] = 255
    np.testing.assert_array_equal(decode(encoded(both)), PIXELS)


def png(bits, kind, row, key):
    """Return a PNG of one row of two pixels, of which those of the samples `key` are clear."""

    def chunk(name, data):
        check = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 2, 1, bits, kind, 0, 0, 0)
    parts = {b"IHDR": header, b"tRNS": key, b"IDAT": zlib.compress(b"\0" + row), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts.items())


@pytest.mark.parametrize(
    ("bits", "kind", "row", "key", "expected"),
    [
        (1, 0, [0b01000000], [0], [255, 255]),
        (1, 0, [0b01000000], [1], [0, 255]),
        (2, 0, [0b01100000], [1], [255, 170]),
        (2, 0, [0b01100000], [0], [85, 170]),
        (4, 0, [0x8A], [8], [255, 170]),
        (8, 0, [0x8A, 1], [0x8A], [255, 1]),
        (16, 0, [0x80, 0, 0x80, 1], [0x8000], [255, 128]),
        (8, 2, [1, 2, 3, 4, 4, 4], [1, 2, 3], [255, 4]),
        (16, 2, [7, 1, 0, 0, 9, 9, 9, 0, 9, 0, 9, 0], [0x0701, 0, 0x0909], [255, 9]),
        (16, 2, [7, 1, 7, 1, 7, 1, 9, 0, 9, 0, 9, 0], [7, 7, 7], [7, 9]),
    ],
)
def test_a_transparent_colour_is_compared_as_it_is_stored(bits, kind, row, key, expected):
    content = png(bits, kind, bytes(row), struct.pack(f">{len(key)}H", *key))
    assert decode(content).tolist() == [[[value] * 3 for value in expected]]
    image = Image.open(io.BytesIO(content))
    np.testing.assert_array_equal(from_pillow(image), from_pillow(image))


@pytest.mark.parametrize("form", ["GIF", "PNG"])
@pytest.mark.parametrize("mode", ["P", "L", "RGB", "1"])
def test_a_transparent_colour_is_white(mode, form):
    if form == "GIF" and mode in ("RGB", "1"):
        pytest.skip("a GIF has a palette")
    image = Image.new("P" if mode == "P" else mode, (4, 3))
    image.putpalette([9, 9, 9, 8, 8, 8]) if mode == "P" else None
    last = {"P": 1, "L": 40, "RGB": (1, 2, 3), "1": 1}[mode]
    image.putpixel((2, 1), last)
    key = (0, 0, 0) if mode == "RGB" else 0
    found = decode(encoded(image, form, transparency=key))
    shown = {"P": [8] * 3, "L": [40] * 3, "RGB": [1, 2, 3], "1": [255] * 3}[mode]
    assert found[1, 2].tolist() == shown
    found[1, 2] = 255
    assert (found == 255).all()


def test_what_the_frame_of_a_gif_does_not_cover_is_white():
    whole = bytearray(encoded(Image.new("P", (2, 1), 0), "GIF"))
    whole[6:10] = struct.pack("<HH", 4, 3)  # the screen
    at = whole.index(b",\0\0\0\0")
    whole[at + 1 : at + 5] = struct.pack("<HH", 1, 2)
    found = decode(bytes(whole))
    assert (found == 0).all(2).nonzero() == (pytest.approx([2, 2]), pytest.approx([1, 2]))
    assert ((found == 0) | (found == 255)).all()


def test_grey_of_16_bits_is_its_high_byte():
    deep = np.arange(54, dtype=np.uint16).reshape(6, 9) * 1213
    for form in ("PNG", "TIFF"):
        found = decode(encoded(deep, form))
        np.testing.assert_array_equal(found, np.repeat((deep >> 8)[..., None], 3, 2))
    given = from_pillow(Image.fromarray(deep))
    np.testing.assert_array_equal(given[..., 0], deep >> 8)
    for highest in (65535, 4095, 255, 1):
        values = np.minimum(deep, highest)
        plain = f"P2 9 6 {highest}\n{' '.join(map(str, values.ravel()))}\n".encode()
        wide = values.astype(">u2" if highest > 255 else np.uint8).tobytes()
        binary = f"P5 9 6 {highest}\n".encode() + wide
        expected = np.round(values * (255 / highest))
        np.testing.assert_array_equal(decode(binary)[..., 0], expected)
        assert np.abs(decode(plain)[..., 0].astype(int) - expected).max() <= 1  # Pillow's reader


def tiff(values, bits):
    """A grey TIFF without compression, of an even number of values of 12 bits."""
    pairs = zip(values[::2], values[1::2], strict=True)
    data = b"".join(((a << 12) | b).to_bytes(3, "big") for a, b in pairs)
    tags = {
        256: len(values),
        257: 1,
        258: bits,
        259: 1,
        262: 1,
        273: 8,
        277: 1,
        278: 1,
        279: len(data),
    }
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, v) for tag, v in tags.items())
    at = 8 + len(data)
    return (
        struct.pack("<2sHI", b"II", 42, at)
        + data
        + struct.pack("<H", len(tags))
        + entries
        + bytes(4)
    )


def test_grey_of_12_bits_is_its_high_byte():
    values = [0, 15, 16, 2048, 4080, 4095]
    assert decode(tiff(values, 12))[0, :, 0].tolist() == [0, 0, 1, 128, 255, 255]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.full((4, 4), 0.5, np.float32), "its pixels are floats: save it with 8 or 16 bits"),
        (np.full((4, 4), 4095, np.int32), "its integers have no known range: save it with 8 or"),
        (np.full((4, 4), 2**30, np.int32), "its integers have no known range: save it with 8 or"),
        (np.full((4, 4), 4095, np.uint16), "its 16-bit pixels are at most 4095 of 65535"),
        (np.full((4, 4), 255, np.uint16), "its 16-bit pixels are at most 255 of 65535"),
    ],
)
def test_a_range_that_nothing_says_is_refused(values, message):
    """Clipped to bytes it would be black or white."""
    for read in (
        lambda: decode(encoded(values, "TIFF")),
        lambda: from_pillow(Image.fromarray(values)),
    ):
        with pytest.raises(ValueError, match=message):
            read()


def test_black_of_16_bits_is_black():
    assert not decode(encoded(np.zeros((4, 4), np.uint16))).any()


def test_a_side_has_no_limit_of_its_own():
    assert decode(encoded(np.zeros((1, 20_000, 3), np.uint8))).shape == (1, 20_000, 3)
    assert decode(b"P5 20000 1 255\n" + bytes(20_000)).shape == (1, 20_000, 3)


def test_exif_behind_the_pixels_of_a_png_counts():
    data = exif(SIX)
    chunk = (
        struct.pack(">I", len(data))
        + b"eXIf"
        + data
        + struct.pack(">I", zlib.crc32(b"eXIf" + data))
    )
    whole = encoded(PIXELS)
    np.testing.assert_array_equal(decode(whole[:-12] + chunk + whole[-12:]), FLIPS[6](PIXELS))


def test_the_pixels_are_the_callers():
    for content in (encoded(PIXELS), b"P5 2 2 255\n1234"):
        found = decode(content)
        found[:] = 0
        assert found.flags.c_contiguous
