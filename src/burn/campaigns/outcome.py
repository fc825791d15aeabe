"""How a run that was executed in a process of its own has ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from burn.campaigns.jobs import Job
from burn.core.errors import listed
from burn.core.inputs import read_end

_LAST_WORDS = 1 << 16  # bytes of a log that hold a run's last line
BUSY = 75  # exit status if another burn holds the run: "temporary failure" in sysexits


def log_of(job: Job) -> Path:
    """Return the file for a run's output, which is made if it is not there."""
    log = job.out / "logs" / f"{job.name}.txt"
    log.parent.mkdir(exist_ok=True)
    log.touch()
    return log


def failure(job: Job, code: int) -> str:
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


def still_busy(jobs: Sequence[Job]) -> list[str]:
    """Return a line for the runs that another campaign in the folder has not finished either."""
    names = [job.name for job in jobs if not job.done]
    if not names:
        return []
    return [
        f"{listed(names, 1)}: another burn process is using it; when that has ended, the same "
        "command finishes the rest"
    ]
