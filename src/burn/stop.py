"""Ctrl-C and SIGTERM in long work: stop between two steps, not inside one."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class StopRequest:
    """Set by the first Ctrl-C or SIGTERM; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.requested = False

    def _handle(self, number: int, _frame: Any) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """While inside, signals set `requested` instead of stopping the process."""
        try:
            before = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: signals are the caller's
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
