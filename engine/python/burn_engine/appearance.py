"""What an image looks like, in a few kilobytes, and whether two images are copies of one another.

An image's middle square is shrunk to 64 × 64 grey pixels. In the disc inside, the difference of
two blurs is sampled at 489 points; the signs are its code. A copy may have been turned, mirrored
or cropped, so the codes of an image that was altered in these ways are compared with the codes of
others. Where few bits differ, the differences of finer blurs are compared, aligned by the way
that was found. Brightness and contrast change none of these, and compression hardly anything.

Sums are of whole numbers that the floats hold exactly, or of four numbers in a fixed order, so that
every machine, and JavaScript (engine/js/appearance.js), finds the same bits.

The features of a binary network were tried for this and are not used: docs/guide/duplicates.md.
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from burn_engine.format import Floats, ImageSize
from burn_engine.images import prepare
from burn_engine.vectors import signs

SIDE = 64  # pixels of the square
CODE_BYTES = 64  # the engine's search is fastest with 512 bits, so the last 23 are 0
# Limits chosen on flowers and imagenette; benchmarks/duplicates.py reports other photographs.
MOST_DIFFERENT = 0.26  # share of the code's bits of a pair whose finer details are compared
# Correlation of the finer details of copies. The many alterations that are tried make round things
# before an even background alike, so more is asked of altered copies, which have 0.8 or more.
LEAST_AGREEMENT, LEAST_OF_ALTERED = 0.5, 0.7

_COARSE, _FINE = (5, 15), (3, 7)  # sides of the two blurs whose difference is taken, in pixels
_ACROSS = 25  # samples along the disc's diameter
_ZOOM = 0.8  # side of the middle that a cropped copy shows
_MIDDLE = 512  # pixels of each side in which sharpness is measured
_LARGEST = 2  # fine differences count at most this many times their median
_STEPS = 1024  # to which that median is divided
_LUMA = np.array([299, 587, 114], np.float32)  # in thousandths


class Alteration(NamedTuple):
    """A way in which a copy may differ from its original.

    Attributes:
        turn: degrees.
        zoom: side of what is left, as a share of the original's.
        mirrored: whether left and right are exchanged.
        right: where the middle of what is left lies, in halves of the original's side.
        down: the same, downwards.
    """

    turn: int = 0
    zoom: float = 1.0
    mirrored: bool = False
    right: float = 0.0
    down: float = 0.0

    def text(self) -> str:
        """Describe it in a few words; "" for none."""
        parts = ["mirrored"] if self.mirrored else []
        parts += [f"turned by about {abs(self.turn)}°"] if self.turn else []
        parts += ["cropped"] if self.zoom < 1 else []
        return ", ".join(parts)


def _alterations() -> tuple[Alteration, ...]:
    """Return what is tried: of an alteration and its inverse one, since both images are altered."""
    shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
    return (
        *(Alteration(turn) for turn in range(0, 31, 5)),
        *(Alteration(turn, _ZOOM) for turn in range(-15, 16, 5)),
        *(Alteration(0, _ZOOM, False, a * (1 - _ZOOM), b * (1 - _ZOOM)) for a, b in shifts),
        *(Alteration(turn) for turn in (90, 180)),
        *(Alteration(turn, 1.0, True) for turn in (*range(-10, 11, 5), 90, 180, 270)),
        Alteration(0, _ZOOM, True),
    )


ALTERATIONS = _alterations()
UNALTERED = 0  # its position


class Appearance(NamedTuple):
    """What is kept of an image.

    Attributes:
        square: its middle, shrunk, grey, uint8 (SIDE, SIDE).
        digest: 16 bytes, the same for images of one size whose shrunken middles are the same.
        height: pixels.
        width: pixels.
        sharpness: mean difference of neighbouring pixels in the middle, in half octaves.
    """

    square: NDArray[np.uint8]
    digest: bytes
    height: int
    width: int
    sharpness: int


def appearance(photo: NDArray[np.uint8] | Floats) -> Appearance:
    """Return what an image looks like.

    Args:
        photo: uint8, or float from 0 to 1, (height, width, 3).

    Raises:
        ValueError: Pillow is needed and missing.
    """
    height, width = photo.shape[:2]
    top, left = max(0, (height - _MIDDLE) // 2), max(0, (width - _MIDDLE) // 2)
    middle = _thousandths(_bytes(photo[top : top + _MIDDLE, left : left + _MIDDLE]))
    steps = [np.abs(np.diff(middle, axis=axis)) for axis in (0, 1)]
    sharpness = sum(float(step.mean(dtype=np.float64)) for step in steps if step.size) / 1000
    # Before it is shrunk: half a pixel of 64 by which mirrored copies are moved costs agreement.
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = _bytes(photo[top : top + side, left : left + side])
    small = prepare(square, ImageSize(SIDE, SIDE))
    digest = hashlib.blake2b(small.tobytes(), digest_size=16, key=f"{height} {width}".encode())
    return Appearance(
        np.rint(_thousandths(small) / np.float32(1000)).astype(np.uint8),
        digest.digest(),
        height,
        width,
        round(2 * math.log2(1 + sharpness)),
    )


def codes(squares: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes of images, uint8 (n, CODE_BYTES).

    Args:
        squares: `Appearance.square` of each, (n, SIDE, SIDE).
    """
    return _packed(_sampled(_details(squares, _COARSE), np.full(len(squares), UNALTERED)))


