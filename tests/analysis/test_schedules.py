import math

import pytest

from burn.analysis.schedules import POINTS, schedules
from burn.methods.burn import BurnConfig


def test_rows_are_equation_3_and_start_again_in_stage_2():
    rows = schedules(BurnConfig(lam_start=0.95, lam_end=0.6))
    assert len(rows) == 2 * (POINTS + 1)
    for row in rows:
        t = row["progress"]
        expected = 0.6 - (0.6 - 0.95) * (math.cos(math.pi * t) + 1) / 2
        assert row["cosine"] == pytest.approx(expected, abs=1e-15)
        assert row["constant"] == 0.6
        assert row["heaviside"] == (1 if t <= 0.5 else 0)
    one, two = rows[: POINTS + 1], rows[POINTS + 1 :]
    assert [{**row, "stage": 2} for row in one] == two
    assert (one[0]["progress"], one[-1]["progress"]) == (0, 1)
