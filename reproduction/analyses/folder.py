"""The folder of an analysis, and the files in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from burn.core.errors import UserError
from burn.core.files import write_beside


def require_folder(folder: Path, out: Path) -> None:
    """Create a folder if it is missing, or raise UserError if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        file = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        raise UserError(f"--out {out}: {file} is not a folder: give another --out") from error
    except OSError as error:
        raise UserError(
            f"--out {out}: nothing can be written in {folder} ({error.strerror}): give another "
            "--out"
        ) from error


def save(out: Path, file: Path, write: Callable[[Path], Any]) -> None:
    """Write a file in `out` completely or not at all; raise UserError if that fails."""
    try:
        write_beside(file, write)
    except OSError as error:
        raise UserError(
            f"--out {out}: {file} cannot be written ({error.strerror or error}): fix that, and "
            "the same command continues"
        ) from error
