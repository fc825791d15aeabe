"""Pictures from strangers, drawn anew small enough to travel inside a page."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path

from PIL import Image

from burn.errors import UserError

_MOST_PIXELS = 50_000_000


def open_picture(data: bytes, name: Path) -> Image.Image:
    """A PNG or JPEG in RGB. Raises UserError for what is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # we have our own limit
            with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as picture:
                if picture.width * picture.height > _MOST_PIXELS:
                    raise Image.DecompressionBombError
                return picture.convert("RGB")
    except Image.DecompressionBombError as error:
        raise UserError(f"{name} has more pixels than a report shows: remove it") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"{name} is no whole PNG or JPEG: make it anew, or remove it") from error


def shrunk(picture: Image.Image, width: int, quality: int) -> str:
    """As a data address of a JPEG at most so wide."""
    if picture.width > width:
        height = max(1, round(picture.height * width / picture.width))
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    return jpeg(picture, quality)


def tile(picture: Image.Image, row: int, column: int, side: int) -> Image.Image:
    """One of a grid."""
    left, top = column * side, row * side
    return picture.crop((left, top, left + side, top + side))


def jpeg(picture: Image.Image, quality: int) -> str:
    """As a data address."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, optimize=True)
    return data_address(file.getvalue(), "image/jpeg")


def data_address(data: bytes, kind: str) -> str:
    """The bytes as an address that holds them."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
