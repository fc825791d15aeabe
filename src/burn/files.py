"""Paths from a user, and files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from burn.errors import UserError


def expand(spec: str) -> Path:
    """A path with ~ replaced. Raises UserError for the home of nobody."""
    try:
        return Path(spec).expanduser()
    except RuntimeError as error:
        raise UserError(f"{spec}: there is no such home folder") from error


def write_beside(path: Path, write: Callable[[Path], Any]) -> None:
    """Have `write` fill a hidden file beside `path`, then rename it to `path`.

    The hidden file ends as `path` does, for writers that go by the suffix.
    """
    temporary = path.with_name(f".writing.{path.name}")
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())  # safetensors leaves its files to their owner alone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not there, in UTF-8 but for names of files that are not."""
    write_beside(path, lambda to: to.write_text(text, encoding="utf-8", errors="surrogateescape"))
