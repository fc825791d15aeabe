"""Reads values from JSON that may contain anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LARGEST = 1e30  # larger numbers cannot be drawn


def dig(value: Any, *names: str) -> Any:
    """Return the value at the end of a path of names, or None."""
    for name in names:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def words(value: Any, *names: str) -> str:
    """Return the text at the end of a path of names, or ""."""
    text = dig(value, *names)
    return text if isinstance(text, str) else ""


def number(value: Any, *names: str) -> float | None:
    """Return the finite number at the end of a path of names, or None."""
    return finite(dig(value, *names))


def finite(value: Any) -> float | None:
    """Return the value as a float if it is a number that can be drawn, else None."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if abs(as_float) < _LARGEST else None


def short_path(text: str) -> str:
    """Return the end of a path, enough to recognize it: cifar10/train.parquet."""
    parts = [part for part in re.split(r"[/\\]", text) if part]
    return "/".join(parts[-2:]) if len(parts) > 2 or text.startswith("/") else text


def list_of(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def count_of(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError
    return value


def is_shallow(value: Any, levels: int = 20) -> bool:
    """Return whether lists and objects are nested no deeper than in any file of burn's."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(is_shallow(item, levels - 1) for item in value)
