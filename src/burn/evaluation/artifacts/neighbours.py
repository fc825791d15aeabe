"""A picture of a few test images and the training images nearest to them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import islice
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
from burn.data.checks import readable_images
from burn.evaluation.context import EvaluationContext

FOLDER = "neighbours"  # has one set of files for each network
ROWS, NEAREST = 12, 5
SIDE = 64  # pixels of a tile
_SEED = 0  # not the command's, so that every network is shown on the same images
_MOST_TRIED = 10 * ROWS  # test images to try if some were removed since their features were cached
_SPARE = 10  # further neighbours that replace such training images
_BANK_ROWS = 65_536  # normalised at a time: a copy of all of ImageNet's features takes gigabytes
# Position and distance of the tiles in the picture: multiples of 8 pixels, so that no block of the
# JPEG contains parts of a tile and of something else.
LEFT, TOP, STEP = 16, 24, (SIDE + 16, SIDE + 24)
_FRAME, _FONT_SIZE = 4, 12  # pixels
_PAPER, _INK, _OTHER = "#eceef1", "#20242b", "#b3401f"  # white images are visible on grey

Tile = NDArray[np.uint8]


def keep_neighbours(context: EvaluationContext, bank: Features, queries: Features) -> None:
    """Write neighbours/NETWORK.json and .jpg to `context.out`, if there is one.

    They replace only files of the same network on the same images. Images that can no longer be
    read are skipped; if no test image can be read, nothing is written and a note is added.
    """
    if context.out is None:
        return
    assert bank.labels is not None
    assert queries.labels is not None
    classes = context.class_names
    query_tiles = _readable(context.test, spread(queries, len(context.test)))
    if not query_tiles:
        context.notes.append(
            f"neighbours are not kept: the images of {context.test.name} cannot be read any more"
        )
        return
    # searchsorted needs the positions to ascend, which they do
    rows_of = np.searchsorted(queries.positions.numpy(), np.array(sorted(query_tiles)))
    rows_of = rows_of[np.argsort(queries.labels.numpy()[rows_of], kind="stable")]
    cosines, nearest = nearest_rows(bank.values, queries.values[rows_of], NEAREST + _SPARE)
    near = bank.positions[nearest]
    neighbour_tiles = tiles(context.train, near[:, :NEAREST].flatten().tolist())
    if len(neighbour_tiles) < len(near[:, :NEAREST].unique()):
        neighbour_tiles |= tiles(context.train, near[:, NEAREST:].flatten().tolist())
    rows: list[dict[str, Any]] = []
    of_each = (near, bank.labels[nearest], cosines)
    for row, *columns in zip(rows_of.tolist(), *(t.tolist() for t in of_each), strict=True):
        entries = [
            {"position": position, "label": classes[label], "cosine": round(cosine, 4)}
            for position, label, cosine in zip(*columns, strict=True)
            if position in neighbour_tiles
        ]
        position, label = int(queries.positions[row]), classes[int(queries.labels[row])]
        rows.append({"position": position, "label": label, "neighbours": entries[:NEAREST]})
    text, picture = _files(context)
    content = {
        **context.about_in(text.parent),
        "classes": list(classes),
        "side": SIDE,
        "columns": 1 + NEAREST,
        "left": LEFT,
        "top": TOP,
        "step": list(STEP),
        "picture": picture.name,
        "rows": rows,
    }
    grid = draw(rows, query_tiles, neighbour_tiles)

    def write() -> None:
        text.parent.mkdir(parents=True, exist_ok=True)
        # So that no JSON file describes another picture if the process is killed in between.
        text.unlink(missing_ok=True)
        write_beside(
            picture,
            lambda beside: grid.save(beside, "JPEG", quality=88, subsampling=0, optimize=True),
        )
        write_text(text, json.dumps(content) + "\n")

    context.keep(write)


def _files(context: EvaluationContext) -> tuple[Path, Path]:
    assert context.out is not None
    about = json.dumps(sorted(context.about_in(context.out).items()))
    digest = hashlib.sha256(about.encode(errors="surrogateescape")).hexdigest()[:6]
    name = re.sub(r"[^A-Za-z0-9_]+", "-", context.model).strip("-")[:60]
    stem = f"{name}-{digest}".lstrip("-")
    folder = context.out / FOLDER
    return folder / f"{stem}.json", folder / f"{stem}.jpg"


def spread(features: Features, num_images: int) -> list[int]:
    """Order the positions of images so that the first ones are a balanced sample of the classes.

    The classes take turns, in random order, and so do the images of each class. `num_images` counts
    those without features too, so that a missing image does not change the order of the others.
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
    """Return cosines and rows in the bank of the k features nearest to each query, or of all.

    Both are (queries, k), the nearest first.
    """
    queries = F.normalize(queries, dim=1)
    parts = [queries @ F.normalize(part, dim=1).T for part in bank.split(_BANK_ROWS)]
    nearest = torch.cat(parts, dim=1).topk(min(k, len(bank)), dim=1)
    return nearest.values, nearest.indices


