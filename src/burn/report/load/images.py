"""Pictures from strangers, drawn anew small enough to travel inside a page."""

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


@dataclass(frozen=True)
class Grid:
    """Where square tiles lie in a picture: side, where the first begins, and the way to the next.

    All in pixels. step: to the next column and to the next row.
    """

    side: int
    left: int
    top: int
    step: tuple[int, int]

    def end(self, rows: int, columns: int) -> tuple[int, int]:
        """Width and height that a picture with so many tiles has at least."""
        right = self.left + (columns - 1) * self.step[0] + self.side
        return right, self.top + (rows - 1) * self.step[1] + self.side


def tile(picture: Image.Image, row: int, column: int, grid: Grid) -> Image.Image:
    """One of a grid."""
    left, top = grid.left + column * grid.step[0], grid.top + row * grid.step[1]
    return picture.crop((left, top, left + grid.side, top + grid.side))


def jpeg(picture: Image.Image, quality: int) -> str:
    """As a data address."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality, optimize=True)
    return data_address(file.getvalue(), "image/jpeg")


def data_address(data: bytes, kind: str) -> str:
    """The bytes as an address that holds them."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
