"""The error that is raised for a packed file that cannot be used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


class ModelError(ValueError):
    """A packed file that cannot be used; the message says what is wrong and where."""


@contextlib.contextmanager
def in_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Prefix the message of every ModelError that is raised inside with the file's path."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from None
