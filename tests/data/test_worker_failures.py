"""Workers that cannot hand over their batches, end or hang: one line at once, never a hang."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import multiprocessing.queues
import os
import select
import signal
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.synchronize import SemLock
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, _utils

from burn.core.errors import UserError
from burn.data import exchange, workers
from burn.data.workers import QuietLoader, start_worker
from burn.runtime.signals import StopRequest, Terminated
from seldom import few

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


class Numbers(Dataset[int]):
    """0 to 7; `at_three` is called in the worker that reads 3."""

    def __init__(self, at_three: Callable[[], Any] = int) -> None:
        self._at_three = at_three

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3:
            self._at_three()
        return index


def loader(
    at_three: Callable[[], Any] = int,
    collate: Callable[[Sequence[int]], Any] = torch.tensor,
    start: Callable[[int], None] = start_worker,
    *,
    pin: bool = False,
) -> QuietLoader:
    return QuietLoader(
        Numbers(at_three), num_workers=2, batch_size=2, collate_fn=collate,
        worker_init_fn=start, persistent_workers=True, pin_memory=pin,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    def fail(*_: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def fresh_temporary_folder(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """Python keeps the folder in two places."""
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", None)
    process: Any = multiprocessing.current_process()
    without = {key: value for key, value in process._config.items() if key != "tempdir"}
    monkeypatch.setattr(process, "_config", without)


# --- What the machine lacks is found before there are workers. ---


def test_a_long_tmpdir_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    long = tmp_path / ("d" * 90)
    long.mkdir()
    fresh_temporary_folder(monkeypatch, str(long))
    registry = multiprocessing.util._finalizer_registry  # type: ignore[attr-defined]
    before = set(registry)
    with pytest.raises(UserError, match=r"socket in .*/d{90}: .*set TMPDIR .*--workers 0"):
        next(iter(loader()))
    for key in set(registry) - before:  # what removes multiprocessing's folder while it is there
        registry[key]()


def test_no_writable_temporary_folder(monkeypatch: pytest.MonkeyPatch):
    fresh_temporary_folder(monkeypatch, "/ro")
    no_folder = FileNotFoundError(errno.ENOENT, "No usable temporary directory found")
    monkeypatch.setattr(tempfile, "gettempdir", raising(no_folder))
    with pytest.raises(UserError, match=r"socket in /ro: No usable .*set TMPDIR"):
        next(iter(loader()))


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (multiprocessing.get_context("fork"), "Lock", OSError(errno.ENOSPC, "No space left")),
        (multiprocessing.get_context("fork"), "Lock", OSError(errno.EROFS, "Read-only")),
        (torch.Tensor, "share_memory_", RuntimeError("unable to allocate shared memory(shm)")),
    ],
)
def test_no_shared_memory(owner: Any, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(owner, name, raising(error))
    with pytest.raises(UserError, match=r"share memory in /dev/shm: .*--workers 0"):
        next(iter(loader()))


# --- A batch that cannot be handed over is an error; torch would wait for it forever. ---


class Unsendable:
    """A batch whose pickling fails, as that of tensors does without sockets or shared memory."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "text"),
    few(
        [
            (OSError(errno.ENOSPC, "No space left on device"), "shared memory is full"),
            (
                RuntimeError("unable to allocate shared memory(shm) for file </t>: 28"),
                "memory is full",
            ),
            (OSError(errno.EMFILE, "Too many open files"), "too many open files"),
            (
                RuntimeError("unable to open object: Too many open files (24)"),
                "too many open files",
            ),
            (MemoryError(), "memory runs out"),
            (PermissionError(errno.EACCES, "Permission denied"), "cannot hand over a batch"),
            (OSError("AF_UNIX path too long"), "cannot hand over a batch: AF_UNIX path too long"),
            (TypeError("cannot pickle"), "cannot hand over a batch: cannot pickle"),
        ],
        5,
    ),
)
def test_a_batch_that_cannot_be_sent(error: Exception, text: str):
    with pytest.raises(UserError, match=text) as caught:
        list(loader(collate=lambda _: Unsendable(error)))
    assert "--workers" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_socket_that_vanished_is_named():
    """As a cleaner of temporary folders does; torch connects to it for every batch."""
    with (
        pytest.raises(UserError, match=r"cannot hand over a batch.*No such file.*--workers 0"),
        workers._failures_of_workers(2),
    ):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/tmp/pymp-1/listener")


