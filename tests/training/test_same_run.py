"""What ends a run orderly, and what a resumed run, or one beside another, keeps of it."""

import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import tiny
from burn.core.errors import Interrupted, UserError
from burn.core.types import Batch
from burn.data.dataset import DatasetSource
from burn.evaluation.checks import check_sources
from burn.learning.resume_files import ResumeFiles
from burn.methods.base import StepOutput
from burn.methods.simclr.method import Simclr
from burn.runtime.random_state import sole_use
from burn.runtime.signals import StopRequest, ending_signals, interrupted, signals_raise
from burn.training.pretraining import Pretraining

OTHERS = [
    getattr(signal, name)
    for name in ("SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
RECIPE = replace(tiny.teacher_recipe(), epochs=1, batch_size=256)


@pytest.fixture(autouse=True)
def default_actions() -> Iterator[None]:
    """Whoever runs the tests may ignore signals, as nohup does."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in OTHERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def in_step(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> None:
    """Do something while the loss of a step, counted from 1, is computed."""
    forward, steps = Pretraining.forward, count(1)

    def doing(self: Pretraining, batch: Batch, progress: float) -> torch.Tensor:
        if next(steps) == number:
            do()
        return forward(self, batch, progress)

    monkeypatch.setattr(Pretraining, "forward", doing)


@pytest.mark.parametrize("number", [signal.SIGTERM, *OTHERS], ids=lambda one: one.name)
def test_every_signal_that_ends_a_process_is_a_request_to_stop(number: signal.Signals):
    """What a training makes of a request is the same for each, and tested below."""
    stop = StopRequest()
    with stop.installed():
        os.kill(os.getpid(), number)
        assert (stop.requested, stop.number) == (True, number)
    assert signal.getsignal(number) == signal.SIG_DFL, "as it was before"


@pytest.mark.parametrize("number", OTHERS[-1:], ids=lambda one: one.name)
def test_a_signal_that_ends_a_process_leaves_a_resume_file(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    in_step(monkeypatch, 2, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted, match="stopped and saved at step 2 of 4") as raised:
        tiny.train(RECIPE, tmp_path / "run")
    assert raised.value.number == number
    assert ResumeFiles(tmp_path / "run" / "stage1", "").newest.is_file()
    assert signal.getsignal(number) == signal.SIG_DFL, "as it was before"


@pytest.mark.parametrize("number", OTHERS, ids=lambda one: one.name)
def test_work_without_steps_ends_with_the_signals_status(number: signal.Signals):
    with pytest.raises(KeyboardInterrupt) as raised, signals_raise():
        os.kill(os.getpid(), number)
    assert interrupted("stopped", raised.value).number == number


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["nohup", "own"])
@pytest.mark.parametrize("number", OTHERS, ids=lambda one: one.name)
def test_signals_that_the_caller_ignores_or_handles_are_left_alone(
    number: signal.Signals, handler: Callable[..., object]
):
    assert number in ending_signals()
    before = signal.signal(number, handler)
    try:
        assert number not in ending_signals()
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(("began", "here"), [(True, False), (False, True)])
def test_a_resumed_run_keeps_the_number_format_that_auto_meant(
    began: bool, here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = replace(RECIPE, compute="auto")
    formats: list[torch.dtype] = []
    forward = Simclr.forward

    def remember(self: Simclr, batch: Batch, progress: float) -> StepOutput:
        enabled = torch.is_autocast_enabled("cpu")
        formats.append(torch.get_autocast_dtype("cpu") if enabled else torch.float32)
        return forward(self, batch, progress)

    monkeypatch.setattr(Simclr, "forward", remember)
    monkeypatch.setattr("burn.training.run.uses_bfloat16", lambda *_: began)
    tiny.train(recipe, tmp_path / "run", max_steps=1)
    monkeypatch.setattr("burn.training.run.uses_bfloat16", lambda *_: here)
    said = io.StringIO()
    console = Console(file=said, width=200)
    tiny.train(recipe, tmp_path / "run", max_steps=2, resume=True, console=console)
    assert formats == [torch.bfloat16 if began else torch.float32] * 2
    names = ["bfloat16" if one else "float32" for one in (began, here)]
    line = "goes on in {}, in which it began; this machine would choose {}".format(*names)
    assert line in said.getvalue()
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["resolved"] == {"compute": names[0], "device": "cpu"}


def test_a_second_training_in_a_thread_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    refusals: list[UserError] = []

    def second() -> None:
        try:
            tiny.train(RECIPE, tmp_path / "second", max_steps=1)
        except UserError as error:
            refusals.append(error)

    def begin() -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    in_step(monkeypatch, 1, begin)
    tiny.train(RECIPE, tmp_path / "first", max_steps=1)
    (refusal,) = refusals
    assert "training cannot begin while another thread of this process trains" in str(refusal)
    assert not (tmp_path / "second").exists()
    with sole_use("training"):
        pass  # it is free again


class Photos:
    targets = [0] * 12

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full((32, 32, 3), 20 * index, np.uint8)


def test_labels_that_are_all_alike_measure_nothing(tmp_path: Path):
    source = DatasetSource(Photos())
    with pytest.raises(UserError, match="all 12 images of Photos have one label, 0"):
        check_sources(source, source)
