"""The runs of a campaign as tasks of an existing Ray cluster: `burn compare --cluster auto`.

Ray chooses the node of each run, gives it its cores and GPU, and starts it again on another node if
its own is lost. The task only watches over a process of its own, in which the run is executed as on
one machine: its output goes to the same log, and it resumes from what the lost one had saved. All
nodes must see the campaign's folder and the images at the same paths.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from burn.campaigns.jobs import Job
from burn.campaigns.outcome import BUSY, failure, log_of, still_busy
from burn.core.errors import Interrupted, UserError
from burn.core.files import write_text
from burn.core.inputs import read_text
from burn.core.plugins import imports
from burn.runtime.cluster import Origin, Share, share_of
from burn.runtime.signals import StopRequest


@dataclass(frozen=True)
class Task:
    """A run as a node receives it."""

    plugins: tuple[str, ...]  # to load before `job`
    job: bytes  # pickled
    log: Path  # for its output
    begun: Path  # the node writes its name into this file when the run begins there
    origin: Origin  # where the campaign's command was given
    cores: int  # number of threads


@dataclass(frozen=True)
class Ended:
    """How a run ended on a node."""

    code: int | None  # exit status of its process, or None if it was not started
    why: str = ""  # why it was not started


def run_on_cluster(jobs: Sequence[Job], cores: int | None, console: Console) -> list[str]:
    """Train and evaluate the runs that are not done yet, on the cluster that was joined.

    Without `cores`, `share_of` chooses the number of each run's. A line is returned for each run
    that failed or is held by another process.

    Raises:
        UserError: The cluster cannot give a run what it needs.
        Interrupted: After a signal. Everything is saved, and the same call resumes.
    """
    import ray
    from ray.exceptions import RayError, TaskCancelledError

    waiting = [job for job in jobs if not job.done]
    if not waiting:
        return []
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    share = share_of(nodes, len(waiting), waiting[0].evaluation.machine.device, cores)
    cores_text = "a core" if share.cores == 1 else f"{share.cores} cores"
    console.print(
        f"{len(waiting)} run{'s' * (len(waiting) > 1)} on a cluster of {len(nodes)} "
        f"node{'s' * (len(nodes) > 1)}, each with {cores_text}{' and a GPU' if share.gpus else ''}"
    )
    # Nothing is retried but what was lost with its node: a run that fails ends with a status.
    watch: Any = ray.remote(num_cpus=share.cores, num_gpus=share.gpus, max_retries=-1)(watch_over)
    failed, busy = list[str](), list[Job]()
    stop = StopRequest("saving the runs")
    cancelled = False
    with stop.installed(), Origin.marked(waiting[0].out) as origin:
        tasks = {job.name: _task(job, origin, share) for job in waiting}
        running = {watch.remote(tasks[job.name]): job for job in waiting}
        begun = dict.fromkeys(tasks, "")
        while running:
            ready, _ = ray.wait(list(running), num_returns=1, timeout=0.5)
            for job in running.values():
                _announce(job, tasks[job.name], begun, console)
            if stop.requested and not cancelled:
                for reference in running:
                    ray.cancel(reference)
                cancelled = True
            for reference in ready:
                job = running.pop(reference)
                try:
                    ended = ray.get(reference)
                except TaskCancelledError:
                    ended = Ended(None)
                except RayError as error:
                    ended = Ended(None, _last_line(error))
                why = ended.why if ended.code is None else failure(job, ended.code)
                outcome = "done"
                if stop.requested and not job.done:
                    outcome = "stopped"
                elif ended.code == BUSY:
                    busy.append(job)
                    outcome = "skipped, another burn process is using it"
                elif why:
                    failed.append(f"{job.name}: {why}")
                    outcome = "failed"
                console.print(f"{job.name}: {outcome}")
    if stop.requested:
        raise Interrupted(
            "stopped; unfinished runs are saved, and the same command resumes them", stop.number
        )
    return failed + still_busy(busy)


def _task(job: Job, origin: Origin, share: Share) -> Task:
    log = log_of(job).resolve()
    begun = log.parent / f".{job.name}.node"
    begun.unlink(missing_ok=True)
    return Task(tuple(imports()), pickle.dumps(job), log, begun, origin, share.cores)


def _announce(job: Job, task: Task, begun: dict[str, str], console: Console) -> None:
    """Print on which node a run begins, or goes on."""
    try:
        place = read_text(task.begun)
    except UserError:
        return
    if place == begun[job.name]:
        return
    what = "resumes after the loss of its node, now" if begun[job.name] else "begun"
    begun[job.name] = place
    console.print(f"{job.name}: {what} on {place.split()[0]}, see {task.log}")


def _last_line(error: Exception) -> str:
    """Return the last line of Ray's message, which names the cause behind its own traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def watch_over(task: Task) -> Ended:
    """Execute a run in a process of its own on this node, and return how it ended.

    This is the task that Ray runs. Ray cancels it by KeyboardInterrupt, after which the run saves
    and ends. If this process ends in another way, so does the run's.
    """
    import ray

    node = socket.gethostname()
    try:
        task.origin.check()
    except UserError as error:
        return Ended(None, f"node {node}: {error}")
    # The time tells two beginnings on one node from each other.
    write_text(task.begun, f"{node} {ray.get_runtime_context().get_node_id()} {time.time()}")
    given = pickle.dumps((task.plugins, task.job, task.cores, task.log))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "burn.campaigns.on_node"],
        stdin=subprocess.PIPE,
        cwd=task.origin.folder,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # its status tells
            process.stdin.write(struct.pack("<Q", len(given)) + given)
            process.stdin.flush()
        return Ended(_wait(process))
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process, and forward the first KeyboardInterrupt as SIGTERM."""
    while True:
        try:
            # An interrupt by Ray arrives between two instructions, not in a long wait.
            while (code := process.poll()) is None:
                time.sleep(0.1)
            return code
        except KeyboardInterrupt:
            process.terminate()
