"""Pictures that an evaluation leaves: nearest neighbours and detections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burn.core.errors import UserError
from burn.report.load.found import Detected, Neighbours
from burn.report.load.images import jpeg, open_picture, shrunk, tile
from burn.report.load.values import short_path

_SHOWN = 48  # pixels of a neighbour's tile at least


@dataclass(frozen=True)
class Detail:
    """How much room pictures and curves may take.

    curves: runs whose curves are shown. networks: whose neighbours are. rows: of neighbours.
    width: pixels of a picture. quality: of JPEGs.
    """

    curves: int
    networks: int
    rows: int
    width: int
    quality: int


def neighbours_part(found: Neighbours, detail: Detail) -> dict[str, Any]:
    """What the page shows of a network's neighbours: tiles as data URLs, labels and cosines.

    Raises UserError where the picture cannot be read or is smaller than its grid.
    """
    picture = open_picture(found.picture, found.file.with_suffix(".jpg"))
    columns = max((len(row) for row in found.rows), default=1)
    width, height = found.grid.end(len(found.rows), columns)
    if picture.width < width or picture.height < height:
        raise UserError(
            f"{found.file} names more images than its picture holds: evaluate again, or remove both"
        )
    shown = found.rows[: detail.rows]
    rows = [
        [
            {
                "image": jpeg(tile(picture, r, c, found.grid), detail.quality),
                "label": one.label,
                "cosine": "" if one.cosine is None else f"{one.cosine:.2f}",
                "other": c > 0 and one.label != row[0].label,
            }
            for c, one in enumerate(row)
        ]
        for r, row in enumerate(shown)
    ]
    note = ""
    if len(shown) < len(found.rows):
        note = f"The first {len(shown)} of {len(found.rows)} test images."
    names = [found.model, f"among {short_path(found.train)}" if found.train else ""]
    title = ", ".join(name for name in names if name) or found.file.stem
    return {
        "title": title, "columns": columns, "side": max(found.grid.side, _SHOWN), "rows": rows,
        "note": note,
    }  # fmt: skip


def detected_part(found: Detected, detail: Detail) -> dict[str, Any]:
    """What the page shows of a detector: its picture as a data URL and its width in pixels.

    Raises UserError where the picture cannot be read.
    """
    picture = open_picture(found.picture, found.folder / "detections.png")
    width = min(picture.width, detail.width)
    return {
        "title": short_path(str(found.folder)),
        "image": shrunk(picture, detail.width, detail.quality),
        "width": width,
        "height": max(1, round(picture.height * width / picture.width)),
    }
