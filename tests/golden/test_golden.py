import json

import pytest
from record import CURVES, FOLDER, SCHEDULES, STEPS, curves

# Mocov2's loss on the views that take longest to draw.
SLOW = ("infomin",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=(pytest.mark.long,) if n in SLOW else ()) for n in CURVES]
)
def test_the_first_steps_are_those_recorded(name: str):
    """A refactor leaves losses and schedules unchanged.

    Six digits are recorded. Every step's must agree, so that a wrong term, scale, order of draws,
    rate or optimizer is seen.
    """
    recorded = json.loads((FOLDER / "losses.json").read_text())[name]
    schedules = json.loads((FOLDER / "schedules.json").read_text())[name]
    assert len(recorded) == STEPS
    found = curves(name)
    assert found.pop("loss") == pytest.approx(recorded, rel=1e-5)
    assert found.keys() == schedules.keys() <= set(SCHEDULES)
    for column, values in schedules.items():
        assert found[column] == pytest.approx(values, rel=1e-5), column
