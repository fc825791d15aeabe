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
    """Description of a method that is known before it is built.

    Attributes:
        name: Value of `--method`.
        target: Its class, or the text MODULE:CLASS. It is called with the backbone and, by name,
            with what it declares: `config`, `teacher`, and `num_classes`, the number of classes of
            the labels.
        config: The dataclass of its settings, or None.
        needs: What it learns from: labels or a teacher; head and classifier stand for a teacher
            that has one.
        views: Function that gives each view's augmentation from the recipe's views and the method's
            settings, or None where all views are the recipe's.
        synchronize_norms: Whether BN may take its statistics from the images of all processes.
        accumulates: Whether a batch may be cut into parts.
        caches_teacher: Function that tells whether, with these settings, the teacher's features of
            a view depend on nothing but the view.
        plugin: The plugin that registered it, or None for burn's own.
        title: Its name in tables and pictures; default: `name`.
    """

    name: str
    target: type | str
    config: type | None = None
    needs: frozenset[Need] = frozenset()
    views: Views | None = None
    synchronize_norms: bool = True
    accumulates: bool = True
    caches_teacher: Callable[[Any], bool] = lambda _: True
    plugin: Plugin | None = None
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
    """Put a method into the table of methods."""
    METHODS[entry.name] = entry


# Models of `burn compare` that are not methods: the paper's feature similarity without classifiers,
# and its whole loss with the jointly trained classifier.
MODELS = ("feature_only", "paper")


def own_methods() -> tuple[str, ...]:
    """Return the names of burn's own methods, without those of plugins."""
    return tuple(name for name, entry in METHODS.items() if entry.plugin is None)


def find_method(name: str) -> MethodEntry:
    """Return the entry of that name.

    Raises:
        UserError: There is none; the message suggests the nearest name.
    """
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(METHODS)}"
    raise UserError(f"unknown method {shortened(name)}: {hint} (--import FILE adds your own)")
