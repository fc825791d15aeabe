"""A picture of images with their predicted and true boxes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from burn.data.formats.voc import Voc
from burn.evaluation.detection.average_precision import Detections

_PICTURES = 8
_SHOWN_FROM = 0.5  # least score of a drawn box
_COLOURS = (
    "#e4572e", "#2e6fb7", "#3a9d5d", "#b5489e", "#c98a00",
    "#11808f", "#7a5cc9", "#8c5a3c", "#20242b", "#d4a5c9",
)  # fmt: skip


def draw_detections(path: Path, test: Voc, found: Mapping[int, Detections]) -> None:
    """Write a PNG with a panel for each of the first images in which something was looked for.

    True boxes are dashed in white, predicted ones in colour.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    def outline(
        panel: Any, left: float, top: float, right: float, bottom: float, **style: Any
    ) -> None:
        corner = (left - 0.5, top - 0.5)
        panel.add_patch(Rectangle(corner, right - left, bottom - top, fill=False, **style))

    shown = list(islice(found.items(), _PICTURES))
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(6.4 * columns, 5.0 * rows), squeeze=False, layout="constrained"
    )
    seen: dict[int, str] = {}
    for panel in axes.flat:
        panel.set_axis_off()
    for panel, (index, detected) in zip(axes.flat, shown, strict=False):
        panel.imshow(test.read(index).permute(1, 2, 0).numpy())
        for left, top, right, bottom in test.annotations[index].boxes:
            outline(panel, left, top, right, bottom, lw=2.2, ec="white", ls=(0, (4, 2)))
        for box, score, label in zip(detected.boxes, detected.scores, detected.labels, strict=True):
            if score < _SHOWN_FROM:
                continue
            left, top, right, bottom = box
            colour = _COLOURS[int(label) % len(_COLOURS)]
            seen[int(label)] = test.classes[label]
            outline(panel, left, top, right, bottom, lw=1.4, ec=colour)
            panel.text(
                left,
                top - 2,
                f"{test.classes[label]} {score:.2f}",
                fontsize=7,
                color="white",
                va="bottom",
                parse_math=False,
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.8},
            )
    handles = [Line2D([], [], color="#888888", ls=(0, (4, 2)), lw=2.2, label="true")] + [
        Line2D([], [], color=_COLOURS[label % len(_COLOURS)], label=f"found: {name}")
        for label, name in sorted(seen.items())
    ]
    legend = figure.legend(
        title=f"{'found' if seen else 'nothing found'} with a score of at least {_SHOWN_FROM}",
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # the name of a class may contain $
    figure.savefig(path, dpi=90, format="png")
    plt.close(figure)
