"""Processes that load images: their deaths are one line, and they end with who started them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import commands
import pytest
from commands import descendants, started, wait_for_step

from burn.data.workers import _say_unless_left
from warm import Command

pytestmark = pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="Linux's /proc")


def workers(process: Command, count: int) -> list[int]:
    """Its data-loader workers, once there are so many."""
    deadline = time.monotonic() + 250
    while True:
        found = []
        for child in descendants(process.pid):
            with suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().strip() == "pt_data_worker":
                    found.append(child)
        if len(found) >= count:
            return found
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < deadline, "its workers do not come"
        time.sleep(0.05)


def evaluating(teacher: Path, out: Path) -> list[str]:
    """Linear evaluation with two workers that takes a while."""
    data = ["--train=digits", "--test=digits", "--device=cpu", "--workers=2", f"--out={out}"]
    return ["evaluate", "linear", str(teacher), *data, "--epochs=1000"]


def in_one_line(process: Command) -> None:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 2, output
    assert "Traceback" not in output, output
    assert "burn: a data-loader worker died" in output.strip().splitlines()[-1], output


def test_a_worker_that_dies_in_training_is_one_line(teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    with started(commands.command(teacher, out, "--max-steps=400")) as process:
        wait_for_step(process, out, 2)
        os.kill(workers(process, 1)[0], signal.SIGKILL)
        in_one_line(process)


def test_a_worker_that_dies_in_evaluation_is_one_line(teacher: Path, tmp_path: Path):
    with started(evaluating(teacher, tmp_path / "evaluated")) as process:
        os.kill(workers(process, 2)[1], signal.SIGKILL)
        in_one_line(process)


def test_workers_end_in_silence_with_an_evaluation(teacher: Path, tmp_path: Path):
    with started(evaluating(teacher, tmp_path / "evaluated")) as process:
        theirs = workers(process, 2)
        time.sleep(1)  # in the middle of batches
        process.terminate()
        output, _ = process.communicate(timeout=200)  # until the workers have closed it, too
        assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), output
        assert "Traceback" not in output, output
        assert "Error" not in output, output
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{worker}").exists() for worker in theirs):
            assert time.monotonic() < deadline, "a worker is still there"
            time.sleep(0.05)


def test_a_worker_says_nothing_of_a_main_process_that_has_left(capsys: pytest.CaptureFixture[str]):
    """Its thread that hands batches over may be in the middle of one."""
    for error in (ConnectionResetError(104, "reset"), BrokenPipeError(), EOFError()):
        _say_unless_left(type(error), error, None)
    assert capsys.readouterr().err == ""
    _say_unless_left(ValueError, ValueError("a fault"), None)
    assert "ValueError: a fault" in capsys.readouterr().err
