"""A picture with samples of the augmented views, drawn as in the first epoch of training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from burn.core.files import write_beside
from burn.data.base import Source
from burn.data.checks import readable_images
from burn.data.loader import Transform

ROWS = 8
_MOST_TRIED = 4 * ROWS  # images to try if some cannot be read
_SIDE = 112  # pixels of the largest view
_GAP, _HEADER = 4, 22  # pixels
_PAPER, _INK = 255, (60, 60, 60)
_EPOCH = 0

Pixels = NDArray[np.uint8]  # (height, width, 3)


def view_samples(source: Source, transform: Transform, seed: int) -> Pixels | None:
    """Draw samples of the views; a row shows an image, its views, and the teacher's views if any.

    They are those of epoch 0, by the transform of training without a cache; the seed chooses the
    images. None if no image can be read.
    """
    order = np.random.default_rng((seed, _EPOCH)).permutation(len(source))[:_MOST_TRIED]
    rows: list[list[Pixels]] = []
    num_views = 0
    parts = [sorted(order[start : start + ROWS].tolist()) for start in range(0, len(order), ROWS)]
    readable = (pair for part in parts for pair in readable_images(source, part))
    for index, image in itertools.islice(readable, ROWS):
        drawn = transform(image, _EPOCH, index)
        num_views = len(drawn.views)
        views = [_pixels(view) for view in (*drawn.views, *drawn.teacher_views)]
        rows.append([_square(_pixels(image)), *views])
    return _grid(rows, num_views) if rows else None


def save_view_samples(path: Path, picture: Pixels) -> None:
    """Write a picture, uint8 (height, width, 3), as a JPEG."""
    image = Image.fromarray(picture)
    write_beside(path, lambda to: image.save(to, "JPEG", quality=90, subsampling=0, optimize=True))


def _pixels(image: Tensor) -> Pixels:
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def _square(image: Pixels) -> Pixels:
    """Place an image on a white square, uncropped, so that the views can be found in it."""
    height, width = image.shape[:2]
    side = max(height, width)
    scale = min(1.0, 2 * _SIDE / side)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA) if scale < 1 else image
    square = np.full((max(size), max(size), 3), _PAPER, np.uint8)
    top, left = ((max(size) - length) // 2 for length in small.shape[:2])
    square[top : top + small.shape[0], left : left + small.shape[1]] = small
    return square


def _grid(rows: Sequence[Sequence[Pixels]], num_views: int) -> Pixels:
    """Arrange the rows; views keep their relative sizes, small ones are enlarged by an integer."""
    largest = max(view.shape[0] for row in rows for view in row[1:])
    scale = max(1, round(_SIDE / largest)) if largest <= _SIDE else _SIDE / largest
    side = round(largest * scale)
    columns = len(rows[0])
    step = side + _GAP
    grid = np.full((_HEADER + len(rows) * step, columns * step, 3), _PAPER, np.uint8)
    for number, row in enumerate(rows):
        for column, tile in enumerate(row):
            drawn = _scaled(tile, side if not column else round(tile.shape[0] * scale))
            margin = (side - drawn.shape[0]) // 2
            top, left = _HEADER + number * step + margin, column * step + margin
            grid[top : top + drawn.shape[0], left : left + drawn.shape[1]] = drawn
    picture = Image.fromarray(grid)
    draw = ImageDraw.Draw(picture)
    for column in range(columns):
        text = f"view {column}" if column else "image"
        if column > num_views:
            text = f"teacher's {column - num_views}"
        centre = column * step + side // 2
        draw.text((centre, 4), text, _INK, ImageFont.load_default(13), anchor="ma")
    return np.asarray(picture)


def _scaled(tile: Pixels, side: int) -> Pixels:
    """Resize a view; an enlarged one shows its pixels as squares, as the network sees them."""
    if tile.shape[0] == side:
        return tile
    how = cv2.INTER_AREA if tile.shape[0] > side else cv2.INTER_NEAREST
    return np.asarray(cv2.resize(tile, (side, side), interpolation=how), dtype=np.uint8)
