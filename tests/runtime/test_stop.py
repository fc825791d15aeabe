"""The first Ctrl-C is answered at once, the second one stops at once."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from burn.runtime.signals import StopRequest

ANSWER = "finishing this step and saving; press Ctrl-C again to stop now"

# `WORK` is done up to a hundred times, until a signal asks to stop.
PROGRAM = """
import hashlib, os, signal, time
from burn.runtime.signals import StopRequest

stop = StopRequest("finishing this step and saving")
with stop.installed():
    print("ready", flush=True)
    for _ in range(10_000):
        WORK
        if stop.requested:
            break
    print("stopped by", stop.number, flush=True)
"""
PROMPT = PROGRAM.replace("WORK", "time.sleep(0.01)")
NEVER = PROGRAM.replace("WORK", "time.sleep(0.01); continue")


def busy(iterations: int) -> str:
    """Works without a Python instruction in between, as a backward pass may, for 0.3 µs each."""
    return PROGRAM.replace("WORK", f"hashlib.pbkdf2_hmac('sha256', b'', b'', {iterations})")


def _hear_ctrl_c() -> None:
    """Even where the tests themselves were started in the background, to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(code: str, **options) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=_hear_ctrl_c, **options,  # noqa: PLW1509 - it takes no lock
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_the_first_ctrl_c_is_answered_on_stderr():
    process = start(PROMPT, stderr=subprocess.PIPE)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert output == f"stopped by {signal.SIGINT:d}\n"
    assert errors == f"{ANSWER}\n"
    assert process.returncode == 0


def test_the_answer_comes_while_the_main_thread_is_busy():
    """Python itself calls no handler inside one long call."""
    process = start(busy(2_000_000_000), stderr=subprocess.PIPE)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == f"{ANSWER}\n"
    assert process.poll() is None
    process.kill()
    process.communicate()


@pytest.mark.parametrize("code", [NEVER, busy(3_000_000)], ids=["between", "in one call"])
def test_a_second_ctrl_c_stops_at_once(code: str):
    """Where both come in one call, Python calls the handler once."""
    process = start(code, stderr=subprocess.PIPE)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert process.stderr.readline() == f"{ANSWER}\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert "KeyboardInterrupt" in errors
    assert ANSWER not in errors
    assert "stopped by" not in output


def test_sigterm_and_a_process_that_ignores_ctrl_c_are_not_answered():
    process = start(PROMPT, stderr=subprocess.PIPE)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate()
    assert (output, errors) == (f"stopped by {signal.SIGTERM:d}\n", "")
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{PROMPT}"
    process = start(ignoring, stderr=subprocess.PIPE)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert (output, errors) == (f"stopped by {signal.SIGINT:d}\n", "")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_several_processes_the_first_answers(rank: str):
    process = start(PROMPT, stderr=subprocess.PIPE, env={**os.environ, "RANK": rank})
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert output == f"stopped by {signal.SIGINT:d}\n"
    assert errors == (f"{ANSWER}\n" if rank == "0" else "")


def test_a_closed_stderr_is_not_answered_into_another_file(tmp_path: Path):
    """Which gets the number of the stream that was closed."""
    victim = tmp_path / "weights"
    code = f"kept = open({str(victim)!r}, 'w')\nassert kept.fileno() == 2\n{PROMPT}"
    command = f'exec {sys.executable} -c "$CODE" 2>&-'
    process = subprocess.Popen(
        ["sh", "-c", command], env={**os.environ, "CODE": code}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert output == f"stopped by {signal.SIGINT:d}\n"
    assert victim.read_bytes() == b""


def test_on_a_terminal_the_line_of_a_progress_bar_is_erased_first():
    ours, theirs = pty.openpty()
    process = start(PROMPT, stderr=theirs)
    os.close(theirs)
    process.send_signal(signal.SIGINT)
    process.communicate()
    shown = os.read(ours, 1000).decode()
    os.close(ours)
    assert shown.startswith(f"\r\x1b[2K{ANSWER}\r")


def test_it_ends_though_a_forked_process_lives_on():
    """As those do that load images; their signals are not this process's."""
    code = """
import os, signal, time
from burn.runtime.signals import StopRequest
stop = StopRequest()
with stop.installed():
    print("ready", flush=True)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGINT, lambda *_: os._exit(7))
        time.sleep(100)
    time.sleep(0.3)
    os.kill(child, signal.SIGINT)
    _, status = os.waitpid(child, 0)
    print("requested", stop.requested, stop._presses, os.waitstatus_to_exitcode(status), flush=True)
    lasting = os.fork()
    if not lasting:
        time.sleep(100)
        os._exit(0)
print("left", flush=True)
os.kill(lasting, signal.SIGKILL)
os.waitpid(lasting, 0)
"""
    process = start(code, stderr=subprocess.PIPE)
    output, errors = process.communicate()
    assert (output, errors) == ("requested False 0 7\nleft\n", "")


def test_handlers_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest().installed():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
