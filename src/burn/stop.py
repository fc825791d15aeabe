"""Ctrl-C and SIGTERM in long work: stop between two steps, not inside one."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Set by the first Ctrl-C or SIGTERM; a second Ctrl-C interrupts at once.

    number: of the signal that asked, 0 before one has.
    """

    def __init__(self) -> None:
        self.number = 0

    @property
    def requested(self) -> bool:
        return self.number != 0

    def _handle(self, number: int, _frame: Any) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = self.number or number

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """While inside, signals set `number` instead of stopping the process."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            for number in _SIGNALS:
                signal.signal(number, self._handle)
        except ValueError:  # not the main thread: signals are the caller's
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
