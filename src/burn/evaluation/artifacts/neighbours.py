"""A few test images and the training images nearest to them, to be looked at."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from burn.core.errors import printable
from burn.core.files import write_beside, write_text
from burn.core.types import Features
from burn.data.base import Source
from burn.data.readable import readable_images
from burn.evaluation.context import EvaluationContext

FOLDER = "neighbours"  # of one set of files for each network
ROWS, NEAREST = 12, 5
SIDE = 64  # pixels of a tile
_SEED = 0  # not the command's: every network is shown on the same images
_MOST_TRIED = 10 * ROWS  # test images, where some have vanished since their features were kept
_SPARE = 10  # neighbours in the place of such training images
_BANK_ROWS = 65_536  # normalised at a time: a copy of all of ImageNet's features is gigabytes
# Where tiles lie in the picture, and what is between them: multiples of 8 pixels, so that none of
# JPEG's blocks has parts of a tile and of something else.
LEFT, TOP, STEP = 16, 24, (SIDE + 16, SIDE + 24)
_FRAME, _FONT_SIZE = 4, 12  # pixels
_PAPER, _INK, _OTHER = "#eceef1", "#20242b", "#b3401f"  # white images show on grey

Tile = NDArray[np.uint8]


def keep_neighbours(
    context: EvaluationContext, bank: Features, queries: Features, classes: Sequence[str]
) -> None:
    """Write neighbours/NETWORK.json and .jpg in `context.out`, if there is one.

    A set replaces that of the same network on the same images alone. bank, queries: plain features
    of the training and the test images, with labels. classes: names of the labels. Images that
    cannot be read any more are passed over; where no test image can be, nothing is written, which
    is noted.
    """
    if context.out is None:
        return
    assert bank.labels is not None
    assert queries.labels is not None
    asked = _readable(context.test, spread(queries, len(context.test)))
    if not asked:
        context.notes.append(
            f"neighbours are not kept: the images of {context.test.name} cannot be read any more"
        )
        return
    # positions ascend
    rows_of = np.searchsorted(queries.positions.numpy(), np.array(sorted(asked)))
    rows_of = rows_of[np.argsort(queries.labels.numpy()[rows_of], kind="stable")]
    cosines, nearest = nearest_rows(bank.values, queries.values[rows_of], NEAREST + _SPARE)
    near = bank.positions[nearest]
    shown = tiles(context.train, near[:, :NEAREST].flatten().tolist())
    if len(shown) < len(near[:, :NEAREST].unique()):
        shown |= tiles(context.train, near[:, NEAREST:].flatten().tolist())
    rows: list[dict[str, Any]] = []
    for number, row in enumerate(rows_of.tolist()):
        found = [
            {"position": position, "label": classes[label], "cosine": round(cosine, 4)}
            for position, label, cosine in zip(
                near[number].tolist(),
                bank.labels[nearest[number]].tolist(),
                cosines[number].tolist(),
                strict=True,
            )
            if position in shown
        ]
        rows.append(
            {
                "position": int(queries.positions[row]),
                "label": classes[int(queries.labels[row])],
                "neighbours": found[:NEAREST],
            }
        )
    text, picture = _files(context)
    kept = {
        **context.about(),
        "classes": list(classes),
        "side": SIDE,
        "columns": 1 + NEAREST,
        "left": LEFT,
        "top": TOP,
        "step": list(STEP),
        "picture": picture.name,
        "rows": rows,
    }
    grid = draw(rows, asked, shown)

    def write() -> None:
        text.parent.mkdir(parents=True, exist_ok=True)
        # If the process is killed between the two writes, no JSON file describes another picture.
        text.unlink(missing_ok=True)
        write_beside(
            picture,
            lambda beside: grid.save(beside, "JPEG", quality=88, subsampling=0, optimize=True),
        )
        write_text(text, json.dumps(kept) + "\n")

    context.keep(write)


def _files(context: EvaluationContext) -> tuple[Path, Path]:
    """JSON and picture of a network on its images: by its name, and what tells it from others."""
    assert context.out is not None
    about = json.dumps(sorted(context.about().items()))
    digest = hashlib.sha256(about.encode(errors="surrogateescape")).hexdigest()[:6]
    name = re.sub(r"[^A-Za-z0-9_]+", "-", context.model).strip("-")[:60]
    stem = f"{name}-{digest}".lstrip("-")
    folder = context.out / FOLDER
    return folder / f"{stem}.json", folder / f"{stem}.jpg"


def spread(features: Features, num_images: int) -> list[int]:
    """Positions of all of the features' images, in an order whose beginning is a fair sample.

    The classes take turns, in an order drawn once, as is that of the images in each. num_images: of
    the source, with those that have no features: so these change no order but by their absence.
    """
    assert features.labels is not None
    random = np.random.default_rng(_SEED)
    turn = random.permutation(num_images)
    labels = np.full(num_images, -1)
    labels[features.positions.numpy()] = features.labels.numpy()
    order = turn[labels[turn] >= 0]
    class_turn = random.permutation(int(labels.max()) + 1)[labels[order]]
    by_class = np.argsort(class_turn, kind="stable")
    sizes = np.bincount(class_turn)
    round_of = np.empty(len(order), dtype=np.int64)
    round_of[by_class] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return order[np.lexsort((class_turn, round_of))].tolist()


def nearest_rows(bank: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosines and rows of the k nearest in the bank, the nearest first: (queries, k) both.

    bank (n, dimension), queries (m, dimension), few of them. k is cut to n.
    """
    queries = F.normalize(queries, dim=1)
    parts = [queries @ F.normalize(part, dim=1).T for part in bank.split(_BANK_ROWS)]
    found = torch.cat(parts, dim=1).topk(min(k, len(bank)), dim=1)
    return found.values, found.indices


