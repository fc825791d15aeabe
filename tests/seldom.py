"""Cases that repeat a kind, which `make test-long` has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], count: int) -> list[Any]:
    """The cases for `parametrize`, of which all but the first `count` are long.

    cases: values, tuples of values or `pytest.param`.
    """
    listed = list(cases)
    return [*listed[:count], *map(_long, listed[count:])]


def _long(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.long])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
