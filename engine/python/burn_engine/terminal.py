"""What the commands print, and the numbers that their options take."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterator

OUTPUT = "standard output"


@contextlib.contextmanager
def output(*, last: bool = True) -> Iterator[None]:
    """Name standard output in an error of writing to it.

    Args:
        last: Whether nothing is left to do if its reader has closed it, as `head` does. Otherwise
            this is no error, and what is printed from then on is discarded.
    """
    try:
        yield
    except BrokenPipeError:
        if last:
            raise
        discard_output()
    except OSError as error:
        if error.filename is None:
            error.filename = OUTPUT
        raise


def discard_output() -> None:
    """Discard what is still to be written, which Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> None:
    """Print an error or a warning; one that nobody can read stops nothing."""
    with contextlib.suppress(OSError):
        print("burn-engine: " + printable(message), file=sys.stderr, flush=True)


def about(error: OSError, path: str | None) -> str:
    """Return the message of an error, with its path in quotes where it would not be seen."""
    reason = error.strerror or str(error)
    if path is None:
        return reason
    return f"{path if path and path == path.strip() else repr(path)}: {reason}"


def reason(error: Exception) -> str:
    """Return why an image is left out."""
    if isinstance(error, OSError):
        return about(error, error.filename)
    return "not enough memory" if isinstance(error, MemoryError) else str(error)


def counted(number: int, thing: str = "image") -> str:
    """Return a number of things: "1 image", "2 images"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Return text as one line, with escapes for characters that a terminal obeys.

    Names in a packed file may come from anyone.
    """
    line = re.sub(r"\s*[\r\n]\s*", " ", text.strip())
    line = line if len(line) <= 2000 else line[:2000] + " …"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line
    )


@contextlib.contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print the warnings from inside in the form in which this command prints errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        complain(str(warning.message))


def at_least_1(text: str) -> int:
    return _whole(text, 10**9)


def add_base(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is learned from, and whether OUT is replaced."""
    parser.add_argument(
        "--from",
        dest="base",
        metavar="MODEL",
        default="photos",
        help="packed file, or a pretrained network's name, whose features are used (default: "
        "photos)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")


def add_readers(
    parser: argparse.ArgumentParser,
    default: int = 1,
    work: str = "read images while the network runs",
) -> None:
    """Add the option of how many threads read images, or do other work as well."""
    parser.add_argument(
        "--readers",
        metavar="N",
        type=lambda text: _whole(text, 256),
        default=default,
        help=f"1 to 256 threads that {work} (default: "
        + ("1)" if default == 1 else "one for each processor)"),
    )


def _whole(text: str, most: int) -> int:
    digits = text.isascii() and text.isdecimal() and len(text) <= 10
    if not digits or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
    return int(text)
