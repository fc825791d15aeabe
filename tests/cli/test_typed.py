"""A command that a message suggests can be typed as it is, whatever the names in it are."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

import tiny
from burn.cli.main import main
from burn.core.errors import typed

NAMES = [
    "plain", "two words", "it's", "new\nline", "tab\there", "a  b", 'quote"$HOME`x`', "über",
    "back\\slash", "esc\x1b[31m", os.fsdecode(b"no\xfftext"), "n" * 150 + "/" + "m" * 150,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_shell_reads_the_words_again(name: str):
    command = typed(["printf", "%s|", "--out", name])
    assert command.isprintable()
    found = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert found.stdout == b"--out|" + os.fsencode(name) + b"|"


@pytest.mark.parametrize("name", ["new\nline", "a  b", "n" * 150 + "/" + "m" * 150], ids=ascii)
def test_the_command_that_resumes_a_run_is_neither_shortened_nor_cleaned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    out = tmp_path / name
    tiny.stop_at(monkeypatch, 1)
    arguments = [f"--out={out}", "--data=digits", "--recipe=demo_teacher", "--max-steps=2"]
    assert main(["pretrain", *arguments, "--workers=0"]) == 128 + signal.SIGINT
    last = capfd.readouterr().err.rstrip("\n").splitlines()[-1]
    assert last.startswith("burn: stopped and saved at step 1 of 2 in stage 1; resume with: burn")
    command = last.partition("resume with: burn ")[2]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True
    )
    assert words.stdout.decode().split("\0")[:4] == ["pretrain", "--resume", "--out", str(out)]