# --- A worker may die at any instruction, and this process may be at any, too. ---


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_worker_loop(name: str) -> Any:
    frame: Any = sys._getframe()
    while frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    return frame.f_locals[name]


def semlocks() -> list[SemLock]:
    """All locks that this process shares with another."""
    return [found for found in gc.get_objects() if issubclass(type(found), SemLock)]


_others: list[SemLock] = []


@pytest.fixture(autouse=True)
def remember_locks_of_others() -> Iterator[None]:
    """A library's, such as tqdm's, which a dying worker must not take from the tests after it."""
    _others[:] = semlocks()
    yield
    _others.clear()


def die_with_every_lock() -> None:
    """Those of queues and events."""
    gc.unfreeze()  # what a worker has of its parent
    others = {id(lock) for lock in _others}
    mine = [lock for lock in semlocks() if id(lock) not in others]
    assert mine
    for lock in mine:
        lock.acquire(False)
    die()


def die_with_the_lock_of_batches() -> None:
    in_worker_loop("data_queue")._wlock.acquire()
    die()


def die_in_a_message() -> None:
    batches = in_worker_loop("data_queue")
    batches._wlock.acquire()
    batches._writer._send(struct.pack("!i", 1000) + b"begun")
    die()


def die_in_the_length_of_a_message() -> None:
    in_worker_loop("data_queue")._writer._send(b"\0\0")
    die()


