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
    """Decode a PNG or JPEG in RGB; UserError, which names the file, if it is no complete one."""
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


def shrunk(picture: Image.Image, width: int) -> Image.Image:
    """Return a picture of at most this width."""
    if picture.width <= width:
        return picture
    height = max(1, round(picture.height * width / picture.width))
    return picture.resize((width, height), Image.Resampling.LANCZOS)


@dataclass(frozen=True)
class Grid:
    """The positions of square tiles in a picture, in pixels; the first is at `left`, `top`."""

    side: int
    left: int
    top: int
    step: tuple[int, int]  # to the next column and to the next row

    def end(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the smallest width and height of a picture with so many tiles."""
        right = self.left + (columns - 1) * self.step[0] + self.side
        return right, self.top + (rows - 1) * self.step[1] + self.side


def tile(picture: Image.Image, row: int, column: int, grid: Grid) -> Image.Image:
    left, top = grid.left + column * grid.step[0], grid.top + row * grid.step[1]
    return picture.crop((left, top, left + grid.side, top + grid.side))


def jpeg(picture: Image.Image, quality: int) -> str:
    """Return a picture as a data URL of a JPEG."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, optimize=True)
    return data_address(file.getvalue(), "image/jpeg")


def data_address(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
