from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from burn.backbones.entries import BACKBONES
from burn.core import plugins
from burn.evaluation.entries import PROTOCOLS
from burn.methods.entries import METHODS
from burn.recipes.registry import RECIPES

Forget = Callable[[], None]


@pytest.fixture(autouse=True)
def forget() -> Iterator[Forget]:
    """A function that forgets what the test registered and imported, which also happens after it.

    What runs then is what a new process that imports nothing would do.
    """
    tables: list[dict] = [
        METHODS, BACKBONES, PROTOCOLS, RECIPES, plugins._loaded, plugins._installed
    ]  # fmt: skip
    before = [dict(table) for table in tables]
    modules, paths = set(sys.modules), list(sys.path)

    def undo() -> None:
        for table, held in zip(tables, before, strict=True):
            table.clear()
            table.update(held)
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if not file or "/examples/" in file or "pytest-of" in file:
                del sys.modules[name]
        sys.path[:] = paths

    yield undo
    undo()