def altered_codes(squares: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes of images after each of ALTERATIONS, uint8 (n, alterations, CODE_BYTES).

    Args:
        squares: As in `codes`.
    """
    codes = np.empty((len(squares), len(ALTERATIONS), CODE_BYTES), np.uint8)
    for at, details in enumerate(_details(squares, _COARSE)):
        codes[at] = _packed(_weighted(details.ravel()[_POSITIONS], _WEIGHTS))
    return codes


def agreements(
    squares: NDArray[np.uint8],
    altered: NDArray[np.int64],
    others: NDArray[np.int64],
    ways: NDArray[np.int64],
) -> Floats:
    """Return how well the fine details of pairs of images agree, -1 to 1, float32 (n,).

    Args:
        squares: As in `codes`.
        altered: Positions of the images that are altered, (n,).
        others: Positions of the others, (n,).
        ways: Position of the alteration of each pair among ALTERATIONS, (n,).
    """
    details = _details(squares, _FINE)
    a = _in_steps(_sampled(details[altered], ways))
    b = _in_steps(_sampled(details, np.full(len(squares), UNALTERED)))[others]
    both = _products(a, b) / (_lengths(a) * _lengths(b))
    return both.astype(np.float32)


def are_copies(agreement: Floats, ways: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether pairs of images are copies, (n,).

    Args:
        agreement: What `agreements` returned, (n,).
        ways: As in `agreements`.
    """
    return agreement >= np.where(ways == UNALTERED, LEAST_AGREEMENT, LEAST_OF_ALTERED)


def most_bits() -> int:
    """Return the number of different bits up to which pairs are compared further."""
    return int(MOST_DIFFERENT * _POINTS.shape[1])


def _bytes(photo: NDArray[np.uint8] | Floats) -> NDArray[np.uint8]:
    if photo.dtype.kind == "f":
        photo = np.rint(255 * photo)
    return photo.astype(np.uint8, copy=False)


def _thousandths(pixels: NDArray[np.uint8]) -> Floats:
    """Return the grey of pixels, in thousandths of a byte."""
    return pixels @ _LUMA


def _details(squares: NDArray[np.uint8], sides: tuple[int, int]) -> Floats:
    values = squares.astype(np.float32)
    return _blurred(values, sides[0]) - _blurred(values, sides[1])


def _blurred(values: Floats, side: int) -> Floats:
    """Return means over squares of an odd side, float32 (n, SIDE, SIDE); edges are repeated."""
    # Sums of at most 225 bytes, which float32 holds exactly: an even area has no details at all.
    sums = _SUMS[side] @ values @ _SUMS[side].T
    return np.divide(sums, np.float32(side**2)).astype(np.float32, copy=False)


def _sums(side: int) -> Floats:
    """Return the matrix (SIDE, SIDE) that adds up each pixel's neighbours along a line."""
    matrix = np.zeros((SIDE, SIDE), np.float32)
    for shift in range(-(side // 2), side // 2 + 1):
        np.add.at(matrix, (np.arange(SIDE), np.clip(np.arange(SIDE) + shift, 0, SIDE - 1)), 1)
    return matrix


_SUMS = {side: _sums(side) for side in {*_COARSE, *_FINE}}


def _points() -> Floats:
    """Return where the disc is sampled, float32 (2, points): right and down, from -1 to 1."""
    places = (np.arange(_ACROSS) + 0.5) / _ACROSS * 2 - 1
    down, right = np.meshgrid(places, places, indexing="ij")
    inside = right**2 + down**2 <= 1
    return np.stack([right[inside], down[inside]]).astype(np.float32)


def _taps() -> tuple[NDArray[np.int64], Floats]:
    """Return the four pixels of each sample, and their weights, (alterations, 4, points)."""
    positions, weights = [], []
    for way in ALTERATIONS:
        cosine, sine = math.cos(math.radians(way.turn)), math.sin(math.radians(way.turn))
        right, down = _POINTS[0] * (-1 if way.mirrored else 1), _POINTS[1]
        across = (right * cosine - down * sine) * way.zoom + way.right
        along = (right * sine + down * cosine) * way.zoom + way.down
        x, y = (np.clip((at + 1) / 2 * SIDE - 0.5, 0, SIDE - 1) for at in (across, along))
        left, top = (np.minimum(at.astype(np.int64), SIDE - 2) for at in (x, y))
        u, v = x - left, y - top
        positions.append([SIDE * (top + i) + left + j for i in (0, 1) for j in (0, 1)])
        weights.append([(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v])
    return np.array(positions, np.int64), np.array(weights, np.float32)


_POINTS = _points()
_POSITIONS, _WEIGHTS = _taps()


def _sampled(details: Floats, ways: NDArray[np.int64]) -> Floats:
    """Return the samples of images, each altered in a way of its own, float32 (n, points)."""
    flat = details.reshape(len(details), -1)
    rows = np.arange(len(flat))[:, None, None]
    return _weighted(flat[rows, _POSITIONS[ways]], _WEIGHTS[ways])


def _weighted(taps: Floats, weights: Floats) -> Floats:
    """Return the sums of four pixels with weights, float32 (n, points), of two (n, 4, points)."""
    sums = np.zeros((len(taps), taps.shape[2]), np.float32)
    for tap in range(4):  # in this order, each product rounded
        sums += taps[:, tap] * weights[:, tap]
    return sums


def _packed(samples: Floats) -> NDArray[np.uint8]:
    codes = signs(samples)
    return np.pad(codes, ((0, 0), (0, CODE_BYTES - codes.shape[1])))


def _in_steps(samples: Floats) -> NDArray[np.float64]:
    """Return samples in steps of their median, whole numbers; large ones, as of text, are cut off.

    Those of an image without details become 0, so that it agrees with nothing.
    """
    usual = np.median(np.abs(samples), axis=1, keepdims=True) + np.float32(0.5)
    cut = np.clip(samples / usual, -_LARGEST, _LARGEST)
    return np.rint(cut * np.float32(_STEPS)).astype(np.float64)


def _products(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of the products of pairs of rows, less their means, times the row's length.

    Both are whole numbers (n, points).
    """
    return a.shape[1] * np.einsum("np,np->n", a, b) - a.sum(axis=1) * b.sum(axis=1)


def _lengths(a: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lengths of rows less their means, in the unit of `_products`, and a little."""
    return np.sqrt(_products(a, a)) + 1e-3 * _STEPS * a.shape[1]
