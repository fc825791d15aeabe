"""Frozen settings from JSON and YAML, where tuples are lists and dataclasses are dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

Settings = TypeVar("Settings")


def from_plain(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """The dataclass `kind` from plain values; what is not given keeps its default.

    Raises TypeError for names that `kind` does not have.
    """
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    unknown = set(values) - {field.name for field in fields(kind)}
    if unknown:
        raise TypeError(f"unknown settings {', '.join(sorted(unknown))}")
    given: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and is_dataclass(hints[name]):
            given[name] = from_plain(hints[name], value)  # type: ignore[arg-type]
        else:
            given[name] = tuple(value) if isinstance(value, list) else value
    return kind(**given)
