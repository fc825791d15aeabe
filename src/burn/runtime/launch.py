"""The processes of one job: how `--devices 8` starts them, and the place of each among them.

The start works as torchrun's does, but exit statuses, signals and error messages pass through
unchanged. torchrun or srun may start them instead. All tell each process its place by RANK,
WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from burn.core.errors import UserError
from burn.runtime.hardware import cores
from burn.runtime.signals import ending_signals

_GRACE = 25.0  # seconds from SIGTERM to SIGKILL
_PIPE = "BURN_LAUNCHER_PIPE"
_MARK = "BURN_LAUNCHED"
_MOST_PROCESSES = 100_000


def launch(arguments: Sequence[str], devices: int, num_nodes: int) -> int:
    """Run `burn ARGUMENTS` in `devices` processes on this machine, and return the exit status.

    It is that of the process that failed, 128 + signal if a signal killed it. With several machines
    the command must be started on each, with NODE_RANK (0, 1, …), MASTER_ADDR and MASTER_PORT
    (29500 if unset) in the environment; UserError names a lacking one. Signals are forwarded to all
    processes. If one fails or is killed, the others are ended too.
    """
    shared = _environment(devices, num_nodes)
    node = int(shared["NODE_RANK"])
    signals: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _frame: signals.append(received))
        for number in ending_signals()
    }
    reading, writing = os.pipe()  # closing it tells the processes that this one has ended
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for local in range(devices):
            ranks = {"LOCAL_RANK": str(local), "RANK": str(node * devices + local)}
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "burn", *arguments],
                    env={**os.environ, **shared, **ranks, _PIPE: str(reading)},
                    pass_fds=[reading],
                    start_new_session=True,  # Ctrl-C reaches them through us, once
                )
            )
        return _wait(processes, signals)
    finally:
        for process in processes:
            process.kill()
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _environment(devices: int, num_nodes: int) -> dict[str, str]:
    given = os.environ
    if num_nodes > 1:
        lacking = [name for name in ("NODE_RANK", "MASTER_ADDR") if name not in given]
        if lacking or not given["NODE_RANK"].isdecimal() or int(given["NODE_RANK"]) >= num_nodes:
            raise UserError(
                f"--num-nodes {num_nodes}: set NODE_RANK (0 … {num_nodes - 1}) and MASTER_ADDR "
                "(the address of node 0) on each node, or start with torchrun or srun"
            )
        address, port = given["MASTER_ADDR"], given.get("MASTER_PORT", "29500")
    else:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            address, port = listening.getsockname()
    return {
        "WORLD_SIZE": str(devices * num_nodes),
        "LOCAL_WORLD_SIZE": str(devices),
        "NODE_RANK": given["NODE_RANK"] if num_nodes > 1 else "0",
        _MARK: "1",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": given.get("OMP_NUM_THREADS", str(max(1, cores() // devices))),
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]], signals: list[int]) -> int:
    """Wait until all processes have ended, and forward the `signals` that arrive meanwhile."""
    status, deadline = 0, None
    forwarded: list[int] = []
    while True:
        time.sleep(0.05)
        while signals:
            forwarded.append(signals.pop(0))
            _send(processes, forwarded[-1])
        codes = [process.poll() for process in processes]
        failed = min((code for code in codes if code), default=None)  # signals are negative
        if failed is not None and not status:
            status = 128 - failed if failed < 0 else failed
            if failed < 0 and -failed not in forwarded:
                rank = codes.index(failed)
                name = signal.Signals(-failed).name
                print(
                    f"burn: process {rank} of {len(processes)} was ended by {name}; the others "
                    "are being stopped",
                    file=sys.stderr,
                )
            deadline = time.monotonic() + _GRACE
            _send(processes, signal.SIGTERM)
        if None not in codes:
            return status
        if deadline is not None and time.monotonic() > deadline:
            _send(processes, signal.SIGKILL)


def _send(processes: Sequence[subprocess.Popen[Any]], number: int) -> None:
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def started_by_launcher() -> bool:
    """Return whether this is one of the processes of `launch`."""
    return _MARK in os.environ


def end_with_launcher() -> None:
    """End this process when the one that launched it has ended in whatever way."""
    descriptor = os.environ.pop(_PIPE, None)
    if descriptor is None:
        return

    def watch() -> None:
        os.read(int(descriptor), 1)  # returns when the pipe is closed: nobody writes
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True)
class Ranks:
    """Place of this process among those of its job."""

    count: int = 1  # of the processes of the job; 1 where nothing started more
    rank: int = 0  # in 0 … count - 1
    local_count: int = 1  # of the job's processes on this machine
    local_rank: int = 0  # in 0 … local_count - 1


def ranks() -> Ranks:
    """Return the place of this process, from the environment, whose values are checked."""
    _take_names_of_srun()
    count = _integer("WORLD_SIZE", 1, 1, _MOST_PROCESSES)
    if count > 1 and "RANK" not in os.environ:
        raise UserError(
            f"WORLD_SIZE is {count}, but RANK is not set: start with --devices, torchrun or srun, "
            "or unset WORLD_SIZE"
        )
    rank = _integer("RANK", 0, 0, count - 1, f" (WORLD_SIZE is {count})")
    local_count = _integer("LOCAL_WORLD_SIZE", count, 1, count, f" (WORLD_SIZE is {count})")
    local_rank = _integer("LOCAL_RANK", 0, 0, local_count - 1)
    if count > 1:
        _integer("MASTER_PORT", 29500, 1, 65535)
    return Ranks(count, rank, local_count, local_rank)


def require_alone(command: str) -> None:
    """Check that a command that is one process, or starts some itself, does not run in a group."""
    if ranks().count > 1:
        raise UserError(f"burn {command} cannot run under torchrun or srun: start it directly")


def _integer(name: str, default: int, low: int, high: int, why: str = "") -> int:
    """Return a variable of the environment as a number in `low` … `high`, the default if unset."""
    text = os.environ.get(name, str(default)).strip()
    plain = text.isascii() and text.isdecimal() and len(text) <= 18
    if not plain or not low <= int(text) <= high:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise UserError(
            f"the environment's {name} is {shown!r}, not a whole number in {low} … {high}"
            f"{why}: torchrun, srun and --devices set it; unset it to run one process"
        )
    return int(text)


def _take_names_of_srun() -> None:
    """Set the variables that torchrun would have set, in a task that srun started."""
    env = os.environ
    if "RANK" in env or "SLURM_PROCID" not in env:
        return
    tasks = _integer("SLURM_STEP_NUM_TASKS", 1, 1, _MOST_PROCESSES)
    if tasks == 1:
        return
    if "MASTER_ADDR" not in env:
        raise UserError(
            "srun started several tasks, but MASTER_ADDR is not set: before srun, export "
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        )
    rank = _integer("SLURM_PROCID", 0, 0, tasks - 1)
    each, rest = divmod(tasks, _integer("SLURM_STEP_NUM_NODES", 1, 1, tasks))
    node = _integer("SLURM_NODEID", 0, 0, tasks - 1)
    local = _integer("SLURM_LOCALID", 0, 0, tasks - 1)
    if rest or rank != node * each + local:
        raise UserError(
            f"srun spread {tasks} tasks unevenly or cyclically over its nodes: give "
            "--ntasks-per-node, and no --distribution"
        )
    env.setdefault("MASTER_PORT", "29500")
    env.update(
        RANK=str(rank),
        WORLD_SIZE=str(tasks),
        NODE_RANK=str(node),
        LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(each),
    )
