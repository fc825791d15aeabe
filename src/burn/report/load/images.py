"""Decodes pictures that may come from anyone, and encodes them small enough for the page."""

from __future__ import annotations

import base64
import io
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from burn.core.errors import UserError

_MOST_PIXELS = 50_000_000


def open_picture(data: bytes, name: Path) -> Image.Image:
    """Decode a PNG or JPEG in RGB.

    Args:
        data: The encoded picture.
        name: Name of its file for the error message.

    Raises:
        UserError: It is not a complete PNG or JPEG, or has too many pixels.
    """
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
        raise UserError(
            f"{name} is not a complete PNG or JPEG: write it again, or remove it"
        ) from error


def shrunk(picture: Image.Image, width: int, quality: int) -> str:
    """Return a picture as a data URL of a JPEG of at most this width."""
    if picture.width > width:
        height = max(1, round(picture.height * width / picture.width))
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    return jpeg(picture, quality)


@dataclass(frozen=True)
class Grid:
    """The positions of square tiles in a picture, in pixels.

    Attributes:
        side: Side of a tile.
        left: Left edge of the first tile.
        top: Top edge of the first tile.
        step: Distance to the next column and to the next row.
    """

    side: int
    left: int
    top: int
    step: tuple[int, int]

    def end(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the smallest width and height of a picture with so many tiles."""
        right = self.left + (columns - 1) * self.step[0] + self.side
        return right, self.top + (rows - 1) * self.step[1] + self.side


def tile(picture: Image.Image, row: int, column: int, grid: Grid) -> Image.Image:
    """Return one tile of a grid."""
    left, top = grid.left + column * grid.step[0], grid.top + row * grid.step[1]
    return picture.crop((left, top, left + grid.side, top + grid.side))


def jpeg(picture: Image.Image, quality: int) -> str:
    """Return a picture as a data URL of a JPEG."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, optimize=True)
    return data_address(file.getvalue(), "image/jpeg")


def data_address(data: bytes, kind: str) -> str:
    """Return the bytes as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
