"""Handling of Ctrl-C and other signals in long work: stop between two steps, not inside one."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from burn.core.errors import Interrupted

# A closed terminal, a limit of processor time, and what batch systems send before they kill.
_UNLESS_TAKEN = tuple(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # Windows has none of them
)


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end long work early and orderly.

    Those whose default action does not stand are left out, but for SIGINT and SIGTERM: nohup
    ignores SIGHUP, and a program that uses burn may have a handler of its own.
    """
    free = (number for number in _UNLESS_TAKEN if signal.getsignal(number) == signal.SIG_DFL)
    return (signal.SIGINT, signal.SIGTERM, *free)


_ERASE_LINE = "\r\x1b[2K"  # erases a progress bar, which is drawn again below the message


class StopRequest:
    """Request to stop, which the first Ctrl-C or other signal makes; a second Ctrl-C interrupts.

    The first Ctrl-C is answered on stderr by "ENDING; press Ctrl-C again to stop now". Of several
    processes on one job, only the first answers.
    """

    def __init__(self, ending: str = "finishing this step") -> None:
        self.number = 0  # of the signal that made the request
        self._ending = ending  # what happens after the first Ctrl-C
        self._answers: list[tuple[int, bytes]] = []  # descriptor and text, until it is written
        self._presses = 0  # times that the listening thread has seen Ctrl-C
        self._raised = 0
        self._at_once = False

    @property
    def requested(self) -> bool:
        return self.number != 0

    def _handle(self, number: int, _frame: Any) -> None:
        # Python calls the handler once for two signals that arrive before it can call it. Either
        # the thread's count tells the handler that there were two, or the thread sends one again.
        if self._at_once:
            self.number = self.number or number
            raise _interruption(number)
        if number == signal.SIGINT and (self.requested or self._presses > 1):
            if 0 < self._presses <= self._raised + 1:
                return
            self._raised += 1
            raise KeyboardInterrupt
        self.number = self.number or number
        if number == signal.SIGINT:
            self._answer()

    def _answer(self) -> None:
        """Write the answer once, by neither print nor logging: a handler may interrupt a print."""
        if self._at_once:
            return
        with contextlib.suppress(OSError, IndexError):  # IndexError: it is written already
            os.write(*self._answers.pop())

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Make signals, earlier ones too, interrupt in this context, which has no steps."""
        self._at_once = True
        try:
            if self.requested:
                raise _interruption(self.number)
            yield
        finally:
            self._at_once = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Make signals set `number` in this context instead of stopping the process."""
        before = {number: signal.getsignal(number) for number in ending_signals()}
        try:
            for number in before:
                signal.signal(number, self._handle)
        except ValueError:  # not the main thread, which alone may handle signals
            yield
            return
        _installed.append(self)
        try:
            # If the process was started to ignore Ctrl-C, its parent answers.
            answers = before[signal.SIGINT] != signal.SIG_IGN
            answers = answers and os.environ.get("RANK", "0") == "0"
            with self._answering() if answers else contextlib.nullcontext():
                yield
        finally:
            _installed.remove(self)
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Answer the first Ctrl-C in this context even while the main thread is busy.

        Python calls a handler between two of its own instructions, which may be half a minute apart
        in a backward pass; but it writes the signal's number into a pipe at once.
        """
        try:
            # The copy is needed because another file may get the number of a stream that is closed.
            descriptor = os.dup(sys.stderr.fileno())
        except (AttributeError, OSError, ValueError):  # closed, or no real stream
            yield
            return
        start, end = (_ERASE_LINE, "\r\n") if os.isatty(descriptor) else ("", "\n")
        text = f"{start}{self._ending}; press Ctrl-C again to stop now{end}"
        self._answers = [(descriptor, text.encode())]
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        _listening.add(writing)

        main_thread = threading.get_ident()

        def listen() -> None:
            numbers = b""
            sent = 0  # signals that this thread has sent and not read yet
            while _END not in numbers:
                numbers = os.read(reading, 64)
                seen = numbers.count(signal.SIGINT)
                self._presses += max(0, seen - sent)
                sent = max(0, sent - seen)
                if self._presses:
                    self._answer()
                if self._presses > self._raised + 1 and not sent:
                    sent = 1
                    signal.pthread_kill(main_thread, signal.SIGINT)

        thread = threading.Thread(target=listen, name="burn-stop", daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            _listening.discard(writing)
            os.write(writing, _END)  # closing is not enough: forked processes keep the pipe open
            thread.join()
            self._answers = []
            for file in (reading, writing, descriptor):
                os.close(file)


_installed: list[StopRequest] = []  # the requests whose handlers are installed


def raise_requested() -> None:
    """Raise what a signal has asked for, in work that may never reach the end of its step."""
    for request in _installed:
        if request.requested:
            raise _interruption(request.number)


_END = b"\0"
_listening: set[int] = set()  # descriptors that Python writes signals into


def _leave_to_parent() -> None:
    """Stop listening in a forked process, because the signals are its parent's."""
    if _listening:
        _listening.clear()
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Make signals whose handlers are Python functions wait until this context ends.

    Processes are forked in it. Around a fork libraries run functions of their own
    (`os.register_at_fork`), and a handler that raises there leaves their state half changed; that
    of filelock, which torch imports, then failed in every later fork, with a traceback. In
    forked processes, which do not leave this context, those signals do nothing.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in it alone
        yield
        return
    came: dict[int, Any] = {}  # number -> frame
    handlers: dict[int, Any] = {
        number: handler
        for number in signal.valid_signals()
        if callable(handler := signal.getsignal(number))
    }
    waiting = True

    def wait(number: int, frame: Any) -> None:
        if waiting:
            came[number] = frame
        else:  # another handler, which was installed meanwhile, calls this one, its predecessor
            handlers[number](number, frame)

    try:
        for number in handlers:
            signal.signal(number, wait)
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is wait:
                signal.signal(number, handler)
        waiting = False
        for number, frame in came.items():
            handlers[number](number, frame)


