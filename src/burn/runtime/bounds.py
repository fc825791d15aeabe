"""Checks of the ranges of settings, before anything is built or begun."""

from __future__ import annotations

import math

from burn.core.errors import UserError, shortened
from burn.runtime.hardware import cores


def require_within(low: float, high: float, prefix: str = "", **values: float | None) -> None:
    """Raise UserError unless each value, by the name of its setting, is None or in `low` … `high`.

    `prefix` is the name of a group of settings with its dot, such as `burn.`.
    """
    for name, value in values.items():
        if value is not None and not low <= value <= high:
            option = f"--{prefix}{name}".replace("_", "-")
            shown = shortened(str(value), 40)
            raise UserError(f"{option} {shown} is not in {_plain(low)} … {_plain(high)}")


def require_processes(low: int, **values: int | None) -> None:
    """Check numbers of processes: at most four per core of this machine, or 64 if that is more."""
    most = max(64, 4 * cores())
    for name, value in values.items():
        if value is not None and not low <= value <= most:
            option = f"--{name}".replace("_", "-")
            shown = shortened(str(value), 40)
            raise UserError(
                f"{option} {shown} is not in {low} … {most} processes, as this machine has "
                f"{cores()} processor cores"
            )


def require_share(max_bad: str) -> float:
    """Return the largest share of unreadable images that `--max-bad` allows, in [0, 1]."""
    try:
        share = float(max_bad.removesuffix("%"))
    except ValueError:
        share = math.nan
    share /= 100 if max_bad.endswith("%") else 1
    if not 0 <= share <= 1:
        raise UserError(
            f"--max-bad {shortened(max_bad)} is not a share of the images: give 1% or 0.01"
        )
    return share


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
