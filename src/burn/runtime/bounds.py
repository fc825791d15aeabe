"""Checks of the ranges of settings, before anything is built or begun."""

from __future__ import annotations

from burn.core.errors import UserError, shortened
from burn.runtime.hardware import cores


def require_within(low: float, high: float, prefix: str = "", **values: float | None) -> None:
    """Check that every given value lies in `low` … `high`.

    Args:
        low: Smallest value that is allowed.
        high: Largest value that is allowed.
        prefix: Name of the group of settings with its dot, such as `burn.`, or nothing.
        values: Values by the name of their setting; None is not checked.

    Raises:
        UserError: A value is outside, or not a number. The message names the option and the value.
    """
    for name, value in values.items():
        if value is not None and not low <= value <= high:
            option = f"--{prefix}{name}".replace("_", "-")
            shown = shortened(str(value), 40)
            raise UserError(f"{option} {shown} is not in {_plain(low)} … {_plain(high)}")


def require_processes(low: int, **values: int | None) -> None:
    """Check numbers of processes: at most four per core of this machine, or 64 if that is more.

    Args:
        low: Smallest number that is allowed.
        values: Numbers by the name of their setting; None is not checked.

    Raises:
        UserError: A number is outside. The message names the option and the value.
    """
    most = max(64, 4 * cores())
    for name, value in values.items():
        if value is not None and not low <= value <= most:
            option = f"--{name}".replace("_", "-")
            shown = shortened(str(value), 40)
            raise UserError(
                f"{option} {shown} is not in {low} … {most} processes, as this machine has "
                f"{cores()} processor cores"
            )


def _plain(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
