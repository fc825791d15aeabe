"""Data-loader workers: how they start and end, and the errors that their failures raise."""

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
_FILES = 64  # open files of a process without workers, with a margin
_FILES_OF_WORKER = 24  # its queues, and the tensors of the two batches that it prefetches


class QuietLoader(DataLoader[Any]):
    """A DataLoader that reports a failed worker in one line and accepts any number of workers.

    Iterating raises UserError if the limit of open files is too low for the workers, if a worker
    dies, and if memory or files run out.

    Workers are forked, even in a process that was itself spawned, like those of a campaign:
    transforms are nested functions, which cannot be pickled.

    Args:
        dataset: The dataset, as `DataLoader` takes it.
        num_workers: Number of data-loader workers.
        **options: Further arguments of `DataLoader`.
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
        """Do nothing: torch would warn of more workers than cores, but the user asked for them."""


def _require_files(workers: int) -> None:
    """Raise the limit of open files if it is too low for a number of workers.

    Every worker has queues, and every tensor that waits in one is an open file in both processes.
    If files run out, workers lose their batches, and the main process waits for them forever.
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
    """Return the error for a worker that died, from the message of torch's exception."""
    if "Bus error" in reason:
        why = "shared memory is full (/dev/shm)"
    elif "Killed" in reason:
        why = "memory may have run out"
    else:
        why = reason.partition("\n")[0]
    return UserError(f"a data-loader worker died: {why}; give fewer --workers")


@contextlib.contextmanager
def _failures_of_workers(workers: int) -> Iterator[None]:
    """Turn torch's exceptions for a dead worker or for lack of memory or files into UserError."""
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
            f"{workers} data-loader workers cannot run: {error.strerror}; give fewer --workers"
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


_handlers: list[Any] = []  # the handlers of SIGCHLD that were installed here


def _tell_deaths_as_errors(workers: int) -> None:
    """Make torch's handler of SIGCHLD raise a UserError.

    Torch notices a worker's death first in that handler, which interrupts the main thread
    anywhere, for instance in the middle of a training step.
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
    """Set up a data-loader worker: one thread, no reaction to signals, death with its parent."""
    cv2.setNumThreads(0)
    _end_with_parent()
    # The main process answers signals to the whole group, and still needs the workers' batches. A
    # second SIGTERM comes from the main process, for a worker that does not end by itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    sys.excepthook = _say_unless_left


def _say_unless_left(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print an exception unless its cause is that the main process has ended.

    torch carries exceptions of a worker's dataset to the main process. Those that arrive here come
    from the thread that sends batches, whose connection is closed when the main process ends.
    """
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)


def _end_with_parent() -> None:
    """Make this process end at once, without output, when its parent process ends.

    Otherwise a worker whose main process was ended by a signal finds its queues closed in the
    middle of a batch, prints long tracebacks, and stays for seconds.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl took effect
        os._exit(1)
