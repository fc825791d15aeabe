"""The error that is raised for a packed file that cannot be used, and checks of paths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


class ModelError(ValueError):
    """A packed file that cannot be used; the message says what is wrong and where."""


@contextlib.contextmanager
def in_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Prefix the message of every ModelError that is raised inside with the file's path."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from None


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in an OSError that is raised inside; one of a read has no name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def path_of(value: object) -> Path:
    """Return the path of a file; errors as those of `file_name_of`."""
    return Path(file_name_of(value))


def file_name_of(value: object) -> str:
    """Return the path of a file as text, as it was given: several times as fast as a Path.

    Raises:
        TypeError: It is neither a str nor a Path.
        ValueError: No file can have this name.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{shown(value)} is not a path: give a str or a Path")
    name = os.fsdecode(value)
    if not name:
        raise ValueError("the path is empty: give a file")
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise ValueError(f"{shown(name)} cannot be the name of a file")
    return name


def shown(value: object) -> str:
    """Return a value of any kind as one short line for a message."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an integer of more than 4,300 digits, or a stranger's class
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:40]} … {text[-16:]}"
