"""Walk through folders by the engine's rule, with errors for the user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from burn.core.errors import UserError
from burn.core.inputs import reason
from burn_engine.folders import Listing
from burn_engine.folders import walk as engine_walk


def walk(root: Path) -> Iterator[Listing]:
    """Walk through a folder, as `burn_engine.folders.walk` does.

    What cannot be read is a UserError, and so are a link without a file extension that leads to
    nothing, and too many links to folders.
    """
    try:
        yield from engine_walk(root)
    except OSError as error:
        raise UserError(reason(Path(error.filename or root), error)) from error
    except ValueError as error:
        raise UserError(str(error)) from error
