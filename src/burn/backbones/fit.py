"""Whether weights fit a network, by their names and shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from burn.core.errors import printable

Shape = tuple[int, ...]


def problems(
    found: Mapping[str, Shape], expected: Mapping[str, Shape], unknown: Collection[str]
) -> str:
    """What does not fit, the first two things of it; empty where all does.

    Args:
        found: Shapes of the weights by name.
        expected: Shapes in the network by name.
        unknown: Names of what the network has no place for.
    """
    # BN counters appear in newer files only and are not used.
    missing = [
        name for name in expected if name not in found and not name.endswith("num_batches_tracked")
    ]
    shapes = [
        f"{name} {found[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    kinds = (("lacks", missing), ("has unknown", unknown), ("has", shapes))
    named = [(words, names) for words, names in kinds if names][:2]
    most = 2 if len(named) == 1 else 1
    return "; it ".join(f"{words} {few(names, most)}" for words, names in named)


def few(names: Collection[Any], most: int = 3) -> str:
    """The first names and the number of the others, in one line whatever they hold."""
    shown = [printable(str(name)[:60]) for name in list(names)[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")
