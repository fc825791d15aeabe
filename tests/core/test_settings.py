"""Settings from JSON, YAML and Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from burn.core.errors import UserError
from burn.core.settings import from_plain


@dataclass(frozen=True)
class Rates:
    first: float = 0.0
    drops: tuple[float, ...] = ()
    pair: tuple[int, float] = (0, 0.0)
    chosen: float | Literal["auto"] = "auto"
    own: tuple[float, ...] | None = None


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("first", 1, 1.0),
        ("drops", [1, 0.5, np.int64(2)], (1.0, 0.5, 2.0)),
        ("pair", (1, 2), (1, 2.0)),
        ("chosen", 1, 1.0),
        ("chosen", "auto", "auto"),
        ("own", [3], (3.0,)),
        ("own", [np.float64(0.5)], (0.5,)),
        ("own", None, None),
    ],
)
def test_a_whole_number_is_a_float_wherever_one_is_expected(name: str, given: Any, value: Any):
    """A run that is resumed compares the JSON of its settings, in which 1 is not 1.0."""
    assert repr(getattr(from_plain(Rates, {name: given}), name)) == repr(value)


@pytest.mark.parametrize(
    ("name", "given"),
    [("drops", (1, "x")), ("drops", (True,)), ("pair", (1,)), ("pair", (0.5, 1)), ("own", 3)],
)
def test_what_does_not_fit_is_named(name: str, given: Any):
    with pytest.raises(UserError, match=f"{name}: expected "):
        from_plain(Rates, {name: given})
