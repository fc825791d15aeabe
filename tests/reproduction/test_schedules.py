import math

import pytest

from reproduction.analyses.schedules.compute import POINTS, schedules


def test_rows_are_equation_3_and_start_again_in_stage_2():
    rows = schedules()
    assert len(rows) == 2 * (POINTS + 1)
    for row in rows:
        t = row["progress"]
        expected = 0.7 - (0.7 - 0.9) * (math.cos(math.pi * t) + 1) / 2
        assert row["cosine"] == pytest.approx(expected, abs=1e-15)
        assert row["constant"] == 0.7
        assert row["heaviside"] == (1 if t <= 0.5 else 0)
    one, two = rows[: POINTS + 1], rows[POINTS + 1 :]
    assert [{**row, "stage": 2} for row in one] == two
    assert (one[0]["progress"], one[-1]["progress"]) == (0, 1)
