"""Reads files of a folder that may come from anyone: sizes are bounded, links are refused."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burn.core.errors import UserError
from burn.core.inputs import open_regular
from burn.core.results import Result, read_results
from burn.report.load.contents import Rows
from burn.report.load.values import finite, is_shallow

_MB = 1 << 20
MOST_JSON, MOST_CSV, MOST_PICTURE, MOST_TEXT = 16 * _MB, 64 * _MB, 32 * _MB, 2 * _MB


def is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def read_bytes(path: Path, most: int) -> bytes:
    """Read a regular file of at most so many bytes; UserError for anything else."""
    if path.is_symlink():
        raise UserError(f"{path} is a link: put the file itself there, or remove it")
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(
                f"{path} has {size / _MB:.0f} MB, more than {most // _MB}: too large for a page, "
                "leave its folder out"
            )
        try:
            return file.read(most)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error


def read_object(path: Path) -> Mapping[str, Any]:
    """Read a JSON file that contains an object; UserError for anything else."""
    try:
        value = json.loads(read_bytes(path, MOST_JSON))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged (not JSON): write it again, or leave its folder out"
        ) from error
    if not isinstance(value, Mapping) or not is_shallow(value):
        raise UserError(f"{path} is damaged (not a JSON object): write it again, or leave it out")
    return value


def read_result_lines(path: Path) -> list[Result]:
    """Read a file of results and check every value; UserError if a line is not a result."""
    read_bytes(path, MOST_JSON)  # check its size, and that it is no link
    try:
        results = read_results(path)
    except UserError as error:
        raise UserError(f"{error}; remove that line, or leave the folder out") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: remove it, or leave its folder out") from error
    for line, r in enumerate(results, start=1):
        texts = (r.protocol, r.metric, r.model, r.checkpoint, r.train, r.test)
        numbers = (r.value, r.seconds, 0 if r.spread is None else r.spread)
        good = (
            all(isinstance(text, str) for text in texts)
            and all(finite(value) is not None for value in numbers)
            and isinstance(r.seed, int)
            and isinstance(r.settings, Mapping)
            and is_shallow(r.settings)
            and all(
                more is None or (isinstance(more, Mapping) and is_shallow(more))
                for more in (r.data, r.training)
            )
        )
        if not good:
            raise UserError(f"{path} line {line} is not a result: remove that line")
    return results


def read_rows(path: Path, texts: tuple[str, ...]) -> Rows:
    """Read a CSV file, all columns but `texts` as numbers; lines that do not fit count as torn."""
    lines = read_bytes(path, MOST_CSV).decode(errors="replace").splitlines()
    if not lines:
        return Rows()
    rows: list[Mapping[str, Any]] = []
    torn = 0
    reader = csv.reader(lines)
    try:
        header = next(reader)
        if "step" not in header or len(set(header)) < len(header):
            raise UserError(f"{path} is damaged (no column step): remove it, or leave the run out")
        for cells in reader:
            if row := _row(header, cells, texts):
                rows.append(row)
            else:
                torn += 1
    except csv.Error:
        torn += 1
    return Rows(tuple(rows), torn)


def _row(header: list[str], cells: list[str], texts: tuple[str, ...]) -> dict[str, Any] | None:
    if len(cells) != len(header):
        return None
    row: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        if name in texts:
            row[name] = cell
        elif cell:
            try:
                value = float(cell)
            except ValueError:
                return None
            if math.isfinite(value):
                row[name] = value
    return row if 0 <= row.get("step", -1) < 1e15 and all(row.get(t) for t in texts) else None
