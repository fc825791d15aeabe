"""The runs of a campaign as tasks of an existing Ray cluster: `burn compare --cluster auto`.

Ray chooses the node of each run, gives it its cores and GPU, and starts it again on another node if
its own is lost. The task only watches over a process of its own, in which the run is executed as on
one machine: its output goes to the same log, and it resumes from what the lost one had saved. All
nodes must see the campaign's folder and the images at the same paths.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from burn.campaigns.jobs import Job
from burn.campaigns.outcome import failure, is_busy, log_of, logs_of, still_busy
from burn.core.errors import Interrupted, UserError
from burn.core.files import write_text
from burn.core.inputs import read_text
from burn.core.plugins import imports
from burn.runtime.cluster import Share, share_of
from burn.runtime.signals import StopRequest

_TOKEN = ".cluster"  # file in logs/ by which a node sees that the folder is the driver's


@dataclass(frozen=True)
class Task:
    """A run as a node receives it.

    Attributes:
        plugins: Plugins to load before `job`.
        job: The pickled job.
        name: Name of the run.
        log: File for its output.
        begun: File into which the node writes its name when the run begins there.
        folder: Working directory of the campaign.
        token: Content of the token file beside the log.
        version: Version of burn that began the campaign.
        cores: Number of threads.
    """

    plugins: tuple[str, ...]
    job: bytes
    name: str
    log: Path
    begun: Path
    folder: Path
    token: str
    version: str
    cores: int


@dataclass(frozen=True)
class Ended:
    """How a run ended on a node.

    Attributes:
        code: Exit status of its process, or None if it was not started.
        why: Why it was not started.
    """

    code: int | None
    why: str = ""


def run_on_cluster(jobs: Sequence[Job], cores: int | None, console: Console) -> list[str]:
    """Train and evaluate the runs that are not done yet, on the cluster that was joined.

    Args:
        jobs: The runs.
        cores: Number of cores of each run; None lets `share_of` choose.
        console: Console for progress.

    Returns:
        A line for each run that failed or is held by another process.

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
    some = "a core" if share.cores == 1 else f"{share.cores} cores"
    console.print(
        f"{len(waiting)} run{'s' * (len(waiting) > 1)} on a cluster of {len(nodes)} "
        f"node{'s' * (len(nodes) > 1)}, each with {some}{' and a GPU' if share.gpus else ''}"
    )
    make = _tasks(waiting[0].out, share)
    # Nothing is retried but what was lost with its node: a run that fails ends with a status.
    watch: Any = ray.remote(num_cpus=share.cores, num_gpus=share.gpus, max_retries=-1)(watch_over)
    failed, busy = list[str](), list[Job]()
    stop = StopRequest("saving the runs")
    told = False
    with stop.installed():
        tasks = {job.name: make(job) for job in waiting}
        running = {watch.remote(tasks[job.name]): job for job in waiting}
        begun = dict.fromkeys(tasks, "")
        while running:
            ready, _ = ray.wait(list(running), num_returns=1, timeout=0.5)
            for job in running.values():
                _announce(job, tasks[job.name], begun, console)
            if stop.requested and not told:
                for reference in running:
                    ray.cancel(reference)
                told = True
            for reference in ready:
                job = running.pop(reference)
                try:
                    ended = ray.get(reference)
                except TaskCancelledError:
                    ended = Ended(None)
                except RayError as error:
                    ended = Ended(None, _first_line(error))
                why = ended.why if ended.code is None else failure(job, ended.code)
                outcome = "done"
                if stop.requested and not job.done:
                    outcome = "stopped"
                elif is_busy(ended.code):
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


def _tasks(out: Path, share: Share) -> Callable[[Job], Task]:
    """Return what makes a run's task; the folder is marked for the nodes to recognize."""
    logs = logs_of(out).resolve()
    token = secrets.token_hex(8)
    write_text(logs / _TOKEN, token)

    def make(job: Job) -> Task:
        begun = logs / f".{job.name}.node"
        begun.unlink(missing_ok=True)
        return Task(
            tuple(imports()),
            pickle.dumps(job),
            job.name,
            log_of(job).resolve(),
            begun,
            Path.cwd(),
            token,
            version("burn-ssl"),
            share.cores,
        )

    return make


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


def _first_line(error: Exception) -> str:
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
    if task.version != version("burn-ssl"):
        return Ended(
            None, f"node {node} has burn {version('burn-ssl')}, the campaign's is {task.version}"
        )
    if not task.folder.is_dir():
        return Ended(None, f"node {node} has no folder {task.folder}, where the campaign was begun")
    try:
        found = read_text(task.log.parent / _TOKEN)
    except UserError:
        found = ""
    if found != task.token:
        out = task.log.parent.parent
        return Ended(
            None, f"node {node} does not see {out}: --out needs a folder that all nodes share"
        )
    # The time tells two beginnings on one node from each other.
    write_text(task.begun, f"{node} {ray.get_runtime_context().get_node_id()} {time.time()}")
    given = pickle.dumps((task.plugins, task.job, task.cores, task.log))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "burn.campaigns.on_node"],
        stdin=subprocess.PIPE,
        cwd=task.folder,
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
