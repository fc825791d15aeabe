"""The built-in images with boxes: scenes of handwritten digits, in the layout of Pascal VOC."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from burn.core.errors import UserError
from burn.data.base import Split
from burn.data.builtin.digits import Digits

_NAME = "digit-scenes-v1"  # increase the number when the pixels change
_COUNTS = {"train": 160, "val": 40, "test": 80}
_HEIGHT, _WIDTH = 128, 160
_HEIGHTS = (20, 56)  # of a digit, in pixels
_SMALL_HEIGHTS = (9, 13)  # of a small digit, which is marked difficult
_OVERLAP = 0.12  # greatest overlap of two boxes, as a share of the smaller one
_CONTRAST = 85  # least contrast of a digit with the mean of what it covers, in grey levels of 255


@dataclass(frozen=True)
class _Digit:
    """A digit of a scene; its box is in pixels, half-open."""

    name: str
    left: int
    top: int
    right: int
    bottom: int
    truncated: bool
    difficult: bool


def digit_scenes() -> Path:
    """Return the folder of the scenes, which is written on first use.

    It lies below $XDG_CACHE_HOME (or ~/.cache), or, if that cannot be written, in a private folder
    among the temporary files.
    """
    places = [place for place in (_cache(), _temporary()) if place is not None]
    for place in places:
        if _is_complete(place / _NAME):
            return place / _NAME
    for place in places:
        try:
            return _publish(place)
        except OSError:
            continue
    raise UserError("no folder to write digit-scenes to: set XDG_CACHE_HOME to one")


def write_digit_scenes(folder: Path) -> None:
    """Write 160 scenes for train, 40 for val and 80 for test into a folder, always the same.

    The scenes for test show only digits of the test split of `Digits`.
    """
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    drawn = {"train": _draw("train", 200), "test": _draw("test", 80)}
    ids: dict[str, list[str]] = {}
    for split, count in _COUNTS.items():
        ids[split] = []
        for _ in range(count):
            pixels, digits = next(drawn["test" if split == "test" else "train"])
            name = f"{sum(map(len, ids.values())):06d}"
            Image.fromarray(pixels).save(folder / "JPEGImages" / f"{name}.png", compress_level=3)
            (folder / "Annotations" / f"{name}.xml").write_bytes(_annotation(name, digits))
            ids[split].append(name)
    ids["trainval"] = ids["train"] + ids["val"]
    for split, names in ids.items():
        text = "".join(f"{name}\n" for name in names)
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text(text)


# --- Storage. ---


def _cache() -> Path | None:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():  # the specification ignores any other
        return given / "burn"
    try:
        return Path.home() / ".cache" / "burn"
    except RuntimeError:
        return None


def _temporary() -> Path | None:
    """Return a temporary folder that no other user can write to, or None if there is none."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    place = Path(tempfile.gettempdir(), f"burn-{user}")
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        status = place.lstat()
    except OSError:
        return None
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) if hasattr(os, "getuid") else 0
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == user and not others
    return place if is_ours else None


def _is_complete(folder: Path) -> bool:
    """Return whether the folder holds all files; a cleaner of old files may have removed some."""
    total = sum(_COUNTS.values())
    numbers = {"Annotations": total, "JPEGImages": total, "ImageSets/Main": len(_COUNTS) + 1}
    try:
        return all(len([*(folder / name).iterdir()]) == number for name, number in numbers.items())
    except OSError:
        return False


def _publish(place: Path) -> Path:
    """Write the scenes beside their folder, then rename it.

    A folder of the final name is complete even if several processes write at once.
    """
    place.mkdir(parents=True, exist_ok=True)
    final, beside = place / _NAME, Path(tempfile.mkdtemp(prefix=f".{_NAME}-", dir=place))
    try:
        write_digit_scenes(beside / "new")
        if final.exists() and not _is_complete(final):
            final.rename(beside / "old")
        try:
            (beside / "new").rename(final)
        except OSError:
            if not _is_complete(final):  # otherwise another process was first
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return final


# --- Drawing. ---


def _draw(split: Split, count: int) -> Iterator[tuple[np.ndarray, list[_Digit]]]:
    """Yield scenes, uint8 (height, width, 3), with their digits; no digit is drawn twice."""
    digits = Digits(split)
    assert digits.labels is not None
    seed = 0 if split == "train" else 1
    order = np.random.default_rng(seed).permutation(len(digits))
    used = 0
    for index in range(count):
        random = np.random.default_rng((seed, index))
        pixels = _background(random)
        placed: list[_Digit] = []
        for _ in range(random.integers(1, 6)):
            chosen = int(order[used])
            used += 1
            ink = digits.read(chosen)[0].numpy()
            _place(random, pixels, placed, ink, digits.classes[digits.labels[chosen]])
        noise = random.integers(-4, 5, (_HEIGHT, _WIDTH, 1))
        yield (pixels + noise).clip(0, 255).astype(np.uint8), placed


