"""Cases of bad input as a table: what is typed, the exit status, and the words of the answer."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

FORKED = Path(__file__).parent / "forked.py"
TWO_LINES = 240  # characters; what a terminal of usual width shows on two lines, and a little


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        status: Exit status; negative for the signal that ended it.
        out: Standard output.
        error: Standard error.
        hung: Whether it had to be killed at its time limit.
        memory: MiB of resident memory beyond what the imports take.
    """

    status: int
    out: str
    error: str
    hung: bool
    memory: int


@dataclass(frozen=True)
class Case:
    """A command line and its expected end.

    Attributes:
        name: Name of the case, shown by pytest.
        command: What follows `burn`, split as a shell does, run in the case's own folder. `{name}`
            is replaced by a sample's path.
        words: Parts of the last line on standard error.
        status: Expected exit status.
        prepare: Makes the case's files; receives its folder and the samples.
        environment: Variables to set, or to remove where the value is None.
        seconds: Time limit; generous, as machines are loaded.
        memory: Limit in MiB of what the command may take beyond the imports.
        unprivileged: Whether permission bits hold even for root.
        descriptors: Limit of open files, or None.
        file_size: Limit in bytes of any file that is written, as on a full disk, or None.
        lost: Where `stdout` or `stderr` go instead of a file: `/dev/full`, or `pipe` for a pipe
            whose reader has left.
        signal: A signal's number, and the file in the case's folder that, once it has a line, the
            signal is sent after.
        check: Looks at the folder and the outcome afterwards.
    """

    name: str
    command: str | Sequence[str]
    words: Sequence[str] = ()
    status: int = 2
    prepare: Callable[[Path, Mapping[str, Path]], object] | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    seconds: float = 120
    memory: int = 1500
    unprivileged: bool = False
    descriptors: int | None = None
    file_size: int | None = None
    lost: Mapping[str, str] = field(default_factory=dict)
    signal: tuple[int, str] | None = None
    check: Callable[[Path, Outcome], object] | None = None

    def __str__(self) -> str:
        return self.name


class Server:
    """Runs commands, each in a fork of a process that has imported everything."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(FORKED)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self._answer() == {"ready": True}

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, case: Case, folder: Path, samples: Mapping[str, Path]) -> Outcome:
        """Prepare and run one case in `folder`, an empty one."""
        return self.run_copies(case, folder, samples, 1)[0]

    def run_copies(
        self, case: Case, folder: Path, samples: Mapping[str, Path], count: int
    ) -> list[Outcome]:
        """As `run`, with `count` processes of the same command at the same time."""
        if case.prepare:
            case.prepare(folder, samples)
        words = shlex.split(case.command) if isinstance(case.command, str) else case.command
        files = [
            {"stdout": str(folder / f".stdout{n}"), "stderr": str(folder / f".stderr{n}")}
            for n in range(count)
        ]
        request = {
            "arguments": [w.format_map(samples) if "{" in w else w for w in words],
            "folder": str(folder), "copies": [{**file, **case.lost} for file in files],
            "environment": dict(case.environment), "seconds": case.seconds,
            "memory": case.memory, "unprivileged": case.unprivileged,
            "descriptors": case.descriptors, "file_size": case.file_size, "signal": case.signal,
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        outcomes = []
        for answer, file in zip(self._answer(), files, strict=True):
            out, error = (_text(Path(file[name])) for name in ("stdout", "stderr"))
            outcomes.append(Outcome(answer["status"], out, error, answer["hung"], answer["memory"]))
        return outcomes

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or '"the server has ended"')


def _text(file: Path) -> str:
    return file.read_text("utf-8", "backslashreplace") if file.is_file() else ""


def check(case: Case, server: Server, folder: Path, samples: Mapping[str, Path]) -> Outcome:
    """Run a case and assert that it ended as the table says."""
    outcome = server.run(case, folder, samples)
    said = f"\nstatus {outcome.status}\n{outcome.out[-2000:]}\n{outcome.error[-4000:]}"
    assert not outcome.hung, f"it did not end{said}"
    assert "Traceback" not in outcome.error, said
    assert outcome.status == case.status, said
    lines = outcome.error.strip().splitlines()
    last = lines[-1] if lines else ""
    for word in case.words:
        assert word in last, f"{word!r} is not in the last line{said}"
    if case.status == 2:
        assert len(last.replace(str(folder), "")) <= TWO_LINES, f"a long message{said}"
        assert last.isprintable(), f"control characters{said}"
    if case.check:
        case.check(folder, outcome)
    return outcome
