"""The compiled core: whether it is there, and for which instruction set it runs."""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType
from typing import Any

from burn_engine.errors import shown


def find_core() -> tuple[ModuleType | None, str]:
    """Return the compiled core, or None and the reason why it is missing."""
    try:
        return importlib.import_module("burn_engine._core"), ""
    except ImportError as error:
        return None, str(error)


def chosen_core(isa: str | None) -> tuple[Any, str]:
    """Return the compiled core and its instruction set, or (None, "reference").

    Args:
        isa: As in `burn_engine.load`, with the same warning and the same error.
    """
    source = "isa"
    if isa is None:
        isa = os.environ.get("BURN_ENGINE_ISA") or None
        source = "BURN_ENGINE_ISA"
    core, reason = find_core()
    if isa is None and core is None:
        warnings.warn(
            "burn-engine runs its NumPy reference, which is slow, because the compiled core is "
            f"missing ({reason}). Install a C++ compiler and reinstall burn-engine from its "
            "sources, with pip's options --force-reinstall --no-cache-dir",
            RuntimeWarning,
            stacklevel=4,
        )
        return None, "reference"
    there_are = isas()
    if isa is not None and (not isinstance(isa, str) or isa not in there_are):
        raise ValueError(
            f"{source} {shown(isa)} is not available; choose from {', '.join(there_are)}"
        )
    if isa == "reference":
        return None, "reference"
    return core, isa or there_are[0]


def resizing_core() -> Any:
    """Return the compiled core for resizing, or None if the reference is chosen or it is missing.

    Its results are Pillow's, so nobody is told.
    """
    return None if os.environ.get("BURN_ENGINE_ISA") == "reference" else find_core()[0]


def isas() -> list[str]:
    """Return the values of `isa` that `burn_engine.load` accepts on this machine, best first."""
    core, _ = find_core()
    return [*(core.supported_isas() if core is not None else ()), "reference"]
