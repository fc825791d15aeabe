"""What a file is by its first bytes, said where a file of another kind was expected."""

from __future__ import annotations

import stat

FIRST = 4096  # bytes that say it: the keys of a safetensors file's metadata come first
_BEGINNINGS = (
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x89PNG\r\n", "a PNG image"),
    (b"GIF8", "a GIF image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"P5", "a PGM image"),
    (b"P6", "a PPM image"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"%PDF", "a PDF document"),
)
PACKED, INDEX = "a packed network", "an index of burn-engine"
_OF_METADATA = ((b'"burn_index"', INDEX), (b'"bnn"', PACKED))


def kind_of(data: bytes) -> str | None:
    """Return what a file is, with its article, by its first bytes; None if they do not say."""
    first = data[:FIRST]
    if first[8:10] == b'{"':  # first, since a header's length may begin as any file does
        return next((kind for key, kind in _OF_METADATA if key in first), None)
    if first[:4] == b"RIFF" and first[8:12] == b"WEBP":
        return "a WEBP image"
    return next((kind for start, kind in _BEGINNINGS if first.startswith(start)), None)


def not_regular(mode: int) -> str:
    """Return what to say of a path with this `st_mode`, from which no file can be read."""
    folder = " but a folder" if stat.S_ISDIR(mode) else ""
    return f"not a regular file{folder}"
