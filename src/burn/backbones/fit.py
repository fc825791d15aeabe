"""Comparison of weights with a network by names and shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from burn.core.errors import listed

Shape = tuple[int, ...]


def problems(
    present: Mapping[str, Shape], expected: Mapping[str, Shape], unknown: Collection[str]
) -> str:
    """Describe what does not fit, at most two kinds of problems; empty where all weights fit.

    `unknown` are names of weights that the network has no place for.
    """
    # BN counters appear in newer files only and are not used.
    missing = [
        name
        for name in expected
        if name not in present and not name.endswith("num_batches_tracked")
    ]
    shapes = [
        f"{name} {present[name]} instead of {shape}"
        for name, shape in expected.items()
        if name in present and present[name] != shape
    ]
    kinds = (("lacks", missing), ("has unknown", unknown), ("has", shapes))
    named = [(words, names) for words, names in kinds if names][:2]
    most = 2 if len(named) == 1 else 1
    return "; it ".join(f"{words} {listed(list(names), most)}" for words, names in named)