def tiles(source: Source, positions: Iterable[int]) -> dict[int, Tile]:
    """Return the centre squares of the images that can be read, by position: (SIDE, SIDE, 3)."""
    images = readable_images(source, sorted(set(positions)))
    return {position: _tile(image) for position, image in images}


def _readable(source: Source, order: Sequence[int]) -> dict[int, Tile]:
    """Return tiles of the first `ROWS` images of an order that can be read."""
    shown: dict[int, Tile] = {}
    for start in range(0, min(len(order), _MOST_TRIED), ROWS):
        part = order[start : start + ROWS]
        read = tiles(source, part)
        shown |= {position: read[position] for position in part if position in read}
        if len(shown) >= ROWS:
            break
    return dict(islice(shown.items(), ROWS))


def _tile(image: Tensor) -> Tile:
    """Resize the centre square of an image, uint8 (3, height, width), to (SIDE, SIDE, 3)."""
    _, height, width = image.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = image[:, top : top + side, left : left + side].permute(1, 2, 0).contiguous().numpy()
    how = cv2.INTER_AREA if side > SIDE else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(square, (SIDE, SIDE), interpolation=how), dtype=np.uint8)


def draw(
    rows: Sequence[Mapping[str, Any]], asked: Mapping[int, Tile], shown: Mapping[int, Tile]
) -> Image.Image:
    """Draw a row for each test image and its neighbours, the nearest first.

    The tile of row r and column c begins at pixel LEFT + c · STEP[0], TOP + r · STEP[1]. The class
    is written below it, with ≠ and in colour if it is not the test image's, and the cosine, if the
    neighbour has one. The test image, in column 0, has a frame.
    """
    from matplotlib import get_data_path

    size = (LEFT + (1 + NEAREST) * STEP[0], TOP + len(rows) * STEP[1])
    picture = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(picture)
    most_alphabets = (Path(get_data_path()) / "fonts/ttf/DejaVuSans.ttf").read_bytes()
    font = ImageFont.truetype(BytesIO(most_alphabets), _FONT_SIZE)
    pen.text((LEFT, 4), "test image", _INK, font)
    pen.text((LEFT + STEP[0], 4), "training images with the most similar features", _INK, font)
    for number, row in enumerate(rows):
        line = [(asked[row["position"]], row["label"], None)]
        line += [(shown[n["position"]], n["label"], n.get("cosine")) for n in row["neighbours"]]
        for column, (pixels, label, cosine) in enumerate(line):
            left, top = LEFT + column * STEP[0], TOP + number * STEP[1]
            if column == 0:
                end = left + SIDE + _FRAME - 1, top + SIDE + _FRAME - 1
                pen.rectangle((left - _FRAME, top - _FRAME, *end), fill=_INK)
            picture.paste(Image.fromarray(pixels), (left, top))
            same = label == row["label"]
            number_text = "" if cosine is None else f" {cosine:.2f}"
            name = printable(label) if same else f"≠ {printable(label)}"
            text = _fitted(name, number_text, font, STEP[0] - 8)
            pen.text((left, top + SIDE + 3), text, _INK if same else _OTHER, font)
    return picture


def _fitted(name: str, number: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    if font.getlength(name + number) <= width:
        return name + number
    while name and font.getlength(f"{name}…{number}") > width:
        name = name[:-1]
    return f"{name}…{number}"
