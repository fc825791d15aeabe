"""Facts about machines that tell less than a usual Linux does, or nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import burn
import tiny
from burn.runtime import hardware


def failing(error: OSError) -> Callable[..., Any]:
    def read(*_: object, **__: object) -> Any:
        raise error

    return read


def saying(text: str) -> Callable[..., Any]:
    return lambda *_, **__: text


MACHINES = {
    "without /proc": failing(FileNotFoundError(errno.ENOENT, "No such file or directory")),
    "with a closed /proc": failing(PermissionError(errno.EACCES, "Permission denied")),
    "with a broken /proc": failing(OSError(errno.EIO, "Input/output error")),
    "with an empty /proc": saying(""),
    "with another /proc": saying("x: y\n\nmodel name\nz"),
}


@pytest.fixture(params=MACHINES, ids=str)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Answers each read below /proc and /sys, and none of other files.

    Returns:
        The machine's name.
    """
    answer, read = MACHINES[request.param], Path.read_text

    def read_text(self: Path, *arguments: Any, **named: Any) -> str:
        own = self.parts[:2] in (("/", "proc"), ("/", "sys"))
        return answer() if own else read(self, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", read_text)
    return request.param


@pytest.mark.usefixtures("machine")
def test_every_fact_has_an_answer():
    assert hardware.processor()
    assert hardware.is_intel() in (False, True)
    assert hardware.cores() >= 1
    memory = hardware.memory_bytes()
    assert memory is None or memory > 2**20
    assert hardware.resident_bytes() > 2**20


def test_a_system_without_these_calls_has_an_answer(monkeypatch: pytest.MonkeyPatch):
    """As on Windows and macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert hardware.cores() >= 1
    assert hardware.memory_bytes() is None
    assert hardware.resident_bytes() > 2**20


def test_a_run_and_its_evaluation(machine: str, teacher: Path, tmp_path: Path):
    """It is evaluated where reading fails, and where it gives something else."""
    data = tiny.some_digits(tmp_path, 64)
    run = burn.pretrain(
        replace(tiny.student_recipe(), stages=1), data=data, teacher=teacher,
        out=tmp_path / "run", max_steps=1, workers=0, progress=False,
    )  # fmt: skip
    if machine in ("without /proc", "with another /proc"):
        found = burn.evaluate("knn", run.backbone, train=data, test=data, progress=False)
        assert 0 <= found["top1"] <= 100
