"""Tests of image files: formats, sizes, and how a photograph becomes an input."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import types
import zlib

import numpy as np
import pytest

import burn_engine
import packed
from burn_engine.format import ImageSize
from burn_engine.images import prepare, read_images, read_input
from burn_engine.native import resizing_core
from burn_engine.pixels import decode, turned

SIZE = ImageSize(20, 16)


def photo(height, width, seed=0):
    return packed.random_images(seed, (height, width, 3))


@pytest.fixture
def no_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)


@pytest.mark.usefixtures("no_pillow")
def test_arrays_go_in_as_they_are(tmp_path):
    path = tmp_path / "a.npy"
    for array in (photo(30, 12), photo(5, 6) / 255):
        np.save(path, array)
        found = read_input(path, SIZE)
        np.testing.assert_array_equal(found, array.astype(found.dtype))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 4, 4, 3)), "shape (2, 4, 4, 3); expected one image"),
        (np.zeros((4, 4)), "images have shape (4, 4)"),
        (np.full((4, 4, 3), 255.0), "pass bytes as uint8"),
        (np.zeros((4, 4, 3), object), "a.npy: "),
        (np.zeros((0, 4, 3), np.uint8), "a.npy: "),
    ],
)
def test_refuses_arrays(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError) as caught:
        read_input(tmp_path / "a.npy", None)
    assert message in str(caught.value)


def test_refuses_a_damaged_array(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, photo(100, 100))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"a\.npy: "):
        read_input(path, None)
    path.write_bytes(b"PK\3\4 nothing")
    with pytest.raises(ValueError, match=r"a\.npy: "):
        read_input(path, None)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '''abc",
        "(",
        "1+" * 3_000 + "1",
        "[" * 500,
        "-" * 9_000,
        "{'descr': '<f4'",
        "\xff",
    ],
)
def test_refuses_an_array_whose_header_is_no_python(tmp_path, header):
    text = header.encode("latin-1")
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(ValueError, match=r"a\.npy: not an array of numbers"):
        read_input(path, None)


@pytest.mark.usefixtures("no_pillow")
def test_netpbm(tmp_path):
    colour, grey = photo(4, 6), photo(4, 6)[..., :1]
    path = tmp_path / "a.ppm"
    path.write_bytes(b"P6 6 4 255\n" + colour.tobytes())
    np.testing.assert_array_equal(read_input(path, None), colour)
    path.write_bytes(b"P6\n# a remark 9 9\n#another\n6\t4 # and here\n255\n" + colour.tobytes())
    np.testing.assert_array_equal(read_input(path, None), colour)
    path.write_bytes(b"P5 6 4 255\n" + grey.tobytes())
    np.testing.assert_array_equal(read_input(path, None), np.repeat(grey, 3, 2))
    path.write_bytes(b"P5 6 4 65535 " + (grey.astype(">u2") * 257).tobytes())
    np.testing.assert_array_equal(read_input(path, None), np.repeat(grey, 3, 2))
    path.write_bytes(b"P5 2 1 3\n\1\3")
    np.testing.assert_array_equal(read_input(path, None)[0, :, 0], [85, 255])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"P6 6 4 255", "header is damaged"),
        (b"P6 6 x 255\n", "header is damaged"),
        (b"P6 99999999999999999999 4 255\n", "header is damaged"),
        (b"P6" + b"#" * 10_000, "header is damaged"),
        (b"P6 0 4 255\n", "4 × 0 pixels"),
        (b"P6 10001 10000 255\n", "more than 100,000,000 pixels"),
        (b"P6 6 4 0\n", "maximum value is 0, not 1 to 65535"),
        (b"P6 6 4 65536\n", "maximum value is 65536, not 1 to 65535"),
        (b"P6 6 4 255\n12345", "truncated: 5 bytes of pixels, expected 72"),
    ],
)
def test_refuses_netpbm(tmp_path, content, message):
    path = tmp_path / "a.ppm"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_input(path, None)
    assert message in str(caught.value)
    assert "a.ppm: " in str(caught.value)


@pytest.mark.usefixtures("no_pillow")
def test_without_pillow(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG")
    with pytest.raises(ValueError, match=r"a\.png: .* need Pillow: pip install pil"):
        read_input(path, SIZE)
    np.testing.assert_array_equal(prepare(photo(20, 27), SIZE), photo(20, 27)[2:18, 6:22])


@pytest.mark.usefixtures("no_pillow")
def test_without_pillow_the_core_resizes(monkeypatch):
    if burn_engine.isas() != ["reference"]:
        assert prepare(photo(30, 40), SIZE).shape == (16, 16, 3)
    monkeypatch.setitem(sys.modules, "burn_engine._core", None)
    with pytest.raises(ValueError, match=r"30 × 40 pixels.*20 × 27; without .* Pillow: pip inst"):
        prepare(photo(30, 40), SIZE)


@pytest.mark.parametrize("isa", burn_engine.isas()[:-1])
def test_the_core_resizes_to_pillows_bytes(isa, monkeypatch):
    """At random sizes and parts; a third of the images are black and white, which overshoots."""
    image_module = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("BURN_ENGINE_ISA", isa)
    random = np.random.default_rng(0)
    bicubic = image_module.Resampling.BICUBIC
    for number in range(150):
        height, width = np.exp(random.uniform(0, 6, 2)).astype(int).tolist()
        new_height, new_width = np.exp(random.uniform(0, 5, 2)).astype(int).tolist()
        image = photo(height, width, number)
        if number % 3 == 0:
            image = np.where(image > 127, 255, 0).astype(np.uint8)
        across = image_module.fromarray(image).resize((new_width, height), bicubic)
        expected = np.asarray(across.resize((new_width, new_height), bicubic))
        top, left = int(random.integers(new_height)), int(random.integers(new_width))
        rows = int(random.integers(1, new_height - top + 1))
        columns = int(random.integers(1, new_width - left + 1))
        core = resizing_core()
        found = core.resize(image, new_height, new_width, top, left, rows, columns)
        np.testing.assert_array_equal(found, expected[top:, left:][:rows, :columns])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4, 0, 0, 1, 1), "a side is not 1 to"),
        ((4, 2**21, 0, 0, 1, 1), "a side is not 1 to"),
        ((4, 4, 1, 0, 4, 4), "does not lie in the resized image"),
        ((4, 4, 0, -1, 4, 4), "does not lie in the resized image"),
        ((4, 4, 0, 0, 0, 4), "does not lie in the resized image"),
        ((4, 4, 0, 0, 4, -1), "a size is negative"),
    ],
)
def test_the_core_refuses_parts_that_are_not_there(arguments, message):
    core = pytest.importorskip("burn_engine._core", exc_type=ImportError)
    with pytest.raises(ValueError, match=message):
        core.resize(photo(5, 6), *arguments)
    with pytest.raises(ValueError, match="photo is not"):
        core.resize(photo(5, 6)[..., :2].copy(), 4, 4, 0, 0, 4, 4)


@pytest.mark.parametrize("size", [(30, 41), (41, 30), (19, 200), (16, 16), (77, 20)])
def test_the_reference_prepares_alike(size, monkeypatch):
    pytest.importorskip("PIL")
    found = prepare(photo(*size), SIZE)
    monkeypatch.setenv("BURN_ENGINE_ISA", "reference")
    np.testing.assert_array_equal(found, prepare(photo(*size), SIZE))


def test_other_things_than_files(tmp_path):
    with pytest.raises(ValueError, match="not a regular file"):
        read_input(tmp_path, None)
    with pytest.raises(FileNotFoundError):
        read_input(tmp_path / "none.png", None)


def test_formats_that_start_programs_are_not_opened(tmp_path):
    """Pillow passes PostScript to Ghostscript, whatever the suffix of the file."""
    pytest.importorskip("PIL")
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    with pytest.raises(ValueError, match=r"photo\.jpg: not JPEG, PNG"):
        read_input(file, None)


def test_a_file_of_many_gigabytes_is_not_read(tmp_path):
    pytest.importorskip("PIL")
    file = tmp_path / "photo.jpg"
    with file.open("wb") as sparse:
        sparse.truncate(2**29)
    with pytest.raises(ValueError, match=r"photo\.jpg: more than 268435456 bytes"):
        read_input(file, None)


@pytest.mark.parametrize("before", [b"", b"\0"], ids=["even", "odd"])
def test_a_jpeg_of_many_scans_is_refused(tmp_path, before):
    image = pytest.importorskip("PIL.Image")
    encoded = io.BytesIO()
    image.new("RGB", (4000, 4000)).save(encoded, "JPEG")
    file = tmp_path / "photo.jpg"
    file.write_bytes(encoded.getvalue() + before + b"\xff\xda" * 1000)
    with pytest.raises(ValueError, match=r"photo\.jpg: 1,001 scans of 16,000,000 pixels$"):
        read_input(file, None)


def test_pillow_formats(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    pixels = photo(6, 9)
    path = tmp_path / "a.png"
    image_module.fromarray(pixels).save(path)
    np.testing.assert_array_equal(read_input(path, None), pixels)
    image_module.fromarray(pixels[..., 0]).save(path)
    np.testing.assert_array_equal(read_input(path, None), np.repeat(pixels[..., :1], 3, 2))
    image_module.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(path)
    np.testing.assert_array_equal(read_input(path, None), np.repeat(pixels[..., :1], 3, 2))
    exif = image_module.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    image_module.fromarray(pixels).save(path, exif=exif)
    np.testing.assert_array_equal(read_input(path, None), np.rot90(pixels, -1))
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"a\.png: "):
        read_input(path, None)
    path.write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"a\.png: not JPEG, PNG"):
        read_input(path, None)


@pytest.mark.parametrize(
    "size", [(20, 20), (33, 50), (50, 33), (7, 9), (5, 200), (161, 20), (1, 1)]
)
def test_prepare_sizes(size):
    pytest.importorskip("PIL")
    assert prepare(photo(*size), SIZE).shape == (16, 16, 3)
    np.testing.assert_array_equal(prepare(photo(*size), None), photo(*size))


def test_prepare_crops_what_is_very_long():
    pytest.importorskip("PIL")
    image = photo(10, 90)
    np.testing.assert_array_equal(prepare(image, SIZE), prepare(image[:, 25:65], SIZE))


def test_prepare_resizes_smoothly():
    pytest.importorskip("PIL")
    ramp = np.broadcast_to(np.arange(80, dtype=np.uint8)[:, None, None], (80, 80, 3)).copy()
    found = prepare(ramp, SIZE)[:, 5, 0].astype(float)
    # Output pixel i covers rows 4 (i + 2) to 4 (i + 2) + 3, whose mean is 4 (i + 2) + 1.5.
    np.testing.assert_allclose(found, 4 * (np.arange(16) + 2) + 1.5, atol=1)


@pytest.mark.parametrize("size", [(30, 41), (41, 30), (19, 200), (16, 16), (77, 20)])
def test_prepare_is_the_plain_view_of_training(size):
    pytest.importorskip("torch")
    views = pytest.importorskip("burn.data.augment")
    import torch

    image = np.repeat(np.repeat(photo(-(-size[0] // 8), -(-size[1] // 8)), 8, 0), 8, 1)
    image = np.ascontiguousarray(image[: size[0], : size[1]])
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    expected = views.plain_view(tensor, views.ViewConfig(size=16, resize=20))
    found = prepare(image, SIZE).astype(int)
    # Pillow and torchvision round the filter's weights to different fixed-point numbers.
    assert np.abs(found - expected.permute(1, 2, 0).numpy().astype(int)).max() <= 1


def tiled_tiff(side):
    """An 8 × 8 image in one tile of side × side pixels, compressed by LZW."""
    entries = [(256, 4, 8), (257, 4, 8), (258, 3, 8), (259, 3, 5), (262, 3, 1), (277, 3, 1)]
    entries += [(322, 4, side), (323, 4, side), (324, 4, 8), (325, 4, 100)]
    directory = b"".join(struct.pack("<HHII", tag, kind, 1, v) for tag, kind, v in entries)
    return (
        struct.pack("<2sHI", b"II", 42, 108)
        + bytes(100)
        + struct.pack("<H", len(entries))
        + directory
        + bytes(4)
    )


def test_a_tile_larger_than_any_image_is_refused(tmp_path):
    """Its decoder would take memory for the whole tile, 1.6 GB for a file of 234 bytes."""
    path = tmp_path / "a.tif"
    for side in (16_000, 40_000):
        path.write_bytes(tiled_tiff(side))
        with pytest.raises(ValueError, match=rf"a\.tif: tiles of {side}×{side} pixels$"):
            read_input(path, None)
    path.write_bytes(tiled_tiff(16))
    with pytest.raises(ValueError, match=r"a\.tif: damaged \(decoder error"):
        read_input(path, None)


def test_a_bomb_is_refused_with_our_own_limit(tmp_path):
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")))
    ]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    with pytest.raises(ValueError, match=r"a\.png: more than 100,000,000 pixels$"):
        read_input(tmp_path / "a.png", None)


def test_pillow_that_is_being_imported_by_another_thread(monkeypatch):
    """Its module is there before its classes are."""
    monkeypatch.setitem(sys.modules, "PIL.Image", types.ModuleType("PIL.Image"))
    array = packed.random_images(shape=(4, 4, 3))
    found, single = read_images(array, None)
    assert single
    np.testing.assert_array_equal(found[0], array)


def test_threads_read_arrays_and_photographs_from_the_start(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    image_module.fromarray(packed.random_images(shape=(4, 4, 3))).save(tmp_path / "b.png")
    program = """
