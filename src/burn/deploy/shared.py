"""Parts of packing and exporting: views of a checkpoint, and the comparison of two networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from burn.core.errors import UserError
from burn.core.settings import from_plain
from burn.core.types import Checkpoint
from burn.data.builtin.digits import Digits
from burn.data.view_config import ViewConfig
from burn.deploy.layout import Array

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_CHECKED = 224  # pixels; convolutions are the same at any size
LEAST_COSINE = 0.999
_NUM_EACH = 4  # sample images of each kind
_LEAST_SHARE = 0.75  # of the images, whose cosine must be above LEAST_COSINE
_LEAST_ROUNDED = 0.97  # median of the cosines to features of before gates are rounded


def views_of(checkpoint: Checkpoint) -> ViewConfig:
    """Return the views that a checkpoint was trained on; UserError if it does not describe them."""
    try:
        views = from_plain(ViewConfig, checkpoint.meta["views"])
        views.check()
    except (KeyError, UserError) as error:
        raise UserError(f"{checkpoint.origin}: its description is damaged: {error}") from error
    return views


def sample_images(size: int) -> Tensor:
    """Return built-in images to compare two networks on, uint8 (8, 3, size, size)."""
    import torch  # here, because the names of a command are checked without it

    digits = Digits("test")
    images = [digits.read(index).permute(1, 2, 0).numpy() for index in range(_NUM_EACH)]
    random = np.random.default_rng(0)
    images += list(random.integers(0, 256, (_NUM_EACH, 8, 8, 3), dtype=np.uint8))
    enlarged = [cv2.resize(image, (size, size), interpolation=cv2.INTER_CUBIC) for image in images]
    return torch.from_numpy(np.stack(enlarged)).permute(0, 3, 1, 2).contiguous()


def cosines(first: Array, second: Array) -> Array:
    """Return the cosines between the rows of two matrices, (rows,).

    They are 1 where both rows are 0, and NaN for all where a number is not finite.
    """
    first, second = first.astype(np.float64), second.astype(np.float64)
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return np.full(len(first), np.nan)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    both_zero = ~first.any(axis=1) & ~second.any(axis=1)
    products = (first * second).sum(axis=1) / np.where(lengths > 0, lengths, 1)
    return np.where(both_zero, 1.0, products)


def agree(values: Array) -> bool:
    """Return whether two networks whose features have these cosines, one an image, are the same.

    Each network adds in its own order. Where an argument of a sign is nearly 0, rounding turns the
    sign, and everything after it changes: on trained networks and 32-pixel images, one cosine of
    100 falls below 0.999. A wrong constant changes every image.
    """
    return bool((values > LEAST_COSINE).mean() >= _LEAST_SHARE)


def survives_rounding(values: Array) -> bool:
    """Return whether a network is still itself after the gates' weights are rounded to 16 bits.

    The cosines, one an image, are those to the features of before. Of a bnext_t that was trained on
    96 × 96 pixels the median is 0.998; where one weight of each row is so large that the others are
    lost, 0.945.
    """
    return bool(np.median(values) > _LEAST_ROUNDED)
