"""Workers that cannot hand over their batches, end or hang: one line at once, never a hang."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, _utils, dataloader

from burn.core.errors import UserError
from burn.data import workers
from burn.data.workers import QuietLoader, start_worker
from burn.runtime.signals import StopRequest, Terminated

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
    at_three: Callable[[], Any] = int, collate: Callable[[Sequence[int]], Any] = torch.tensor
) -> QuietLoader:
    return QuietLoader(
        Numbers(at_three), num_workers=2, batch_size=2, collate_fn=collate,
        worker_init_fn=start_worker, persistent_workers=True,
    )  # fmt: skip


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
    with pytest.raises(UserError, match=r"socket in .*/d{90}: .*set TMPDIR .*--workers 0"):
        next(iter(loader()))


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
    [
        (OSError(errno.ENOSPC, "No space left on device"), "shared memory is full"),
        (RuntimeError("unable to allocate shared memory(shm) for file </t>: 28"), "memory is full"),
        (OSError(errno.EMFILE, "Too many open files"), "too many open files"),
        (RuntimeError("unable to open object: Too many open files (24)"), "too many open files"),
        (MemoryError(), "memory runs out"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot hand over a batch"),
        (OSError("AF_UNIX path too long"), "cannot hand over a batch: AF_UNIX path too long"),
        (TypeError("cannot pickle"), "cannot hand over a batch: cannot pickle"),
    ],
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


@pytest.mark.parametrize("leave", [lambda: os._exit(0), lambda: os._exit(3), raising(SystemExit())])
def test_a_worker_that_leaves(leave: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "_LOOK", 0.25)
    with pytest.raises(UserError, match=r"a data-loader worker died: .*--workers"):
        list(loader(leave))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        EOFError(),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
    ],
)
def test_a_worker_that_dies_while_it_hands_over_a_batch(
    error: Exception, monkeypatch: pytest.MonkeyPatch
):
    """The main process notices the end of the connection before that of the worker."""

    def read(batches: Any) -> Any:
        os.kill(batches._workers[0].pid, signal.SIGKILL)
        raise error

    monkeypatch.setattr(workers, "_tell_deaths_as_errors", lambda _: None)
    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter, "__next__", read)
    with pytest.raises(
        UserError, match=r"a data-loader worker died: memory may have run out; .*--workers"
    ):
        list(loader())


# --- A worker that hangs is reported, and does not keep anybody. ---


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LOOK", 0.25), ("_NOTICE", 0.25), ("_LONGEST", 1.0)):
        monkeypatch.setattr(workers, name, seconds)
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.1)


def assert_none_is_left() -> None:
    for child in multiprocessing.active_children():
        child.join(60)
        assert not child.is_alive()


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
