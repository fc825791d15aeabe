import json

import pytest
from record import CURVES, EXACT, FOLDER, SCHEDULES, STEPS, curves

# How far a curve may be off at any step, as a share of what it spans. Other processors round
# differently, which flips signs near zero, and twenty steps amplify that: curves were off by up to
# 0.083, this one by 0.103 (Zen 3), and the first two, which are mostly noise in so few steps, by up
# to 0.15.
OFF = {"teacher": 0.3, "supervised": 0.3, "burn_frozen": 0.2}
# How many of the first losses rounding leaves as they are, where it is not EXACT: SwAV's codes turn
# it into other targets at once. Its second and third were off by 0.011 and 0.071 (Zen 3).
FIRST = {"swav": 1}
# SimCLR's loss does not fall in twenty steps with a binary student: noise is all that it spans.
EXACT_ALONE = {"simclr"}


# Mocov2's loss on views that take 18 seconds to draw.
SLOW = ("infomin",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=(pytest.mark.long,) if n in SLOW else ()) for n in CURVES]
)
def test_the_first_steps_are_those_recorded(name: str):
    """A refactor leaves losses and schedules unchanged.

    A wrong term, scale, order of draws or optimizer moves the first losses, where rounding moved
    none by more than 0.003 of the span. Later losses are too noisy to show a learning rate that is
    wrong by a tenth, so the schedules are compared themselves.
    """
    recorded = json.loads((FOLDER / "losses.json").read_text())[name]
    assert len(recorded) == STEPS
    span = max(recorded) - min(recorded)
    found = curves(name)
    losses = found.pop("loss")
    exact = FIRST.get(name, EXACT)
    assert losses[:exact] == pytest.approx(recorded[:exact], abs=0.01 * span)
    if name not in EXACT_ALONE:
        assert losses == pytest.approx(recorded, abs=OFF.get(name, 0.1) * span)
    schedules = json.loads((FOLDER / "schedules.json").read_text())[name]
    assert found.keys() == schedules.keys() <= set(SCHEDULES)
    for column, values in schedules.items():
        assert found[column] == pytest.approx(values, rel=1e-5), column
