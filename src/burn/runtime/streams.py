"""Standard output and error that cannot fail: printing never decides what a command saves."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


class SafeStream:
    """Text stream that remembers its first failed write and drops all text after it.

    Where the reader of a pipe has left, or a disk is full, the stream's descriptor becomes the null
    device, so that neither child processes nor the interpreter's end meet the same failure again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None  # the first one

    def write(self, text: str) -> int:
        if self.failure is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._fail(error)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.failure is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
            descriptor = self._stream.fileno()
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)
            self._stream.flush()  # what is left in its buffer goes to the null device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def safe_streams() -> Iterator[SafeStream]:
    """Make sys.stdout and sys.stderr SafeStreams in this context, and yield that of stdout.

    If the process was started without one of them, what is printed there is dropped.
    """
    _fill_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may not be UTF-8
    before = sys.stdout, sys.stderr
    out, error = (SafeStream(stream or open(os.devnull, "w")) for stream in before)  # noqa: SIM115
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, error)
    try:
        yield out
    finally:
        out.flush()
        error.flush()
        sys.stdout, sys.stderr = before


def _fill_closed() -> None:
    """Open closed standard descriptors on the null device, before files get their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
