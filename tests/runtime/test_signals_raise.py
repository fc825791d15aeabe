"""Signals end work as exceptions, even where the interrupted code swallows the exception."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest
from rich.console import Console
from torch.utils.data import Dataset

from burn.data.workers import QuietLoader, start_worker
from burn.evaluation.progress import progress_bar
from burn.runtime.signals import Terminated, interrupted, raise_unseen, signals_raise

BOTH = pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)


def swallow(number: int) -> None:
    """Receive a signal within code like that of `copyreg._slotnames`, which deepcopy calls."""
    try:
        os.kill(os.getpid(), number)
        for _ in range(1000):  # the handler runs between two instructions
            pass
    except:  # noqa: E722
        return
    raise AssertionError("no signal arrived")


@BOTH
def test_a_signal_raises(number: int, kind: type[KeyboardInterrupt]):
    with signals_raise(), pytest.raises(KeyboardInterrupt) as raised:  # noqa: PT012
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass
    assert raised.type is kind


@BOTH
def test_a_swallowed_signal_raises_at_the_next_advance(number: int, kind: type[KeyboardInterrupt]):
    with progress_bar(Console(file=io.StringIO())) as progress:
        bar = progress.add_task("it", total=3)
        with signals_raise():
            progress.advance(bar)
            swallow(number)
            with pytest.raises(KeyboardInterrupt) as raised:
                progress.advance(bar)
            assert raised.type is kind
            assert interrupted("it", raised.value).number == number
            progress.advance(bar)  # the signal has been seen
            swallow(number)
        raise_unseen()  # the work has ended


@BOTH
def test_a_signal_in_a_finalizer_raises_later_in_silence(
    number: int, kind: type[KeyboardInterrupt], monkeypatch: pytest.MonkeyPatch
):
    class Interrupted:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)
            for _ in range(1000):
                pass

    class Faulty:
        def __del__(self) -> None:
            raise ValueError("a fault of another kind")

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_value))
    hook = sys.unraisablehook
    with signals_raise():
        Interrupted()
        assert not reported
        with pytest.raises(KeyboardInterrupt) as raised:
            raise_unseen()
        assert raised.type is kind
        Faulty()
    assert [str(error) for error in reported] == ["a fault of another kind"]
    assert sys.unraisablehook is hook


class Hooks:
    """State that changes around a fork, as filelock's does, and a signal in each of the changes.

    The functions that Python calls around a fork cannot be removed, so they stay and do nothing.
    """

    number = 0
    calls: ClassVar[list[str]] = []

    @classmethod
    def call(cls, name: str) -> None:
        if cls.number:
            os.kill(os.getpid(), cls.number)
            for _ in range(1000):
                pass
            cls.calls.append(name)


@pytest.fixture(scope="module")
def hooks() -> type[Hooks]:
    names = ("before", "after_in_parent", "after_in_child")
    os.register_at_fork(**{name: partial(Hooks.call, name) for name in names})
    return Hooks


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def load() -> list[int]:
    loader = QuietLoader(Numbers(), num_workers=1, worker_init_fn=start_worker, batch_size=None)
    return [int(number) for number in loader]


def raise_at_once() -> None:
    with signals_raise():
        load()


@pytest.mark.parametrize(
    ("start", "number", "kind"),
    [
        (raise_at_once, signal.SIGINT, KeyboardInterrupt),
        (raise_at_once, signal.SIGTERM, Terminated),
        (load, signal.SIGINT, KeyboardInterrupt),  # Python's own handler
    ],
)
def test_a_signal_around_the_fork_of_a_worker_raises_after_it(
    start: Callable[[], None],
    number: int,
    kind: type[KeyboardInterrupt],
    hooks: type[Hooks],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    """What others do around a fork is done to its end."""
    calls: list[str] = []
    monkeypatch.setattr(hooks, "number", number)
    monkeypatch.setattr(hooks, "calls", calls)
    with pytest.raises(KeyboardInterrupt) as raised:
        start()
    monkeypatch.undo()
    assert raised.type is kind
    assert calls == ["before", "after_in_parent"]
    assert load() == [0, 1, 2, 3]
    assert "Traceback" not in capfd.readouterr().err


def test_handlers_are_put_back_and_ctrl_c_stays_ignored():
    before = signal.getsignal(signal.SIGTERM)
    ctrl_c = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_raise():
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, ctrl_c)
    assert signal.getsignal(signal.SIGTERM) == before