import sys, threading
import numpy as np
from burn_engine.images import read_images
assert "PIL.Image" not in sys.modules
start, array, failed = threading.Barrier(3), np.zeros((4, 4, 3), np.uint8), []
def read(image):
    start.wait()
    try:
        for _ in range(2_000 if image is array else 1):
            read_images(image, None)
    except Exception as error:
        failed.append(error)
threads = [threading.Thread(target=read, args=[one]) for one in (array, array, sys.argv[1])]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failed, failed
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "b.png"], check=True)


def jpeg(height, width, **options):
    """A smooth image as JPEG, and its pixels before."""
    from PIL import Image

    small = Image.fromarray(photo(6, 8, seed=1))
    image = small.resize((width, height), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95, **options)
    return buffer.getvalue(), np.asarray(image)


@pytest.mark.parametrize(
    ("size", "shortest", "decoded"),
    [
        ((300, 400), None, (300, 400)),
        ((300, 400), 301, (300, 400)),
        ((300, 400), 151, (300, 400)),
        ((300, 400), 150, (150, 200)),
        ((400, 300), 75, (100, 75)),
        ((300, 400), 40, (75, 100)),  # an eighth would have 37
        ((333, 1001), 41, (42, 126)),
        ((64, 64), 1, (8, 8)),  # there is nothing below an eighth
    ],
)
def test_a_jpeg_is_decoded_no_smaller_than_is_enough(size, shortest, decoded):
    encoded, _ = jpeg(*size)
    assert decode(encoded, shortest=shortest).shape[:2] == decoded


def test_a_jpeg_that_is_decoded_smaller_is_the_same_photograph(tmp_path):
    encoded, pixels = jpeg(
        640, 480, exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\1\0\0\0\6\0\0\0"
    )
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded)
    found = read_input(path, SIZE).astype(int)
    expected = prepare(np.ascontiguousarray(turned(pixels, 6)), SIZE)
    assert abs(found - expected).mean() < 1.5
    with pytest.raises(ValueError, match="truncated"):
        decode(encoded[:-2000], shortest=40)


def test_other_formats_are_decoded_whole():
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(photo(90, 80)).save(buffer, "PNG")
    assert decode(buffer.getvalue(), shortest=10).shape == (90, 80, 3)
