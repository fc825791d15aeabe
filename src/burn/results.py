"""results.jsonl: one number a line. Nothing here needs torch, so that reports do not either."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from burn.errors import UserError


@dataclass(frozen=True)
class Result:
    """One number: a line of `results.jsonl`.

    value is in percent; spread its standard deviation over samples, where it is a mean of some.
    Protocol pack alone has other units, which its metrics name: bytes and float32_bytes,
    milliseconds (of an image), cosine (-1 to 1). train and test are "" where there are none.
    """

    protocol: str
    metric: str
    value: float
    model: str
    checkpoint: str
    train: str
    test: str
    seed: int
    seconds: float
    settings: Mapping[str, Any]
    spread: float | None = None


def result_lines(results: Sequence[Result]) -> str:
    """A line of JSON each, as files of results hold them."""
    return "".join(json.dumps(asdict(result)) + "\n" for result in results)


def append_results(path: Path, results: Sequence[Result]) -> None:
    """Add a line for each result, after a last line that was cut short if need be.

    With no results it only makes sure that there can be such a file. Raises UserError where it
    cannot be written.
    """
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"{path.parent} is a file: give a folder")
    lines = result_lines(results)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read(1) == b"\n" or not lines else "\n" + lines
            file.write(lines.encode())
            empty = not file.tell()
        if empty:
            path.unlink()
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def read_results(path: Path) -> list[Result]:
    """All results of a file, in order. Raises UserError for a line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(Result(**json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{path} line {number} is not a result: {error}") from error
    return results
