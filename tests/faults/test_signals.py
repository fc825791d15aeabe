"""SIGTERM saves and ends within half a minute; a process that dies takes the others with it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import time
from pathlib import Path

import commands
import pytest
from commands import ranks, run, started, wait_for_step

from warm import Command


def end(process: Command) -> tuple[int, str, float]:
    """Exit status, output, and seconds until then."""
    asked = time.monotonic()
    output, _ = process.communicate(timeout=100)
    return process.returncode, output, time.monotonic() - asked


@pytest.mark.parametrize(
    ("devices", "whom"),
    [
        pytest.param(1, "process", marks=pytest.mark.long),
        pytest.param(2, "launcher", marks=pytest.mark.long),
        pytest.param(2, "one rank", marks=pytest.mark.long),
        (1, "process group"),
    ],
)
def test_sigterm_saves_and_exits_with_its_code(
    devices: int, whom: str, teacher: Path, tmp_path: Path
):
    out = tmp_path / "run"
    arguments = commands.command(teacher, out, f"--devices={devices}", "--max-steps=400")
    with started(arguments) as process:
        wait_for_step(process, out, 3)
        if whom == "process group":  # the processes that load images too, as a cluster does it
            os.killpg(process.pid, signal.SIGTERM)
        else:
            os.kill(ranks(process.pid)[1] if whom == "one rank" else process.pid, signal.SIGTERM)
        status, output, seconds = end(process)
    assert status == 128 + signal.SIGTERM, output
    assert seconds < 30
    assert output.count("stopped and saved at step") == 1
    assert "Traceback" not in output
    assert "resume with: burn pretrain --resume --out" in output
    assert (out / "stage1" / "resume.ckpt").is_file()


@pytest.mark.long
def test_interrupt_exits_with_its_code(teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    with started(commands.command(teacher, out)) as process:
        wait_for_step(process, out, 2)
        process.send_signal(signal.SIGINT)
        status, output, _ = end(process)
    assert status == 128 + signal.SIGINT, output
    assert output.count("finishing this step and saving; press Ctrl-C again to stop now\n") == 1
    last = output.strip().splitlines()[-1]
    assert last.startswith("burn: stopped and saved at step")
    words = shlex.split(last.partition("resume with: ")[2])
    assert words[:5] == ["burn", "pretrain", "--resume", "--out", str(out)]
    # What belongs to the machine is typed again; the recipe is known.
    assert words[5:] == ["--device", "cpu", "--workers", "1", "--monitor-every", "1"]


def test_two_processes_end_with_success_and_one_summary(teacher: Path, tmp_path: Path):
    status, output = run(commands.command(teacher, tmp_path / "run", "--devices=2", "--stages=1"))
    assert status == 0, output
    assert output.count("stage 1 binary: ") == 1, output


@pytest.mark.long
def test_a_rank_that_dies_ends_the_others_and_they_go_on_together(teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    arguments = commands.command(teacher, out, "--devices=2", "--max-steps=12", "--save-every=0")
    with started([*arguments]) as process:
        wait_for_step(process, out, 3)
        os.kill(ranks(process.pid)[1], signal.SIGKILL)
        status, output, seconds = end(process)
        assert not commands.descendants(process.pid)
    assert status == 128 + signal.SIGKILL, output
    assert seconds < 60
    assert "process 1 of 2 was ended by SIGKILL" in output
    assert "Traceback" not in output
    status, output = run(arguments)
    assert status == 0, output
    assert output.count("stage 2 binary: ") == 1, output


@pytest.mark.long
def test_the_processes_end_with_their_launcher(teacher: Path, tmp_path: Path):
    out = tmp_path / "run"
    arguments = commands.command(teacher, out, "--devices=2", "--max-steps=400")
    with started(arguments) as process:
        wait_for_step(process, out, 2)
        members = list(ranks(process.pid).values())
        assert len(members) == 2
        process.kill()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{member}").exists() for member in members):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--batch-size=63", "cannot be shared by 2 processes"),
        pytest.param("--teacher=nowhere", "nowhere", marks=pytest.mark.long),
    ],
)
def test_an_error_of_every_process_is_said_once(
    option: str, words: str, teacher: Path, tmp_path: Path
):
    """And its exit status is the command's."""
    arguments = commands.command(teacher, tmp_path / "run", "--devices=2")
    status, output = run([*arguments, option])
    assert status == 2
    assert output.count("burn: ") == 1, output
    assert words in output


def in_two(arguments: list[str], moment: str) -> list[tuple[int, str]]:
    """Exit status and output of each of two processes, as torchrun starts them."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with (
        started(arguments, moment, RANK="0", LOCAL_RANK="0", **names) as first,
        started(arguments, moment, RANK="1", LOCAL_RANK="1", **names) as second,
    ):
        return [end(process)[:2] for process in (first, second)]


@pytest.mark.long
def test_an_error_of_one_rank_ends_the_other_without_a_traceback(teacher: Path, tmp_path: Path):
    arguments = commands.command(teacher, tmp_path / "run")
    (status, output), (other, own) = in_two(arguments, "rank 1 finds no data")
    assert (status, other) == (2, 2), output + own
    assert "burn (process 1): no data on this machine" in own
    assert "another of 2 processes has ended" in output
    assert ".cc:" not in output  # gloo's place of the error
    assert "Traceback" not in output + own


def test_a_loss_that_is_not_finite_in_one_rank_stops_both_and_is_named(
    teacher: Path, tmp_path: Path
):
    arguments = commands.command(teacher, tmp_path / "run", "--max-steps=6")
    (status, output), (other, own) = in_two(arguments, "rank 1 loses its numbers:3")
    assert (status, other) == (2, 2), output + own
    assert "stopped at step 3: " in output
    assert "kl is inf" in output
    assert "the gradient of student backbone" in output
    assert "burn" not in own


@pytest.mark.long
def test_a_step_is_left_out_by_both_ranks(teacher: Path, tmp_path: Path):
    arguments = commands.command(
        teacher, tmp_path / "more", "--max-steps=6", "--on-nonfinite=skip:1", "--stages=1"
    )
    for status, output in in_two(arguments, "rank 1 loses its numbers:3"):
        assert status == 0, output
