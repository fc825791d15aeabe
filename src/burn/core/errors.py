"""The errors that the user can fix, or the user's own doing, and the words in their messages."""

import signal
from collections.abc import Callable, Sequence
from typing import Any


def printable(text: str) -> str:
    """In one line and without what would command a terminal: names come from strangers."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def shortened(text: str, most: int = 60) -> str:
    """`text` without its middle where it is longer than `most` characters: both ends tell most."""
    if len(text) <= most:
        return text
    end = (most - 3) // 2
    return f"{text[: most - 3 - end]} … {text[len(text) - end :]}"


def listed(
    items: Sequence[Any], most: int = 3, *, each: int = 80, name: Callable[[Any], str] = str
) -> str:
    """Names of the first `most` items, of `each` characters at most, and the number of others."""
    shown = ", ".join(shortened(printable(name(item)), each) for item in items[:most])
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")


class UserError(ValueError):
    """Something the user gave cannot be used; the message says what it was and what to do.

    The command line prints it as one line and exits with status 2.
    """


class ReportedByMain(UserError):
    """What ends every process of a group at once; the first of them says it, this one does not."""


class Interrupted(UserError):
    """A signal stopped the work, and nothing is lost; the command line exits with 128 + signal."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number


class GradientFlowError(UserError):
    """The loss does not train what it is meant to train."""
