"""The pictures that runs and evaluations leave: views, nearest neighbours and detections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burn.core.errors import UserError
from burn.report.load.contents import Neighbours
from burn.report.load.images import jpeg, open_picture, shrunk, tile
from burn.report.load.values import short_path
from burn.report.render.cells import filled, joined

_SHOWN = 48  # smallest side of a neighbour's tile in pixels


@dataclass(frozen=True)
class Detail:
    """The amount of pictures and curves on the page."""

    curves: int  # runs whose curves are shown
    networks: int  # networks whose neighbours are shown
    rows: int  # of neighbours
    width: int  # largest width of a picture in pixels
    quality: int  # of JPEGs


def neighbours_part(neighbours: Neighbours, detail: Detail) -> dict[str, Any]:
    """Return a network's neighbours for the page: tiles as data URLs, labels and cosines."""
    picture = open_picture(neighbours.picture, neighbours.file.with_suffix(".jpg"))
    columns = max((len(row) for row in neighbours.rows), default=1)
    width, height = neighbours.grid.end(len(neighbours.rows), columns)
    if picture.width < width or picture.height < height:
        raise UserError(
            f"{neighbours.file} names more images than its picture holds: evaluate again, or "
            "remove both"
        )
    shown = neighbours.rows[: detail.rows]
    rows = [
        [
            {
                "image": jpeg(tile(picture, r, c, neighbours.grid), detail.quality),
                "label": neighbour.label,
                "cosine": "" if neighbour.cosine is None else f"{neighbour.cosine:.2f}",
                "other": c > 0 and neighbour.label != row[0].label,
            }
            for c, neighbour in enumerate(row)
        ]
        for r, row in enumerate(shown)
    ]
    note = ""
    if len(shown) < len(neighbours.rows):
        note = f"The first {len(shown)} of {len(neighbours.rows)} test images."
    among = filled("among {}", short_path(neighbours.train))
    title = joined(neighbours.model, among) or neighbours.file.stem
    return {
        "title": title,
        "columns": columns,
        "side": max(neighbours.grid.side, _SHOWN),
        "rows": rows,
        "note": note,
    }


def picture_part(data: bytes, file: Path, detail: Detail) -> dict[str, Any]:
    """Return the picture of a file as a data URL, scaled down, with its size in pixels."""
    picture = shrunk(open_picture(data, file), detail.width)
    return {
        "image": jpeg(picture, detail.quality),
        "width": picture.width,
        "height": picture.height,
    }
