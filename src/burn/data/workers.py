"""Processes that load images: their start, their end, and what is said where they fail."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None

import cv2
from torch.utils.data import DataLoader, Dataset

from burn.core.errors import UserError

_PR_SET_PDEATHSIG = 1
_FILES = 64  # open files of a process without workers, and some to spare
_FILES_OF_WORKER = 24  # its queues, and the tensors of the two batches that it is ahead


class QuietLoader(DataLoader[Any]):
    """A DataLoader that reports a failed worker in one line and accepts any number of workers.

    Iterating raises UserError where the limit of open files is too low for the workers, where one
    of them dies, and where their memory or files do not suffice.

    Workers are forked, also in a process that was itself spawned, as a campaign's are: transforms
    are functions within functions, which cannot be handed over otherwise.
    """

    def __init__(self, dataset: Dataset[Any], *, num_workers: int, **options: Any) -> None:
        context = "fork" if num_workers else None
        super().__init__(
            dataset, num_workers=num_workers, multiprocessing_context=context, **options
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not self.num_workers:
            yield from super().__iter__()
            return
        _require_files(self.num_workers)
        with _failures_of_workers(self.num_workers):
            batches = super().__iter__()
        _tell_deaths_as_errors(self.num_workers)
        while True:
            with _failures_of_workers(self.num_workers):
                batch = next(batches, self)
            if batch is self:
                return
            yield batch

    def check_worker_number_rationality(self) -> None:
        """Accept any number: the user asked for it, and torch warns of more workers than cores."""


def _require_files(workers: int) -> None:
    """Have the limit of open files suffice for so many workers.

    A worker has queues of its own, and every tensor that waits in one is an open file here and
    there. Where files run out, workers lose their batches, and who waits for these waits forever.
    """
    if resource is None:
        return
    needed = _FILES + _FILES_OF_WORKER * workers
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return
    if most != resource.RLIM_INFINITY and most < needed:
        raise UserError(
            f"{workers} data-loader workers need {needed} open files, but the limit is {most}: "
            "raise it (ulimit -n), or give fewer --workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def _died(reason: str) -> UserError:
    """The error of a worker that is gone; `reason` is torch's."""
    if "Bus error" in reason:
        why = "shared memory is full (/dev/shm)"
    elif "Killed" in reason:
        why = "memory ran out, perhaps"
    else:
        why = reason.partition("\n")[0]
    return UserError(f"an image-loading process was ended: {why}; give fewer --workers")


@contextlib.contextmanager
def _failures_of_workers(workers: int) -> Iterator[None]:
    """What torch raises where a worker died or found no memory or no files, as a UserError."""
    try:
        yield
    except UserError as error:
        if "in DataLoader worker process" not in str(error):
            raise
        raise UserError(str(error).strip().rpartition("UserError: ")[2]) from None
    except MemoryError as error:
        raise UserError(
            f"{workers} data-loader workers run out of memory: give fewer --workers"
        ) from error
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
            raise
        raise UserError(
            f"{workers} data-loader workers cannot be run: {error.strerror}; give fewer --workers"
        ) from error
    except RuntimeError as error:
        reason = str(error)
        if reason.startswith("DataLoader worker"):
            raise _died(reason) from error
        if "Too many open files" in reason or "unable to open shared memory" in reason:
            raise UserError(
                f"{workers} data-loader workers need more open files: raise the limit "
                "(ulimit -n), or give fewer --workers"
            ) from error
        raise


_handlers: list[Any] = []  # of SIGCHLD, ours


def _tell_deaths_as_errors(workers: int) -> None:
    """Have torch's handler of SIGCHLD raise a UserError, wherever the main thread is by then.

    Torch notices a worker's death in that handler first, in the middle of a training step, say.
    """
    torchs = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    if threading.current_thread() is not threading.main_thread() or not callable(torchs):
        return
    if torchs in _handlers:
        return

    def handler(number: int, frame: Any) -> None:
        with _failures_of_workers(workers):
            torchs(number, frame)

    _handlers.append(handler)
    signal.signal(signal.SIGCHLD, handler)


def start_worker(_worker: int) -> None:
    """For every process that loads images."""
    cv2.setNumThreads(0)
    _end_with_parent()
    # Signals to the whole group are the main process's to answer: it still needs its batches. A
    # second SIGTERM is the main process's own, for a worker that does not end by itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    sys.excepthook = _say_unless_left


def _say_unless_left(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print an exception, but not that the main process has left in the middle of a batch.

    torch carries a worker's own exceptions to the main process. What comes here is of the thread
    that hands batches over, which finds its connection closed where the main process ends.
    """
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


def _end_with_parent() -> None:
    """Have this process end at once, and in silence, when the one that started it does.

    Otherwise a worker whose main process was ended by a signal finds its queues closed in the
    middle of a batch, says so at length, and stays for seconds.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended just before
        os._exit(1)