class AsIfPinned:
    """What torch needs to start the thread that pins batches, without a GPU."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(torch.accelerator, "is_available", lambda: True)
        patch.setattr(torch.accelerator, "current_device_index", int)
        patch.setattr(torch.accelerator, "set_device_index", lambda _: None)
        patch.setattr(_utils.pin_memory, "pin_memory", lambda data, _: data)


def assert_none_is_left() -> None:
    gc.collect()  # a loader of an earlier test keeps its workers until then
    for child in multiprocessing.active_children():
        child.join(60)
        assert not child.is_alive()


@pytest.mark.parametrize("pin", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("moment", "why"),
    few(
        [
            (die_with_every_lock, "memory may have run out"),
            (die_in_the_length_of_a_message, "memory may have run out"),
            (lambda: os.kill(os.getpid(), signal.SIGXCPU), "signal 24, CPU time limit exceeded"),
            (lambda: os._exit(3), "exit status 3"),
            (die, "memory may have run out"),
            (die_with_the_lock_of_batches, "memory may have run out"),
            (die_in_a_message, "memory may have run out"),
            (lambda: os._exit(0), "exit status 0"),
            (raising(SystemExit()), "exit status "),
        ],
        4,
    ),
)
def test_a_worker_that_dies(
    moment: Callable[[], Any],
    why: str,
    pin: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # of others that wait for a lock
    if pin:
        AsIfPinned(monkeypatch)
    with pytest.raises(UserError, match=f"a data-loader worker died: {why}.*; give .*--workers"):
        list(loader(moment, pin=pin))
    assert_none_is_left()
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_dies_of_full_shared_memory():
    """The kernel says so when a page of it is first written."""

    def die() -> None:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGBUS)

    with pytest.raises(UserError, match="shared memory is full"):
        list(loader(die))


@pytest.mark.parametrize("worker", few([1, 0], 1))
def test_a_worker_that_dies_in_its_start(worker: int):
    def start(number: int) -> None:
        if number == worker:
            die()
        start_worker(number)

    with pytest.raises(UserError, match="a data-loader worker died: memory may have run out"):
        list(loader(start=start))
    assert_none_is_left()


def test_a_worker_that_dies_between_epochs_interrupts_nothing_else():
    """What the main thread does then may hold a lock, or swallow an exception."""
    batches = loader()
    assert len(list(batches)) == 4
    iterator: Any = batches._iterator
    for worker in iterator._workers:
        worker.kill()
        worker.join()
    with pytest.raises(UserError, match="a data-loader worker died: memory may have run out"):
        list(batches)
    assert len(list(batches)) == 4  # others are started


@pytest.mark.parametrize(
    "error",
    few(
        [
            EOFError(),
            ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
            FileNotFoundError(errno.ENOENT, "No such file or directory"),
        ],
        1,
    ),
)
def test_a_worker_that_dies_while_it_hands_over_a_batch(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    """The main process notices the end of the connection before that of the worker."""
    main = os.getpid()
    real = multiprocessing.queues.Queue.get

    def get(queue: Any, *arguments: Any, **named: Any) -> Any:
        if os.getpid() != main:
            return real(queue, *arguments, **named)
        queue.writers[0].kill()
        raise error

    monkeypatch.setattr(multiprocessing.queues.Queue, "get", get)
    with pytest.raises(
        UserError, match=r"a data-loader worker died: memory may have run out; .*--workers"
    ):
        list(loader())
    assert_none_is_left()


def test_an_exception_of_a_signal_that_leaves_a_lock_taken(monkeypatch: pytest.MonkeyPatch):
    """Python may call the handler where the lock is taken and the block under `with` not begun."""
    real = threading.Condition.__enter__
    batches = loader()

    def take(condition: threading.Condition) -> bool:
        taken = real(condition)
        if sys._getframe(1).f_code.co_name == "put":
            monkeypatch.undo()
            raise KeyboardInterrupt
        return taken

    list(batches)
    monkeypatch.setattr(threading.Condition, "__enter__", take)
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert_none_is_left()
    # Python takes the locks of queues at its end.
    for end in gc.get_objects():
        if issubclass(type(end), Finalize) and "_finalize_close" in repr(end):
            assert end._args[1].acquire(timeout=10)
            end._args[1].release()


def test_a_main_process_that_dies_while_a_worker_starts_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
):
    reading, writing = os.pipe()
    main = os.fork()
    if main == 0:
        main = os.getpid()
        end = exchange._end_with_parent

        def late() -> None:
            while os.getppid() == main:
                threading.Event().wait(0.01)
            end()

        monkeypatch.setattr(exchange, "_end_with_parent", late)
        kept = loader()._get_iterator()
        assert kept
        os._exit(0)
    os.close(writing)
    os.waitpid(main, 0)
    assert select.select([reading], [], [], 60)[0], "a worker is left"
    assert os.read(reading, 1) == b""
    os.close(reading)


# --- A worker that hangs is reported, and does not keep anybody. ---


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK", 0.25), ("_NOTICE", 0.25), ("_LONGEST", 1.0)):
        monkeypatch.setattr(workers, name, seconds)
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.1)


def hang() -> None:
    threading.Event().wait()


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_hangs_is_reported_and_ended(capsys: pytest.CaptureFixture[str]):
    batches = loader(hang)
    with pytest.raises(UserError, match="2 data-loader workers have made no batch in"):
        list(batches)
    assert "workers have made no batch for 0.25 s" in capsys.readouterr().err
    assert_none_is_left()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_ends_the_wait_for_a_worker(number: int):
    stop = StopRequest()
    with stop.installed():
        os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt) as caught:
            list(loader(hang))
    assert isinstance(caught.value, Terminated) == (number == signal.SIGTERM)
    assert_none_is_left()


def test_waiting_for_slow_images_is_no_failure(monkeypatch: pytest.MonkeyPatch):
    """Looks at the workers change nothing, in the first epoch and in one of the same workers."""
    monkeypatch.setattr(workers, "_LOOK", 0.05)
    slow = loader(lambda: threading.Event().wait(0.3))
    for _ in range(2):
        assert [batch.tolist() for batch in slow] == [[0, 1], [2, 3], [4, 5], [6, 7]]


class _Cycle:
    """Refers to itself, so that only the garbage collector destroys it; says who did."""

    def __init__(self, destroyed: Path) -> None:
        self._destroyed, self._self = destroyed, self

    def __del__(self) -> None:
        self._destroyed.write_text(str(os.getpid()))


class _Collects(Dataset[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        gc.collect()
        return index


def test_a_worker_destroys_nothing_of_its_parents(tmp_path: Path):
    """An ONNX Runtime session waits for its threads, which a forked process has not."""
    gc.collect()
    gc.disable()
    try:
        _Cycle(tmp_path / "destroyed")
        loader = QuietLoader(_Collects(), num_workers=1, batch_size=None)
        assert list(loader) == [0, 1, 2]
        assert not (tmp_path / "destroyed").exists()
        gc.collect()
        assert (tmp_path / "destroyed").read_text() == str(os.getpid())
    finally:
        gc.enable()
