"""The examples in docstrings, which are run."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts)
    for path in SOURCES.rglob("*.py")
    if "    >>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_give_what_they_show(module: str):
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted
    assert not found.failed
