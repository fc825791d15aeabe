"""The runs of a campaign as tasks of an existing Ray cluster: `burn compare --cluster auto`.

Ray chooses the node of each run, gives it its cores and GPU, and starts it again on another node if
its own is lost. The task only watches over a process, `python -m burn.campaigns.cluster`, in which
the run is executed as on one machine: its output goes to the same log, and it resumes from what the
lost one had saved. All nodes must see the campaign's folder and the images at the same paths.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from burn.campaigns.jobs import Job
from burn.campaigns.workers import Outcomes, execute, log_of
from burn.core.errors import UserError
from burn.core.files import write_text
from burn.core.inputs import read_text
from burn.core.plugins import imports
from burn.runtime.cluster import Origin, Share, share_of
from burn.runtime.hardware import cores as cores_here
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
    outcomes = Outcomes(console)
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
                    ended = ""
                except RayError as error:
                    ended = _last_line(error)
                outcomes.add(job, ended, stopped=stop.requested and not job.done)
    return outcomes.lines(stop)


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


def watch_over(task: Task) -> int | str:
    """Execute a run in a process of its own here; return its status, or why it was not started.

    This is the task that Ray runs. Ray cancels it by KeyboardInterrupt, after which the run saves
    and ends. If this process ends in another way, so does the run's.
    """
    import ray

    node = socket.gethostname()
    try:
        task.origin.check()
    except UserError as error:
        return f"node {node}: {error}"
    # The time tells two beginnings on one node from each other.
    write_text(task.begun, f"{node} {ray.get_runtime_context().get_node_id()} {time.time()}")
    given = pickle.dumps((task.plugins, task.job, task.cores, task.log))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "burn.campaigns.cluster"],
        stdin=subprocess.PIPE,
        cwd=task.origin.folder,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # its status tells
            process.stdin.write(struct.pack("<Q", len(given)) + given)
            process.stdin.flush()
        return _wait(process)
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


def main() -> None:
    """Execute the run that standard input describes.

    When that is closed, `watch_over` has ended, and so does this process: otherwise the run would
    keep its folder locked, and could not resume on another node.
    """
    (length,) = struct.unpack("<Q", _read(8))
    plugins, job, share, log = pickle.loads(_read(length))
    threading.Thread(target=_end_with_starter, daemon=True).start()
    execute(plugins, job, log, threads=share, processes=max(1, cores_here() // share))


def _read(length: int) -> bytes:
    received = b""
    while len(received) < length:
        part = os.read(0, length - len(received))
        if not part:
            sys.exit(1)
        received += part
    return received


def _end_with_starter() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
