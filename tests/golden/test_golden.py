import json

import pytest
from record import CURVES, FOLDER, SCHEDULES, STEPS, curves

EXACT = 16  # steps in which no processor's rounding has turned a sign
# Mocov2's loss on views that take 18 seconds to draw.
SLOW = ("infomin",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=(pytest.mark.long,) if n in SLOW else ()) for n in CURVES]
)
def test_the_first_steps_are_those_recorded(name: str):
    """A refactor leaves losses and schedules unchanged.

    Six digits are recorded. Those of the first steps must agree, so that a wrong term, scale, order
    of draws, rate or optimizer is seen.
    """
    recorded = json.loads((FOLDER / "losses.json").read_text())[name]
    schedules = json.loads((FOLDER / "schedules.json").read_text())[name]
    assert len(recorded) == STEPS
    found = curves(name)
    losses = found.pop("loss")
    assert losses[:EXACT] == pytest.approx(recorded[:EXACT], rel=1e-5)
    # On an Intel Xeon (AVX-512) the last of five curves' losses differ by 0.00002 to 0.032 of
    # themselves from those of AVX2, and all before them agree in all digits.
    assert losses[EXACT:] == pytest.approx(recorded[EXACT:], rel=0.1)
    assert found.keys() == schedules.keys() <= set(SCHEDULES)
    for column, values in schedules.items():
        assert found[column] == pytest.approx(values, rel=1e-5), column
