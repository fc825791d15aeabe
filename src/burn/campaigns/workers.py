"""Executes a campaign's runs, one after the other or in processes, and tells how they ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, cast

import torch
from rich.console import Console

from burn.campaigns.jobs import Job
from burn.core.errors import Interrupted, UserError, listed
from burn.core.files import Busy
from burn.core.inputs import read_end
from burn.core.plugins import fault_in_plugin, imports, load_plugin
from burn.runtime.compute import Device, default_workers, torch_device
from burn.runtime.signals import StopRequest
from burn.runtime.streams import SafeStream

BUSY = 75  # exit status if another burn holds the run: "temporary failure" in sysexits
_LAST_WORDS = 1 << 16  # bytes of a log that hold a run's last line


def run_jobs(jobs: Sequence[Job], processes: int, console: Console) -> list[str]:
    """Train and evaluate the runs that are not done yet, `processes` at the same time.

    A line is returned for each that failed or is held by another process.

    Raises:
        Interrupted: After a signal. Everything is saved, and the same call resumes.
    """
    waiting = [job for job in jobs if not job.done]
    processes = min(processes, len(waiting))
    if processes > 1:
        return _side_by_side(waiting, processes, console)
    return _one_by_one(waiting, console)


class Outcomes:
    """What became of runs, which is printed when each of them ends.

    `failed` has a line for each that failed, and `busy` those that another process holds.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.failed, self._busy = list[str](), list[Job]()

    def add(self, job: Job, ended: int | str, *, stopped: bool = False) -> None:
        """Add a run whose process ended with a status, or was not started for a reason."""
        why = _failure(job, ended) if isinstance(ended, int) else ended
        outcome = "done"
        if stopped:
            outcome = "stopped"
        elif ended == BUSY:
            self._busy.append(job)
            outcome = "skipped, another burn process is using it"
        elif why:
            self.failed.append(f"{job.name}: {why}")
            outcome = "failed"
        self._console.print(f"{job.name}: {outcome}")

    def lines(self, stop: StopRequest | None = None) -> list[str]:
        """Return a line for each failure and one for runs that another process has not finished.

        Interrupted is raised after a signal.
        """
        if stop is not None and stop.requested:
            raise Interrupted(
                "stopped; unfinished runs are saved, and the same command resumes them", stop.number
            )
        names = [job.name for job in self._busy if not job.done]
        if not names:
            return self.failed
        return [
            *self.failed,
            f"{listed(names, 1)}: another burn process is using it; when that has ended, the same "
            "command finishes the rest",
        ]


def log_of(job: Job) -> Path:
    """Return the file for a run's output, which is made if it is not there."""
    log = job.out / "logs" / f"{job.name}.txt"
    log.parent.mkdir(exist_ok=True)
    log.touch()
    return log


def _failure(job: Job, code: int) -> str:
    """Return why a run failed, or an empty text if it did not; `code` is -N after signal N."""
    if code == BUSY:
        return ""
    if code:
        return _last_words(log_of(job), code)
    return "" if job.done else f"its process ended without results, see {log_of(job)}"


def _last_words(log: Path, exit_code: int) -> str:
    if exit_code < 0:
        return (
            f"killed by signal {-exit_code}, perhaps for lack of memory, see {log}; the same "
            "command resumes"
        )
    lines = read_end(log, _LAST_WORDS).split("\n") if log.is_file() else []
    return next(
        (line for line in reversed(lines) if line.strip()), f"ended without a message, see {log}"
    )


def _one_by_one(jobs: Sequence[Job], console: Console) -> list[str]:
    outcomes = Outcomes(console)
    for job in jobs:
        if job.done:  # another command may have done it meanwhile
            continue
        try:
            job.run(console)
        except Interrupted:
            raise
        except Busy:
            outcomes.add(job, BUSY)
        except Exception as error:
            fault = str(error) if isinstance(error, UserError) else fault_in_plugin(error)
            if fault is None:
                raise
            outcomes.failed.append(f"{job.name}: {fault}")
            console.print(outcomes.failed[-1], style="bold red")
    return outcomes.lines()


def _side_by_side(jobs: Sequence[Job], processes: int, console: Console) -> list[str]:
    context = multiprocessing.get_context("spawn")
    waiting, outcomes = list(jobs), Outcomes(console)
    running: dict[int, tuple[Job, Any]] = {}
    stop = StopRequest()
    terminated = False
    with stop.installed():
        while running or (waiting and not stop.requested):
            for slot in range(processes):
                if slot not in running and waiting and not stop.requested:
                    job = waiting.pop(0)
                    log = log_of(job)
                    # The process loads the plugins before it unpickles the job, which may hold
                    # their classes.
                    given = (imports(), pickle.dumps(job), processes, log)
                    process = context.Process(target=_run_alone, args=given)
                    with _one_gpu(slot, job.evaluation.machine.device):
                        process.start()
                    running[slot] = job, process
                    console.print(f"{job.name}: begun, see {log}")
            time.sleep(0.2)
            if stop.requested and not terminated:
                for _, process in running.values():
                    process.terminate()  # the run saves after its current step
                terminated = True
            for slot, (job, process) in list(running.items()):
                if process.is_alive():
                    continue
                del running[slot]
                outcomes.add(job, process.exitcode, stopped=stop.requested)
    return outcomes.lines(stop)


@contextlib.contextmanager
def _one_gpu(slot: int, device: Device) -> Iterator[None]:
    """Let processes started inside see only GPU number `slot` of those that this process sees.

    They also ignore Ctrl-C, which a terminal sends to them as well: this process stops them.
    """
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch_device(device).type == "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = before.split(",")[slot] if before else str(slot)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)


def _run_alone(plugins: Sequence[str], job: bytes, processes: int, log: Path) -> None:
    """Execute a pickled run in a process of its own, with its share of the cores."""
    _end_with_parent()
    threads = max(1, torch.get_num_threads() // processes)
    execute(plugins, job, log, threads=threads, processes=processes)


def _end_with_parent() -> None:
    """End this process when the campaign that started it has ended for any reason.

    Otherwise its run would keep the folder locked for hours, and the same command could not resume.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def execute(plugins: Sequence[str], job: bytes, log: Path, *, threads: int, processes: int) -> None:
    """Execute a pickled run in this process, which then ends with the run's exit status.

    All output is appended to `log`. `threads` compute here; `processes` share this machine.

    Raises:
        SystemExit: The run failed; BUSY if another process holds it.
    """
    with (
        log.open("a", buffering=1, encoding="utf-8", errors="replace") as opened,
        # A full disk must not end training for its log.
        contextlib.redirect_stdout(cast(TextIO, SafeStream(opened))) as file,
        contextlib.redirect_stderr(file),
    ):
        try:
            for name in plugins:
                load_plugin(name)
            run: Job = pickle.loads(job)
            torch.set_num_threads(threads)
            machine = run.evaluation.machine
            if machine.workers is None:
                machine = replace(machine, workers=default_workers(machine.device, processes))
                run = replace(run, evaluation=replace(run.evaluation, machine=machine))
            run.run(Console(file=file, width=100, markup=False, highlight=False))
        except Busy:
            sys.exit(BUSY)
        except UserError as error:
            print(" ".join(str(error).split()))
            sys.exit(2)
        except Exception as error:
            traceback.print_exc()
            if fault := fault_in_plugin(error):  # the run's last line is the campaign's message
                print(fault)
            sys.exit(1)
