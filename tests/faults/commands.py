"""Runs of the `burn` command that are to be killed, and what they left."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors.torch import load_file
from victim import arrange

from warm import Command

BURN = (sys.executable, "-m", "burn")
Process = Command | subprocess.Popen[str]
_SMALL = """
    --recipe=demo --stages=2 --data=digits --epochs=2 --batch-size=64 --compute=float32 --device=cpu
    --backbone.width=0.25 --backbone.depths=[1,1,1,1,1] --burn.num-classes=64 --burn.hidden=64
    --burn.classifier=joint --workers=1 --monitor-every=1
"""


def command(teacher: Path, out: Path, *more: str) -> list[str]:
    """BURN on digits with a tiny student in two stages, begun or gone on with."""
    return ["pretrain", *_SMALL.split(), f"--teacher={teacher}", f"--out={out}", "--resume", *more]


@contextmanager
def started(
    arguments: Sequence[str], die: str | None = None, **environment: str
) -> Iterator[Command]:
    """The command in a process group of its own, which is killed at the end, come what may.

    die: where in the code something is to happen, one of victim.py's moments.
    """
    process = Command(
        arguments, {"OMP_NUM_THREADS": "1", **environment}, prepare=arrange if die else None,
        given=[die] if die else [],
    )  # fmt: skip
    try:
        yield process
    finally:
        kill_all(process)


def kill_all(process: Process) -> None:
    """SIGKILL for the process and what it started, whose last ones end when they notice."""
    for child in descendants(process.pid):
        _kill(child)
    _kill(process.pid)
    if process.stdout is not None and not process.stdout.closed:
        process.communicate()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes below `pid`."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def ranks(launcher: int) -> dict[int, int]:
    """Rank -> process, of those that a launcher started on one machine, which it does in order."""
    children = [
        int(child)
        for task in Path(f"/proc/{launcher}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return dict(enumerate(sorted(children, key=_started_at)))


def _started_at(pid: int) -> int:
    """Clock ticks since the machine's start, the 22nd field; the second may hold spaces."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def run(arguments: Sequence[str], die: str | None = None, **environment: str) -> tuple[int, str]:
    """Exit status and output of the command, to its end."""
    with started(arguments, die, **environment) as process:
        output, _ = process.communicate(timeout=300)
        return process.returncode, output


def wait_for_step(process: Process, out: Path, step: int, stage: int = 1) -> None:
    """Until the run has written the numbers of this step, or has ended."""
    deadline = time.monotonic() + 200
    while process.poll() is None and last_step(out, stage) < step:
        assert time.monotonic() < deadline, "the run does not come to its steps"
        time.sleep(0.02)


def last_step(out: Path, stage: int = 1) -> int:
    file = out / f"stage{stage}" / "metrics.csv"
    if not file.is_file():
        return 0
    rows = list(csv.reader(file.read_text().splitlines()))[1:]
    return max((int(row[0]) for row in rows if row and row[0].isdecimal()), default=0)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "stage2.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
