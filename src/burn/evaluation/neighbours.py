"""A few test images and the training images nearest to them, to be looked at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from burn.data.shards import ShardedImages
from burn.data.sources import Source, UnreadableImage
from burn.evaluation.subject import Subject
from burn.files import write_beside, write_text
from burn.types import Features

NAME, PICTURE = "neighbours.json", "neighbours.jpg"
ROWS, NEAREST = 12, 5
SIDE = 64  # pixels of a tile
_SEED = 0  # not the command's: every network is shown on the same images
_MOST_TRIED = 10 * ROWS  # test images, where some have vanished since their features were kept
_SPARE = 10  # neighbours in the place of such training images
_BANK_ROWS = 65_536  # normalised at a time: a copy of all of ImageNet's features is gigabytes
_PAPER = 255  # where there are fewer training images than columns

Tile = NDArray[np.uint8]


def keep_neighbours(
    subject: Subject, bank: Features, queries: Features, classes: Sequence[str]
) -> None:
    """Write neighbours.json and neighbours.jpg in `subject.out`, if there is one.

    bank, queries: plain features of the training and the test images, with labels. classes: names
    of the labels. Images that cannot be read any more are passed over; where no test image can be,
    nothing is written, which is noted.
    """
    if subject.out is None:
        return
    assert bank.labels is not None
    assert queries.labels is not None
    asked = _readable(subject.test, spread(queries, len(subject.test)))
    if not asked:
        subject.notes.append(
            f"{NAME} is not kept: the images of {subject.test.name} cannot be read any more"
        )
        return
    # positions ascend
    rows_of = np.searchsorted(queries.positions.numpy(), np.array(sorted(asked)))
    rows_of = rows_of[np.argsort(queries.labels.numpy()[rows_of], kind="stable")]
    cosines, nearest = nearest_rows(bank.values, queries.values[rows_of], NEAREST + _SPARE)
    near = bank.positions[nearest]
    shown = tiles(subject.train, near[:, :NEAREST].flatten().tolist())
    if len(shown) < len(near[:, :NEAREST].unique()):
        shown |= tiles(subject.train, near[:, NEAREST:].flatten().tolist())
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
    kept = {
        **subject.about(),
        "classes": list(classes),
        "side": SIDE,
        "columns": 1 + NEAREST,
        "picture": PICTURE,
        "rows": rows,
    }
    grid = Image.fromarray(_grid(rows, asked, shown))
    # A kill between the two leaves no text beside another's picture.
    (subject.out / NAME).unlink(missing_ok=True)
    write_beside(
        subject.out / PICTURE,
        lambda beside: grid.save(beside, "JPEG", quality=88, subsampling=0, optimize=True),
    )
    write_text(subject.out / NAME, json.dumps(kept) + "\n")


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
    return {position: _tile(image) for position, image in _images(source, sorted(set(positions)))}


def _images(source: Source, ascending: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
    if isinstance(source, ShardedImages):  # which reads forwards; one by one its parquet is slow
        for position, encoded in zip(ascending, source.encoded(ascending), strict=True):
            try:
                yield position, source.decode(position, encoded)
            except UnreadableImage:
                continue
        return
    for position in ascending:
        try:
            yield position, source.read(position)
        except UnreadableImage:
            continue


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


def _grid(
    rows: Sequence[Mapping[str, Any]], asked: Mapping[int, Tile], shown: Mapping[int, Tile]
) -> Tile:
    """uint8 (rows · SIDE, (1 + NEAREST) · SIDE, 3): an image and its neighbours a row."""
    grid = np.full((len(rows) * SIDE, (1 + NEAREST) * SIDE, 3), _PAPER, np.uint8)
    for number, row in enumerate(rows):
        line = [asked[row["position"]], *(shown[n["position"]] for n in row["neighbours"])]
        top = number * SIDE
        grid[top : top + SIDE, : len(line) * SIDE] = np.concatenate(line, axis=1)
    return grid
