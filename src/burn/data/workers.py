"""Data-loader workers: how they start and end, and the errors that their failures raise."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing.connection
import multiprocessing.queues
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None

import cv2
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, Dataset, get_worker_info

from burn.core.errors import UserError
from burn.data.exchange import Batches, ForkContext, WorkerDied
from burn.runtime.signals import raise_requested, signals_wait

_FILES = 64  # open files of a process without workers, with a margin
_FILES_OF_WORKER = 24  # its queues, and the tensors of the two batches that it prefetches
# Seconds of waiting for a batch: until the first look at what may be wrong, a notice, the end.
_LOOK, _NOTICE, _LONGEST = 10, 60, 1800


class QuietLoader(DataLoader[Any]):
    """A DataLoader that reports a failed worker in one line and accepts any number of workers.

    Iterating raises UserError if the machine lacks what the workers need to hand over batches, if a
    worker dies or cannot hand over a batch, if memory or files run out, and if no batch comes for
    half an hour. After a minute without one, it says so on stderr.
    """

    def __init__(self, dataset: Dataset[Any], *, num_workers: int, **options: Any) -> None:
        context = ForkContext() if num_workers else None
        super().__init__(
            dataset, num_workers=num_workers, multiprocessing_context=context, **options
        )

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not self.num_workers:
            yield from super().__iter__()
            return
        _require_files(self.num_workers)
        _require_exchange()
        batches: Any = self._iterator  # of persistent workers, once they have started
        try:
            with _failures_of_workers(self.num_workers):
                batches = super().__iter__()
            batches._timeout = _LOOK
            while True:
                with _failures_of_workers(self.num_workers):
                    batch = self._next(batches)
                if batch is self:
                    break
                yield batch
        except GeneratorExit:
            raise
        except BaseException:
            # A worker that is stuck would otherwise keep this process from ending.
            self._iterator = None
            if batches is not None:
                batches.abandon()
            raise
        batches._timeout = 0  # torch waits for persistent workers when it begins the next epoch

    def _get_iterator(self) -> Any:
        """As DataLoader's; a signal that arrives while workers start raises when they all have.

        The workers are ended then: nobody has the iterator that would end them.
        """
        if not self.num_workers:
            return super()._get_iterator()
        batches = None
        try:
            with signals_wait():
                batches = Batches(self)
        except BaseException:
            if batches is not None:
                batches.abandon()
            raise
        return batches

    def _next(self, batches: Any) -> Any:
        """Return the next batch, or this loader after the last one.

        After some seconds without a batch, a signal that asked the work to stop raises.
        """
        waited = 0
        while True:
            try:
                return next(batches, self)
            except RuntimeError as error:
                if not str(error).startswith("DataLoader timed out"):
                    raise
            waited += _LOOK
            raise_requested()
            if self.pin_memory and not batches._pin_memory_thread.is_alive():
                raise UserError(
                    "the thread that brings batches to the GPU has ended; give --workers 0"
                )
            workers = f"the {self.num_workers} data-loader workers"
            if waited >= _LONGEST:
                raise UserError(
                    f"{workers} have made no batch in {waited // 60} minutes: the images' disk or "
                    "network may not answer; or give --workers 0"
                )
            if waited == _NOTICE:
                print(f"{workers} have made no batch for {waited} s; waiting", file=sys.stderr)

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch would warn of more workers than cores, but the user asked for them."""


def _require_exchange() -> None:
    """Try what a batch takes to get from a worker to this process: a lock, shared memory, a socket.

    If one fails inside of a worker, it fails for every batch.
    """
    try:
        multiprocessing.get_context("fork").Lock()
        torch.zeros(1).share_memory_()
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"data-loader workers cannot share memory in /dev/shm: {_one_line(error)}; make it "
            "larger (docker run --shm-size=2g), or give --workers 0"
        ) from error
    try:
        multiprocessing.connection.Listener().close()
    except OSError as error:
        folder = os.environ.get("TMPDIR") or "the temporary folder"
        with contextlib.suppress(OSError):  # no folder is writable
            folder = tempfile.gettempdir()
        raise UserError(
            f"data-loader workers cannot make a socket in {folder}: {_one_line(error)}; set TMPDIR "
            "to a writable folder with a short path, or give --workers 0"
        ) from error


def _one_line(error: BaseException) -> str:
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error).partition("\n")[0] or type(error).__name__


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


def _failure(error: BaseException, who: str) -> UserError | None:
    """Return the error that the user sees for a failure of workers, or None for any other."""
    reason = str(error)
    number = error.errno if isinstance(error, OSError) else None
    died = error.signal if isinstance(error, WorkerDied) else 0
    if isinstance(error, MemoryError) or number in (errno.ENOMEM, errno.EAGAIN):
        return UserError(f"{who} cannot run: memory runs out; give fewer --workers")
    if number in (errno.EMFILE, errno.ENFILE) or "Too many open files" in reason:
        return UserError(
            f"{who} cannot run: too many open files; raise the limit (ulimit -n), or give fewer "
            "--workers"
        )
    if number == errno.ENOSPC or "shared memory" in reason or died == signal.SIGBUS:
        return UserError(
            f"{who} cannot run: shared memory is full (/dev/shm): make it larger (docker run "
            "--shm-size=2g), or give fewer --workers, or 0"
        )
    if isinstance(error, WorkerDied) or reason.startswith("DataLoader worker"):
        why = "memory may have run out" if died == signal.SIGKILL else _one_line(error)
        return UserError(f"a data-loader worker died: {why}; give fewer --workers")
    if number is not None:
        return UserError(f"{who} cannot hand over a batch: {error}; give --workers 0")
    return None


@contextlib.contextmanager
def _failures_of_workers(workers: int) -> Iterator[None]:
    """Turn the exceptions of the exchange with workers into UserError."""
    try:
        yield
    except UserError as error:
        if "in DataLoader worker process" not in str(error):
            raise
        raise UserError(str(error).strip().rpartition("UserError: ")[2]) from None
    except (MemoryError, OSError, RuntimeError) as error:
        failure = _failure(error, f"{workers} data-loader workers")
        if failure is None:
            raise
        raise failure from error


def start_worker(_worker: int) -> None:
    """Set up a data-loader worker: one thread, no reaction to signals."""
    cv2.setNumThreads(0)
    # The main process answers signals to the whole group, and still needs the workers' batches.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.excepthook = _say_unless_left
    # Otherwise the batch would be lost, and the main process would wait for it forever.
    multiprocessing.queues.Queue._on_queue_feeder_error = _hand_over_failure  # type: ignore[method-assign]


def _hand_over_failure(queue: Any, error: BaseException, item: tuple[int, Any]) -> None:
    """Hand over an error in place of the batch that a worker's sending thread could not."""
    number, _ = item
    worker = get_worker_info()
    failure = _failure(error, "a data-loader worker") or UserError(
        f"a data-loader worker cannot hand over a batch: {_one_line(error)}; give --workers 0"
    )
    where = f"in DataLoader worker process {worker.id if worker else 0}"
    queue.put((number, ExceptionWrapper((UserError, failure, None), where)))


def _say_unless_left(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print an exception unless its cause is that the main process has ended.

    torch carries exceptions of a worker's dataset to the main process. Those that arrive here come
    from the thread that sends batches, whose connection is closed when the main process ends.
    """
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)
