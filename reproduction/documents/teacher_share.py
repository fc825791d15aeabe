"""The part of its teacher's accuracy that a student has, above random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burn.core.results import Result
from burn.core.seeds import OverSeeds

RANDOM = "random weights, binary"


@dataclass(frozen=True)
class _Share:
    images: str
    student: str
    teacher: str
    results: Sequence[Result]
    model: str  # the student's name in the results
    taught_by: Sequence[Result]
    random: str = RANDOM


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
    others = [r for r in default if r.model.startswith("teacher_small")]
    narrow = [r for r in label_free if r.model == "teacher"]
    clothes = [r for r in clothing if r.model.startswith("lite0")]
    ours = "burn_small, binary, taught by "
    bnext, narrow_name = (
        "bnext_small, binary, taught by lite0",
        "teacher_small --backbone.width 0.25",
    )
    shares = (
        _Share("CIFAR-10", "burn_small", "lite0", default, f"{ours}lite0", lite0),
        _Share("CIFAR-10", "bnext_small", "lite0", default, bnext, lite0),
        _Share("CIFAR-10", "burn_small", "teacher_small", default, f"{ours}teacher_small", others),
        _Share("CIFAR-10", "burn_small", narrow_name, label_free, "burn", narrow, "random weights"),
        _Share("clothes", "burn", "lite0", clothing, "burn, binary, taught by lite0", clothes),
    )
    lines = ["| images | student | teacher | kNN | linear |", "|---|---|---|---|---|"]
    for share in shares:
        cells = []
        for protocol in ("knn", "linear"):
            top = _accuracy(share.taught_by, None, protocol)
            low, high = (
                _accuracy(share.results, model, protocol) for model in (share.random, share.model)
            )
            if low is None or high is None or top is None:
                cells.append("–")
            else:
                cells.append(f"{100 * (high - low) / (top - low):.0f} %")
        lines.append(
            f"| {share.images} | `{share.student}` | `{share.teacher}` | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def _accuracy(results: Sequence[Result], model: str | None, protocol: str) -> float | None:
    """Return the mean top-1 accuracy over seeds of one model, or of all; None without results."""
    values = [
        r.value
        for r in results
        if r.metric == "top1" and r.protocol == protocol and model in (None, r.model)
    ]
    return OverSeeds.of(values).mean if values else None