def tiles(source: Source, positions: Iterable[int]) -> dict[int, Tile]:
    """uint8 (SIDE, SIDE, 3) of every image that can be read, by position: its centre square."""
    images = readable_images(source, sorted(set(positions)))
    return {position: _tile(image) for position, image in images}


def _readable(source: Source, order: Sequence[int]) -> dict[int, Tile]:
    """Tiles of the first `ROWS` images of an order that can be read."""
    found: dict[int, Tile] = {}
    for start in range(0, min(len(order), _MOST_TRIED), ROWS):
        part = order[start : start + ROWS]
        read = tiles(source, part)
        for position in part:
            if position in read and len(found) < ROWS:
                found[position] = read[position]
        if len(found) == ROWS:
            break
    return found


def _tile(image: Tensor) -> Tile:
    """uint8 (3, height, width) -> (SIDE, SIDE, 3)."""
    _, height, width = image.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[:, top : top + side, left : left + side].permute(1, 2, 0).contiguous().numpy()
    how = cv2.INTER_AREA if side > SIDE else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(square, (SIDE, SIDE), interpolation=how), dtype=np.uint8)


def draw(
    rows: Sequence[Mapping[str, Any]], asked: Mapping[int, Tile], shown: Mapping[int, Tile]
) -> Image.Image:
    """A picture with a row for each test image and its neighbours, the nearest first.

    rows: as the JSON file has them; a neighbour without `cosine` is drawn without it. asked,
    shown: tiles of test and training images by position. The tile of row r and column c begins at
    pixel LEFT + c · STEP[0], TOP + r · STEP[1]; below it stands its class, with ≠ and in colour
    where that is not the test image's, and the cosine. The test image, in column 0, has a frame.
    """
    size = (LEFT + (1 + NEAREST) * STEP[0], TOP + len(rows) * STEP[1])
    picture = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(picture)
    font = ImageFont.truetype(BytesIO(_font()), _FONT_SIZE)
    pen.text((LEFT, 4), "test image", _INK, font)
    pen.text((LEFT + STEP[0], 4), "training images with the most similar features", _INK, font)
    for number, row in enumerate(rows):
        line = [(asked[row["position"]], row["label"], None)]
        line += [(shown[n["position"]], n["label"], n.get("cosine")) for n in row["neighbours"]]
        for column, (one, label, cosine) in enumerate(line):
            left, top = LEFT + column * STEP[0], TOP + number * STEP[1]
            if column == 0:
                edges = (
                    left - _FRAME,
                    top - _FRAME,
                    left + SIDE + _FRAME - 1,
                    top + SIDE + _FRAME - 1,
                )
                pen.rectangle(edges, fill=_INK)
            picture.paste(Image.fromarray(one), (left, top))
            same = label == row["label"]
            number_text = "" if cosine is None else f" {cosine:.2f}"
            name = printable(label) if same else f"≠ {printable(label)}"
            text = _fitted(name, number_text, font, STEP[0] - 8)
            pen.text((left, top + SIDE + 3), text, _INK if same else _OTHER, font)
    return picture


def _font() -> bytes:
    """DejaVu Sans, which matplotlib brings: it has the letters of most alphabets."""
    from matplotlib import get_data_path

    return (Path(get_data_path()) / "fonts/ttf/DejaVuSans.ttf").read_bytes()


def _fitted(name: str, number: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """The name, cut where it is too long, and the number."""
    if font.getlength(name + number) <= width:
        return name + number
    while name and font.getlength(f"{name}…{number}") > width:
        name = name[:-1]
    return f"{name}…{number}"
