"""Decode images, and refuse other formats, damaged files, and decompression bombs.

The pixels and the limits are those of `burn_engine.pixels`, so that a network is trained with what
it is run with.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from burn.core.errors import UserError
from burn.core.inputs import open_regular
from burn_engine import pixels
from burn_engine.pixels import MOST_BYTES as MOST_BYTES  # exported, too

if TYPE_CHECKING:
    from torch import Tensor


class UnreadableImage(Exception):
    """Raised if an image of a source cannot be decoded; the message names it and says why."""


def decode(encoded: bytes, name: str, *, upright: bool = True) -> Tensor:
    """Decode an image to a channels-last tensor (3, height, width), as `decode_pixels` does."""
    return as_tensor(decode_pixels(encoded, name, upright=upright))


def as_tensor(image: np.ndarray) -> Tensor:
    """Return an image, uint8 (height, width, 3), as a tensor (3, height, width) on its memory."""
    import torch  # here, because a packed network reads images without it

    return torch.from_numpy(image).permute(2, 0, 1)


def decode_pixels(encoded: bytes, name: str, *, upright: bool = True) -> np.ndarray:
    """Decode the bytes of an image file to uint8 (height, width, 3).

    Of an animation the first frame is returned, of 16-bit grey the high byte. Transparent pixels
    lie over white. `upright` applies the rotation that the EXIF data ask for.

    Raises:
        UnreadableImage: The image has none of the engine's formats, too many pixels or bytes, or a
            range that nothing says; or it cannot be decoded to its end. `name` is in the message.
    """
    check_bytes(len(encoded), name)
    try:
        return pixels.decode(encoded, upright=upright)
    except ValueError as error:
        raise UnreadableImage(f"{name}: {error}") from error


def read_image(file: Path) -> bytes:
    """Return the bytes of an image file, or raise UnreadableImage, as for one of too many bytes."""
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
    """Raise UnreadableImage if an encoded image has more than MOST_BYTES."""
    if number > MOST_BYTES:
        raise UnreadableImage(f"{name}: {number:,} bytes, more than {MOST_BYTES:,}")
