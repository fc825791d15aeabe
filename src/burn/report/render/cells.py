"""Tables of the page before they become HTML, and numbers as people write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DASH = "—"


@dataclass(frozen=True)
class Cell:
    """A table's cell: text, what it is sorted by, a style, a smaller line below."""

    text: str
    key: float | str | None = None
    style: str = ""
    small: str = ""


@dataclass(frozen=True)
class Table:
    """Columns are names; those in `numbers`, by position, stand at the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: frozenset[int] = frozenset()
    note: str = ""


def percent(value: float, digits: int = 1) -> str:
    """48.7"""
    return f"{value:.{digits}f}"


def signed(value: float) -> str:
    """+1.2 or −1.2, and 0.0 without a sign."""
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'+' if value > 0 else '−'}{text}"


def duration(seconds: float | None) -> str:
    """As people say it: 6.9 min."""
    if seconds is None:
        return DASH
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """The size of a file in words."""
    for unit, power in (("MB", 1e6), ("kB", 1e3)):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return f"{count:.0f} bytes"


def setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(setting(v) for v in value)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
