"""Executes the runs of a campaign, one after the other or several at once in processes."""

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
from burn.campaigns.outcome import BUSY, failure, log_of, still_busy
from burn.core.errors import Interrupted, UserError
from burn.core.files import Busy
from burn.core.plugins import fault_in_plugin, imports, load_plugin
from burn.runtime.compute import Device, default_workers, torch_device
from burn.runtime.signals import StopRequest
from burn.runtime.streams import SafeStream


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


def _one_by_one(jobs: Sequence[Job], console: Console) -> list[str]:
    failed, busy = list[str](), list[Job]()
    for job in jobs:
        if job.done:  # another command may have done it meanwhile
            continue
        try:
            job.run(console)
        except Interrupted:
            raise
        except Busy:
            busy.append(job)
            console.print(f"{job.name}: skipped, another burn process is using it")
        except Exception as error:
            fault = str(error) if isinstance(error, UserError) else fault_in_plugin(error)
            if fault is None:
                raise
            failed.append(f"{job.name}: {fault}")
            console.print(failed[-1], style="bold red")
    return failed + still_busy(busy)


def _side_by_side(jobs: Sequence[Job], processes: int, console: Console) -> list[str]:
    context = multiprocessing.get_context("spawn")
    waiting, failed, busy = list(jobs), list[str](), list[Job]()
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
                why = failure(job, process.exitcode)
                outcome = "done"
                if stop.requested:
                    outcome = "stopped"
                elif process.exitcode == BUSY:
                    outcome = "skipped, another burn process is using it"
                elif why:
                    outcome = "failed"
                if process.exitcode == BUSY:
                    busy.append(job)
                elif why and (process.exitcode or not stop.requested):
                    failed.append(f"{job.name}: {why}")
                console.print(f"{job.name}: {outcome}")
    if stop.requested:
        raise Interrupted(
            "stopped; unfinished runs are saved, and the same command resumes them", stop.number
        )
    return failed + still_busy(busy)


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
    with log.open("a", buffering=1, encoding="utf-8", errors="replace") as opened:
        file = cast(TextIO, SafeStream(opened))  # a full disk must not end training for its log
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            _run_logged(plugins, job, threads, processes, file)


def _run_logged(
    plugins: Sequence[str], pickled: bytes, threads: int, processes: int, file: TextIO
) -> None:
    try:
        for name in plugins:
            load_plugin(name)
        job: Job = pickle.loads(pickled)
        torch.set_num_threads(threads)
        machine = job.evaluation.machine
        if machine.workers is None:
            machine = replace(machine, workers=default_workers(machine.device, processes))
            job = replace(job, evaluation=replace(job.evaluation, machine=machine))
        job.run(Console(file=file, width=100, markup=False, highlight=False))
    except Busy:
        sys.exit(BUSY)
    except UserError as error:
        print(" ".join(str(error).split()), file=file)
        sys.exit(2)
    except Exception as error:
        traceback.print_exc(file=file)
        if fault := fault_in_plugin(error):  # the last line is the run's in the campaign's message
            print(fault, file=file)
        sys.exit(1)
