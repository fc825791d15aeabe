"""A server that forks a child for every command, so that a thousand commands import torch once.

Reads one JSON request a line from standard input, runs `burn.cli.main.main` in a child process, and
writes one JSON answer a line. Every child has a working directory, environment, output files,
memory limit and time limit of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from warm import MODULES, run_command

_CAPABILITY_VERSION = 0x20080522
_FILE_RIGHTS = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def main() -> None:
    for name in MODULES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # children copy no page of what is there already
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.monotonic()
        children = []
        for copy in request["copies"]:
            children.append(os.fork())
            if children[-1] == 0:
                _become(request | copy)
                run_command(request["arguments"])
        answers = [_wait(child, started, request) for child in children]
        print(json.dumps(answers), flush=True)


def _become(request: dict[str, Any]) -> None:
    """Make this child the process of one command."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in background
    os.chdir(request["folder"])
    for name, value in request["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for descriptor, name in enumerate((os.devnull, request["stdout"], request["stderr"])):
        opened = _open(name, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115
    if request["unprivileged"]:
        _drop_file_rights()
    if request["file_size"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"],) * 2)
    if request["descriptors"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["descriptors"],) * 2)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limit = now + request["memory"] * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _open(name: str, flags: int) -> int:
    """A file, or a pipe whose reader has left."""
    if name != "pipe":
        return os.open(name, flags, 0o644)
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def _drop_file_rights() -> None:
    """Obey the permission bits of files even as root."""

    class Header(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

    class Data(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint32) for n in ("effective", "permitted", "inheritable")]

    libc = ctypes.CDLL(None, use_errno=True)
    header, data = Header(_CAPABILITY_VERSION, 0), (Data * 2)()
    if libc.capget(ctypes.byref(header), data):
        raise OSError(ctypes.get_errno(), "capget")
    for right in _FILE_RIGHTS:
        data[0].effective &= ~(1 << right)
        data[0].permitted &= ~(1 << right)
    if libc.capset(ctypes.byref(header), data):
        raise OSError(ctypes.get_errno(), "capset")


def _wait(child: int, started: float, request: dict[str, Any]) -> dict[str, Any]:
    """Until the child has ended, or its time is over; what it left running is ended too.

    With a signal to send, it is sent when its file in the child's folder has a line.
    """
    hung = False
    seconds: float = request["seconds"]
    number, awaited = 0, ""
    if request["signal"]:
        number, awaited = request["signal"]
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() - started > seconds and not hung:
            hung = True
            os.kill(child, signal.SIGKILL)
        if number and _has_line(os.path.join(request["folder"], awaited)):  # noqa: PTH118
            os.kill(child, number)
            number = 0
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "status": os.waitstatus_to_exitcode(status),
        "hung": hung,
        "memory": max(0, usage.ru_maxrss - own) // 1024,
    }


def _has_line(file: str) -> bool:
    with contextlib.suppress(OSError), open(file, "rb") as opened:
        return b"\n" in opened.read()
    return False


if __name__ == "__main__":
    main()
