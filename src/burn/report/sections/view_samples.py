"""The augmented views of a run, as `burn pretrain` drew them."""

from __future__ import annotations

from typing import Any

from burn.report.load.found import Run
from burn.report.load.images import open_picture, shrunk
from burn.report.sections.evaluation_pictures import Detail


def views_part(run: Run, detail: Detail) -> dict[str, Any] | None:
    """Return the run's picture of its views, scaled down, or None for a run without one.

    Raises:
        UserError: The picture is damaged.
    """
    if run.views is None:
        return None
    picture = open_picture(run.views, run.folder / "views.jpg")
    width = min(picture.width, detail.width)
    return {
        "image": shrunk(picture, detail.width, detail.quality),
        "width": width,
        "height": max(1, round(picture.height * width / picture.width)),
    }
