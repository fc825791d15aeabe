"""The methods by name: BURN, the baselines that the paper compares it with, and plugins' methods.

What is known of a method before it is built needs no torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from burn.core.errors import UserError, shortened
from burn.core.plugins import Plugin, resolve

Need = Literal["labels", "teacher", "head", "classifier"]
# Maps the recipe's `ViewConfig` and the method's settings to the `ViewConfig` of each view.
Views = Callable[[Any, Any], Sequence[Any]]


@dataclass(frozen=True)
class MethodEntry:
    """What is known of a method before it is built; see `register_method` for most of it.

    `caches_teacher` tells whether, with these settings, the teacher's features of a view depend on
    nothing but the view. `title` is its name in tables and pictures; default: `name`.
    """

    name: str
    target: type | str  # or MODULE:CLASS
    config: type | None = None
    needs: frozenset[Need] = frozenset()
    views: Views | None = None
    synchronize_norms: bool = True
    accumulates: bool = True
    caches_teacher: Callable[[Any], bool] = lambda _: True
    plugin: Plugin | None = None  # that registered it; None for burn's own
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.name)

    @property
    def needs_teacher(self) -> bool:
        return bool(self.needs - {"labels"})

    @property
    def needs_labels(self) -> bool:
        return "labels" in self.needs

    def load(self) -> type:
        return resolve(self.target)  # type: ignore[no-any-return]


METHODS: dict[str, MethodEntry] = {}


def add_method(entry: MethodEntry) -> None:
    METHODS[entry.name] = entry


# Models of `burn compare` that are not methods: the paper's feature similarity without classifiers,
# and its whole loss with the jointly trained classifier.
MODELS = ("feature_only", "paper")


def own_methods() -> tuple[str, ...]:
    """Return the names of burn's own methods, without those of plugins."""
    return tuple(name for name, entry in METHODS.items() if entry.plugin is None)


def find_method(name: str) -> MethodEntry:
    """Return the entry of that name, or raise UserError, which suggests the nearest name."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(METHODS)}"
    raise UserError(f"unknown method {shortened(name)}: {hint} (--import FILE adds your own)")
