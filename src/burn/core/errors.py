"""Errors that a user can fix or has caused, and helpers for the text of their messages."""

import os
import shlex
import signal
from collections.abc import Callable, Sequence
from typing import Any


def printable(text: str) -> str:
    """Return `text` as one line of printable characters, because names come from strangers."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)


def shortened(text: str, most: int = 60) -> str:
    """Return `text` without its middle if it is longer than `most` characters."""
    if len(text) <= most:
        return text
    end = (most - 3) // 2
    return f"{text[: most - 3 - end]} … {text[len(text) - end :]}"


_LONG_WORD, _MOST_CHARACTERS = 200, 600


def one_line(text: str) -> str:
    """Return a message as one printable line; a long one keeps its beginning and its end."""
    words = (w if len(w) <= _LONG_WORD else shortened(w, 100) for w in printable(text).split(" "))
    return shortened(" ".join(words), _MOST_CHARACTERS)


def shown(value: object, most: int = 40) -> str:
    """Return a value of any kind as one short line for a message."""
    try:
        return shortened(printable(repr(value)), most)
    except Exception:  # an integer of more than 4,300 digits, or a stranger's class
        return f"a value of type {type(value).__name__}"


def foreseen(error: BaseException) -> str | None:
    """Return the message for an error of the system or of a name, or None for any other error."""
    if isinstance(error, OSError):  # a full disk, a name too long, no permission
        parts = (error.strerror or error, error.filename)
        return ": ".join(str(part) for part in parts if part)
    if isinstance(error, UnicodeEncodeError):
        name = shortened(printable(ascii(error.object)), 90)
        return f"{name} has characters that this locale cannot name: set LC_ALL=C.UTF-8"
    return None


def listed(
    items: Sequence[Any], most: int = 3, *, each: int = 80, name: Callable[[Any], str] = str
) -> str:
    """Name the first `most` items, with at most `each` characters each, and count the others."""
    text = ", ".join(shortened(printable(name(item)), each) for item in items[:most])
    return text + (f" and {len(items) - most} more" if len(items) > most else "")


def typed(words: Sequence[str]) -> str:
    """Return a command as one line that a shell reads as these words, whatever they contain."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    """Quote a word with unprintable characters, as bash, zsh and ksh read it."""
    content = os.fsencode(word)
    plain = [chr(b) if 32 <= b < 127 and b not in b"\\'" else f"\\x{b:02x}" for b in content]
    return "$'" + "".join(plain) + "'"


class UserError(ValueError):
    """Error for input that cannot be used; its message says what it was and what to do.

    The command line prints it and exits with status 2.

    Args:
        message: The message, which becomes one line of printable characters, as `one_line` has it.
        command: A command that ends the message, and is shown as it is, not shortened.
    """

    command = ""

    def __init__(self, message: str = "", command: str = "") -> None:
        message = one_line(message) + " " * (bool(command) and message.endswith(" "))
        super().__init__(message + command)
        if command:
            self.command = command


class ReportedByMain(UserError):
    """Error that ends every process of a group at once, which the first process alone prints."""


class Interrupted(UserError):
    """Error for work that a signal stopped without loss; the exit status is 128 + signal.

    Args:
        message: What was stopped, and how to go on.
        number: The signal.
        command: As for `UserError`.
    """

    def __init__(self, message: str, number: int = signal.SIGINT, command: str = "") -> None:
        super().__init__(message, command)
        self.number = number


class GradientFlowError(UserError):
    """Error for a loss that does not train what it is meant to train."""