def _background(random: np.random.Generator) -> np.ndarray:
    """Draw a background: a gradient with clouds or stripes and a few shapes, int64 (h, w, 3)."""
    rows, columns = np.mgrid[:_HEIGHT, :_WIDTH]
    angle = random.uniform(0, 2 * np.pi)
    position = np.cos(angle) * columns / _WIDTH + np.sin(angle) * rows / _HEIGHT
    position = (position - position.min()) / (position.max() - position.min())
    first, second = random.integers(30, 226, (2, 3))
    pixels = first + position[..., None] * (second - first)
    if random.random() < 0.5:
        coarse = random.integers(0, 256, (random.integers(4, 12), random.integers(4, 12)))
        clouds = Image.fromarray(coarse.astype(np.uint8)).resize(
            (_WIDTH, _HEIGHT), Image.Resampling.BICUBIC
        )
        texture = np.asarray(clouds) / 255 - 0.5
    else:
        angle, period = random.uniform(0, np.pi), random.uniform(6, 24)
        phase = (np.cos(angle) * columns + np.sin(angle) * rows) / period
        texture = np.sin(2 * np.pi * phase) / 2
    pixels += texture[..., None] * random.integers(20, 61)
    canvas = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(canvas)
    for _ in range(random.integers(0, 5)):  # distractors
        x, y = int(random.integers(0, _WIDTH)), int(random.integers(0, _HEIGHT))
        w, h = (int(side) for side in random.integers(8, 60, 2))
        r, g, b = (int(value) for value in random.integers(0, 256, 3))
        match random.integers(0, 3):
            case 0:
                draw.rectangle((x, y, x + w, y + h), fill=(r, g, b))
            case 1:
                draw.polygon([(x, y), (x + w, y + h // 2), (x + w // 3, y + h)], fill=(r, g, b))
            case _:
                draw.line((x, y, x + w, y + h - 30), fill=(r, g, b), width=3)
    return np.asarray(canvas).astype(np.int64)


def _place(
    random: np.random.Generator,
    pixels: np.ndarray,
    placed: list[_Digit],
    ink: np.ndarray,
    name: str,
) -> None:
    """Draw one digit where it hardly covers the others, or none if no such place is found."""
    kind = random.choice(["whole", "cut", "small", "covered"], p=[0.8, 0.08, 0.05, 0.07])
    low, high = _SMALL_HEIGHTS if kind == "small" else _HEIGHTS
    alpha = _stroke(ink, int(random.integers(low, high + 1)), random.uniform(0.85, 1.3))
    height, width = alpha.shape
    for _ in range(40):
        left = int(random.integers(0, _WIDTH - width + 1))
        top = int(random.integers(0, _HEIGHT - height + 1))
        if kind == "cut":  # the left or right edge of the scene cuts off a quarter at most
            missing = int(random.integers(1, max(2, width // 4 + 1)))
            left = -missing if random.random() < 0.5 else _WIDTH - width + missing
        right, bottom = left + width, top + height
        digit = _Digit(
            name,
            max(left, 0),
            top,
            min(right, _WIDTH),
            bottom,
            truncated=kind == "cut",
            difficult=kind in ("small", "covered"),
        )
        if all(_overlap(digit, other) <= _OVERLAP for other in placed):
            break
    else:
        return
    seen = alpha[:, digit.left - left : digit.right - left, None]
    area = pixels[digit.top : digit.bottom, digit.left : digit.right]
    colour = _colour(random, area.mean(axis=(0, 1)))
    before = area.copy()
    area[:] = (seen * colour + (255 - seen) * area + 127) // 255
    if kind == "covered":  # a band of blurred background with a border covers three fifths
        band = round(0.6 * height)
        start = int(random.integers(0, height - band + 1))
        area[start : start + band] = (before[start : start + band] + 3 * before.mean((0, 1))) // 4
        area[[start, start + band - 1]] = colour // 2
    placed.append(digit)


def _stroke(ink: np.ndarray, height: int, stretch: float) -> np.ndarray:
    """Return a digit's opacity in 0 … 255, int64, cropped to its ink and resized to `height`."""
    rows, columns = np.nonzero(ink > 128)
    tight = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    width = max(4, round(height * tight.shape[1] / tight.shape[0] * stretch))
    large = Image.fromarray(tight).resize((width, height), Image.Resampling.BICUBIC)
    # An enlarged 8×8 digit is blurred: make its edges steeper and its holes open.
    return ((np.asarray(large).astype(np.int64) - 104) * 5 // 2).clip(0, 255)


def _colour(random: np.random.Generator, background: np.ndarray) -> np.ndarray:
    """Draw a colour, int64 (3,), whose brightness differs enough from the mean background."""
    weights = np.array([0.299, 0.587, 0.114])
    while True:
        colour = random.integers(0, 256, 3)
        if abs((colour - background) @ weights) >= _CONTRAST:
            return colour


def _overlap(a: _Digit, b: _Digit) -> float:
    """Return the area of the intersection divided by that of the smaller box."""
    width = min(a.right, b.right) - max(a.left, b.left)
    height = min(a.bottom, b.bottom) - max(a.top, b.top)
    areas = [(box.right - box.left) * (box.bottom - box.top) for box in (a, b)]
    return max(width, 0) * max(height, 0) / min(areas)


def _annotation(name: str, digits: list[_Digit]) -> bytes:
    root = ET.Element("annotation")

    def fill(parent: ET.Element, **texts: object) -> None:
        for tag, text in texts.items():
            ET.SubElement(parent, tag).text = str(text)

    fill(root, folder="digit-scenes", filename=f"{name}.png")
    fill(ET.SubElement(root, "size"), width=_WIDTH, height=_HEIGHT, depth=3)
    for digit in digits:
        element = ET.SubElement(root, "object")
        fill(element, name=digit.name)
        fill(element, truncated=int(digit.truncated), difficult=int(digit.difficult))
        box = ET.SubElement(element, "bndbox")
        fill(box, xmin=digit.left + 1, ymin=digit.top + 1, xmax=digit.right, ymax=digit.bottom)
    ET.indent(root)
    return ET.tostring(root)
