"""The part of its teacher's accuracy that a student has, above random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from burn.core.results import Result
from burn.core.seeds import OverSeeds

RANDOM = "random weights, binary"
# Those of a comparison by the names of the other results.
_NAMES = {"random weights": RANDOM, "burn": "burn_small, after 51,200 images"}


def share_table(
    default: Sequence[Result],
    clothing: Sequence[Result],
    compared: Sequence[Result],
    label_free: Sequence[Result],
) -> str:
    """Return (student - random) / (teacher - random) of each student, as a Markdown table.

    Args:
        default: Results on CIFAR-10; they lack those of `lite0`.
        clothing: Results on the photographs of clothes.
        compared: Results of `burn compare` on CIFAR-10, whose teacher is `lite0`.
        label_free: The same with a small teacher that was trained without labels.
    """
    lite0 = [r for r in compared if r.model == "teacher"]
    own = [r for r in default if r.model.startswith("teacher_small")]
    small = [r for r in label_free if r.model == "teacher"]
    weak = [replace(r, model=_NAMES.get(r.model, r.model)) for r in label_free]
    clothes = [r for r in clothing if r.model.startswith("lite0")]
    rows = (
        ("CIFAR-10", "burn_small, binary, taught by lite0", default, "lite0", lite0),
        ("CIFAR-10", "bnext_small, binary, taught by lite0", default, "lite0", lite0),
        ("CIFAR-10", "burn_small, binary, taught by teacher_small", default, "teacher_small", own),
        ("CIFAR-10", _NAMES["burn"], weak, "teacher_small --backbone.width 0.25", small),
        ("clothes", "burn, binary, taught by lite0", clothing, "lite0", clothes),
    )
    lines = ["| images | student | teacher | kNN | linear |", "|---|---|---|---|---|"]
    for images, student, results, teacher, taught in rows:
        cells = []
        for protocol in ("knn", "linear"):
            top = _accuracy(taught, None, protocol)
            low, high = (_accuracy(results, model, protocol) for model in (RANDOM, student))
            if low is None or high is None or top is None:
                cells.append("–")
            else:
                cells.append(f"{100 * (high - low) / (top - low):.0f} %")
        name = student.partition(",")[0]
        lines.append(f"| {images} | `{name}` | `{teacher}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _accuracy(results: Sequence[Result], model: str | None, protocol: str) -> float | None:
    """Return the mean top-1 accuracy over seeds of one model, or of all; None without results."""
    values = [
        r.value
        for r in results
        if r.metric == "top1" and r.protocol == protocol and model in (None, r.model)
    ]
    return OverSeeds.of(values).mean if values else None
