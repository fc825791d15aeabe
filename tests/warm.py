"""Processes that are forked from one that has imported torch and burn.

A new Python takes five seconds of processor time to come so far, and the tests need a hundred. What
they have of a new process are its own memory, signals, output and exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from pathlib import Path
from typing import Any

# Everything that commands import. None of it starts a thread.
MODULES = (
    "attrs",
    "burn.campaigns.ablate", "burn.campaigns.compare", "burn.campaigns.demo",
    "burn.campaigns.jobs", "burn.checkpoints.foreign.exchange", "burn.cli.commands.evaluate",
    "burn.cli.commands.pretrain", "burn.cli.configuration", "burn.cli.main", "burn.cli.parser",
    "burn.deploy.onnx", "burn.deploy.pack", "burn.embedding.network", "burn.embedding.run",
    "burn.evaluation.context",
    "burn.evaluation.detection.protocol", "burn.evaluation.linear", "burn.evaluation.registry",
    "burn.report.page", "burn.report.render.tables", "burn.training.run",
    "burn.training.stage",
)  # fmt: skip

# As multiprocessing's "spawn", but a child begins with these modules.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(list(MODULES))


class Command:
    """`burn ARGUMENTS` in a process of its own, with the interface of `subprocess.Popen`.

    Its output, of both streams, is one pipe. With `--devices` it forks the processes that burn's
    launcher would start.

    arguments: what follows `burn`. environment: changes of this process's. prepare: a function,
    which can be pickled, that the process calls first, with `given`.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        prepare: Callable[..., None] | None = None,
        given: Sequence[Any] = (),
    ) -> None:
        self.args = list(arguments)
        self.returncode: Any = None
        self._text = b""
        reading, writing = os.pipe()
        self.stdout = os.fdopen(reading, "rb", 0)
        variables = {**os.environ, **(environment or {})}
        start = (self.args, variables, str(Path.cwd()), _Descriptor(writing), prepare, tuple(given))
        self._process = CONTEXT.Process(target=_run, args=start)
        self._process.start()
        os.close(writing)
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal's number; None while it runs."""
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All its output, once it and whatever has inherited its pipe have ended."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.stdout.closed:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self.stdout], [], [], left)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0, self._text)
            read = self.stdout.read(2**16)
            self._text += read or b""
            if not read:
                self.stdout.close()
        self.wait(None if end is None else max(0.1, end - time.monotonic()))
        return self._text.decode(errors="backslashreplace"), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Descriptor:
    """A file descriptor that is handed over with a process's arguments."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return _handed_over, (reduction.DupFd(self.number),)


def _handed_over(held: Any) -> _Descriptor:
    return _Descriptor(held.detach())


def _run(
    arguments: list[str],
    variables: dict[str, str],
    folder: str,
    output: _Descriptor,
    prepare: Callable[..., None] | None,
    given: tuple[Any, ...],
) -> None:
    """Become the process of the command; does not return."""
    os.chdir(folder)
    _become(variables)
    for number in (1, 2):
        os.dup2(output.number, number)
    os.close(output.number)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115
    if prepare is None:
        import burn.runtime.launch

        burn.runtime.launch.subprocess = _Forking  # type: ignore[assignment]
    else:
        prepare(*given)
    run_command(arguments)


def _become(variables: Mapping[str, str]) -> None:
    """Leave the process's group, signals and environment."""
    os.setsid()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    os.environ.clear()
    os.environ.update(variables)
    import torch

    torch.set_num_threads(int(variables.get("OMP_NUM_THREADS", "1")))


def run_command(arguments: Sequence[str]) -> None:
    """The command, and what the interpreter does at its end; does not return."""
    from burn.cli.main import main

    status = 1
    try:
        status = main(arguments)
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


class _Forking:
    """What burn's launcher uses of the module subprocess, but the processes are forked."""

    class Popen:
        def __init__(
            self,
            command: Sequence[str],
            *,
            env: Mapping[str, str],
            pass_fds: Sequence[int],
            start_new_session: bool,
        ) -> None:
            assert list(command[:3]) == [sys.executable, "-m", "burn"]
            assert start_new_session
            self.returncode: int | None = None
            self.pid = os.fork()
            if self.pid == 0:
                _become(env)
                # Those of the launcher, which it passes over, but for one.
                for file in Path("/proc/self/fd").iterdir():
                    if int(file.name) > 2 and int(file.name) not in pass_fds:
                        with contextlib.suppress(OSError):
                            os.close(int(file.name))
                run_command(command[3:])

        def poll(self) -> int | None:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

        def send_signal(self, number: int) -> None:
            if self.poll() is None:
                os.kill(self.pid, number)

        def kill(self) -> None:
            self.send_signal(signal.SIGKILL)
