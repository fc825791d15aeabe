"""How the main process and data-loader workers exchange batches: none waits for one that has died.

A worker may be killed at any instruction. What it then leaves taken or half written is a lock that
it shares with others, a message in a pipe, a connection that hands over a tensor. PyTorch relies on
an exception that its handler of SIGCHLD raises in the main thread, which may have just taken a lock
itself, for which the end of the workers then waits. Here the handler raises nothing: whoever waits
for a batch waits for the end of a worker, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.popen_fork
import multiprocessing.queues
import os
import queue
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

_PR_SET_PDEATHSIG = 1
_SLICE = 1  # seconds after which a wait looks whether there are more workers to wait for
_DEATH = 2  # seconds between the end of a worker's connections and that of its process


class WorkerDied(RuntimeError):
    """A worker has ended before its work has; `signal` is the one that ended it, or 0."""

    def __init__(self, status: int | None) -> None:
        self.signal = -min(status or 0, 0)
        name = signal.strsignal(self.signal) if self.signal else ""
        super().__init__(f"signal {self.signal}, {name}" if name else f"exit status {status}")


# Both have attributes that type checkers do not know.
_Torchs: Any = _MultiProcessingDataLoaderIter
_Plain: Any = multiprocessing.queues.Queue


class Batches(_Torchs):
    """An iterator of batches that workers make, which raises WorkerDied as soon as one has died."""

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        if first_iter:
            self._worker_result_queue.writers.extend(self._workers)
            # Torch's handler of SIGCHLD raises in whatever the main thread is doing.
            torch._C._remove_worker_pids(id(self))  # type: ignore[attr-defined]
            self._worker_pids_set = False
        super()._reset(loader, first_iter)

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        success, data = super()._try_get_data(timeout)
        if success and isinstance(data[1], WorkerDied):
            raise data[1]
        return success, data

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:
        if not shutdown:  # it has come to the end of its share
            with contextlib.suppress(ValueError):
                self._worker_result_queue.writers.remove(self._workers[worker_id])
        super()._mark_worker_as_unavailable(worker_id, shutdown)

    def abandon(self) -> None:
        """End the workers after an exception, which may have been raised anywhere in this object.

        Those that do not answer within seconds are killed.
        """
        if self._shutdown:
            return
        self._workers_done_event.set()
        for index_queue in self._index_queues:
            index_queue.renew()
            index_queue.put(None)
        end = time.monotonic() + _utils.MP_STATUS_CHECK_INTERVAL
        left = {worker.sentinel for worker in self._workers}
        while left and (seconds := end - time.monotonic()) > 0:
            left.difference_update(multiprocessing.connection.wait(left, seconds))
        for worker in self._workers:
            worker.kill()
        if hasattr(self, "_pin_memory_thread"):
            # Torch waits for this thread's end, but the thread may wait for a lock of this one's.
            self._pin_memory_thread_done_event.set()
            self._pin_memory_thread.join(_utils.MP_STATUS_CHECK_INTERVAL)
            del self._pin_memory_thread
        self._shutdown_workers()


class _Flag:
    """An event of several processes that takes no lock, with which a process could die."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._byte[0] = 1

    def is_set(self) -> bool:
        return self._byte[0] != 0


class _Reader(multiprocessing.connection.Connection):
    """The end of a pipe that does not wait for the rest of a message if a writer has died."""

    def __init__(self, handle: int, writers: Sequence[Any]) -> None:
        super().__init__(handle, writable=False)
        self._writers = writers

    def _recv(self, size: int, read: Any = None) -> Any:
        return super()._recv(size, self._read)  # type: ignore[misc]

    def _read(self, handle: int, size: int) -> bytes:
        while not multiprocessing.connection.wait([handle], _DEATH):
            if _ended(self._writers, 0):
                raise EOFError
        return os.read(handle, size)


def _ended(processes: Sequence[Any], timeout: float | None) -> list[Any]:
    """Return those that have ended, once there is one."""
    sentinels = {process.sentinel: process for process in list(processes)}
    ended = multiprocessing.connection.wait(list(sentinels), timeout) if sentinels else []
    return [sentinels[sentinel] for sentinel in ended]  # type: ignore[index]


class _Queue(_Plain):
    """A queue that hands out (None, WorkerDied) once one of its `writers` has died.

    That comes once, after what the queue still holds. It is no exception because torch calls `get`
    in a thread too, which would print it.
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any) -> None:
        super().__init__(maxsize, ctx=ctx)
        self.writers: list[Any] = []
        self._told = False
        with self._reader as plain:
            self._reader = _Reader(os.dup(plain.fileno()), self.writers)
        self._reset()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if end is None else max(0, min(_SLICE, end - time.monotonic()))
            if self._told:  # what is left may be of workers that have ended, too
                time.sleep(left if block else 0)
            else:
                sentinels = [process.sentinel for process in list(self.writers)]
                multiprocessing.connection.wait([self._reader, *sentinels], left if block else 0)
                if self._poll(0):
                    try:
                        return super().get(timeout=0)
                    except Exception:
                        # The end of a connection is noticed before that of the process.
                        if not _ended(self.writers, _DEATH):
                            raise
                if ended := _ended(self.writers, 0):
                    self._told = True
                    ended[0].join(_DEATH)  # its status is known a moment after its files are closed
                    return None, WorkerDied(ended[0].exitcode)
            if not block or (end is not None and time.monotonic() >= end):
                raise queue.Empty

    def renew(self) -> None:
        """Forget what is to be sent, and the locks.

        A signal's exception leaves one taken if it is raised where the lock has been taken and the
        block under `with` has not begun.
        """
        if self._close is not None:
            self._close.cancel()  # it would take the lock at the interpreter's end
        self._reset()
        self.cancel_join_thread()


class _Popen(multiprocessing.popen_fork.Popen):
    """A worker that ends by SIGKILL, because it ignores the signals that its group gets."""

    terminate = multiprocessing.popen_fork.Popen.kill


class _Process(multiprocessing.context.ForkProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)

    def run(self) -> None:
        # What the parent process no longer refers to stays: to destroy it here may wait for threads
        # that only the parent has, such as those of an ONNX Runtime session, without an end.
        gc.freeze()
        _end_with_parent()
        super().run()


class ForkContext(multiprocessing.context.ForkContext):
    """The context of workers.

    They are forked, even in a process that was itself spawned, like those of a campaign: transforms
    are nested functions, which cannot be pickled.
    """

    Process = _Process

    def Queue(self, maxsize: int = 0) -> Any:
        return _Queue(maxsize, ctx=self.get_context())

    def Event(self) -> Any:
        return _Flag()


def _end_with_parent() -> None:
    """Make this process end at once, without output, when its parent process ends.

    Otherwise a worker whose main process was ended by a signal finds its queues closed in the
    middle of a batch, prints long tracebacks, and stays for seconds.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it ended before prctl took effect
        os._exit(1)
