"""Tables of the page before they become HTML, and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DASH = "—"


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    key: float | str | None = None  # by which it is sorted
    style: str = ""  # CSS class
    small: str = ""  # a second line in small print


@dataclass(frozen=True)
class Table:
    """A table."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: frozenset[int] = frozenset()  # positions of the columns that are aligned right
    note: str = ""  # below the table


def cell(value: float | None, text: str = "{:.1f}", style: str = "", small: str = "") -> Cell:
    """Return the cell of a number, or a dash where there is none; `text` is its format."""
    return Cell(DASH if value is None else text.format(value), value, style, small)


def percent(value: float) -> str:
    return f"{value:.1f}"


def signed(value: float) -> str:
    """Return +1.2 or −1.2, and 0.0 without a sign."""
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'+' if value > 0 else '−'}{text}"


def filled(text: str, value: float | str | None) -> str:
    """Return a text with a value in it, or "" where there is none."""
    return "" if value in (None, "") else text.format(value)


def joined(*parts: str, by: str = ", ") -> str:
    return by.join(filter(None, parts))


def duration(seconds: float | None) -> str:
    """Return a time in readable units, such as 6.9 min."""
    if seconds is None:
        return DASH
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """Return the size of a file in readable units, such as 1.2 MB."""
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
