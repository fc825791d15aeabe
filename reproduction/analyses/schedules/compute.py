"""λ(t), the weight of the feature similarity, in the shapes of the paper's Table 7."""

from __future__ import annotations

from burn.core.schedule import loss_balance
from burn.methods.burn.settings import BurnConfig
from reproduction.analyses.rows import Row

POINTS = 200  # points of each stage, and one more for its end


def schedules() -> list[Row]:
    """Compute λ(t) at the points of two stages; each stage starts λ anew.

    Returns:
        A row for each point: `stage`, 1 or 2; `progress`, the share of its steps, in [0, 1];
        `cosine`, `constant` and `heaviside`, λ(t) between the paper's ends. The weight of KL is 1 -
        λ(t).
    """
    paper = BurnConfig()
    rows: list[Row] = []
    for stage in (1, 2):
        for point in range(POINTS + 1):
            t = point / POINTS
            row: Row = {"stage": stage, "progress": t}
            for shape in ("cosine", "constant", "heaviside"):
                row[shape] = loss_balance(t, shape, paper.lam_start, paper.lam_end)
            rows.append(row)
    return rows