class Terminated(KeyboardInterrupt):
    """Another signal as an exception, raised where Ctrl-C would raise KeyboardInterrupt."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _interruption(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


_unseen: list[KeyboardInterrupt] = []  # raised by a handler; `interrupted` has not seen it yet


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Make Ctrl-C and other signals raise KeyboardInterrupt and Terminated in the main thread.

    This is for work that has no steps between which to stop: files are closed and finished work is
    reported. The code that a signal happens to interrupt may swallow the exception, as `except:`
    does in Python's own copyreg, so the work calls `raise_unseen` now and then. Where Python itself
    swallows it, in a finalizer or around a fork, it prints no traceback.
    """

    def handle(number: int, _frame: Any) -> None:
        _unseen[:] = [_interruption(number)]
        raise _unseen[0]

    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield
        return
    before = {number: signal.getsignal(number) for number in ending_signals()}
    report = sys.unraisablehook

    def report_others(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            report(unraisable)

    try:
        sys.unraisablehook = report_others
        for number, handler in before.items():
            # A process that runs in the background may have been started to ignore Ctrl-C.
            if number != signal.SIGINT or handler != signal.SIG_IGN:
                signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = report
        _unseen.clear()


def raise_unseen() -> None:
    """Raise the exception of a signal in `signals_raise` again if it was swallowed."""
    if _unseen:
        raise _unseen[0]


def interrupted(message: str, stopped: KeyboardInterrupt) -> Interrupted:
    """Return the error for work that a signal has ended, with its exit status."""
    _unseen.clear()
    number = stopped.number if isinstance(stopped, Terminated) else signal.SIGINT
    return Interrupted(message, number)


class StopsAreErrors:
    """Context that turns StopIteration, and what is no Exception, into RuntimeError.

    A plugin or a data set raises them by mistake: by `next` on an iterator that has ended, or by
    `sys.exit`, whose status would become that of the command. It is a class because a function
    under `contextlib.contextmanager` cannot replace StopIteration.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        stops = error is not None and not isinstance(error, Exception)
        signals = (KeyboardInterrupt, Terminated)  # not a plugin's own kind of these
        if isinstance(error, StopIteration) or (stops and type(error) not in signals):
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
