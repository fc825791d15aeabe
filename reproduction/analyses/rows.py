"""Results of an analysis: rows of named numbers, as they are written to its CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from burn.core.errors import UserError

Row = dict[str, Any]  # name -> number, word, or None where there is no number

_DIGITS = 20  # more characters than any number that is written has


def to_csv(rows: Sequence[Row]) -> str:
    """Return the rows as the text of a CSV file with the first row's columns.

    Numbers have six digits, and None is empty.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _written(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def from_csv(lines: Iterable[str], name: str = "the file") -> list[Row]:
    """Read the rows that `to_csv` wrote.

    Args:
        lines: Lines of the file.
        name: Name of the file for the error message.

    Raises:
        UserError: The lines are not such a file, or a row is incomplete.
    """
    try:
        rows = [{key: _read(text) for key, text in row.items()} for row in csv.DictReader(lines)]
    except csv.Error:
        rows = []
    if not rows or any(None in row or ... in row.values() for row in rows):
        raise UserError(f"{name} is damaged: remove it to measure again")
    return rows


def _written(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def _read(text: Any) -> Any:
    if not isinstance(text, str):  # the row has a column too few or too many
        return ...
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if len(text) < _DIGITS else ...
    return text or None
