"""Ranges of the settings that methods with momentum contrast have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burn.runtime.bounds import require_within

_QUEUE = (1, 2**24)
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.001, 1000),
    "queue": _QUEUE,
    "negatives": _QUEUE,
    "momentum": (0, 1),
    "hidden": (1, 2**16),
    "dimension": (1, 2**16),
    "shuffle_groups": (1, 2**10),
    "contrastive": (0, 1000),
}


def check_contrast(method: str, config: Any) -> None:
    """Raise UserError for a setting of a method with momentum contrast that is out of range."""
    for name, value in vars(config).items():
        require_within(*_RANGES[name], f"{method}.", **{name: value})
