"""The number of threads that a run chooses, on simulated processors."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from burn.learning.threads import ThreadChooser, Threads
from burn.training.plan import Machine
from burn.training.stage import stage_chooser

Rates = Mapping[int, float]  # images per second of each number of threads
# Measured on two cores of a Zen 5 with recipe burn: alone, beside two busy loops, beside tests.
IDLE: Rates = {2: 143, 1: 90}
LOADED: Rates = {2: 28, 1: 44}
TESTED: Rates = {2: 11, 1: 62}
EVEN: Rates = {2: 50, 1: 50}
ONE_CORE_TAKEN: Rates = {2: 60, 1: 90}
FOUR: Rates = {4: 100, 2: 70, 1: 40}
FOUR_LOADED: Rates = {4: 20, 2: 60, 1: 40}


# Of the time of two threads, alone and beside two busy loops or a test suite.
BUSY, WAITING = 0.9, 0.5


def run(
    most: int,
    rates: Callable[[int], Rates],
    steps: int,
    noise: float = 0.1,
    seed: int = 0,
    *,
    short: bool = False,
    given: float = BUSY,
) -> tuple[ThreadChooser, list[int], float]:
    """The chooser, the threads of each step, and the mean rate over that of the best choices.

    `given` is the part of its threads' time that the process is given.
    """
    random = np.random.default_rng(seed)
    chooser, threads, spent, least = ThreadChooser(most, short=short), [], 0.0, 0.0
    for step in range(steps):
        now = rates(step)
        threads.append(chooser.threads)
        seconds = 64 / now[chooser.threads] * random.lognormal(sigma=noise)
        spent += 64 / now[chooser.threads]
        least += 64 / max(now.values())
        busy = given * chooser.threads * seconds
        chooser.step(64, seconds if step else None, busy)
    return chooser, threads, least / spent


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rates", [IDLE, LOADED, TESTED, EVEN, ONE_CORE_TAKEN])
def test_never_far_from_the_better_of_one_and_two_threads(rates: Rates, seed: int):
    _, _, share = run(2, lambda _: rates, 2000, seed=seed)
    assert share > 0.9


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("two", [14, 16, 18, 22, 28])
def test_little_is_lost_in_two_minutes(two: int, seed: int):
    """Beside two busy loops on a Zen 4: 29.3 images/s with one thread."""
    _, _, share = run(2, lambda _: {2: two, 1: 29.3}, 120, seed=seed)
    assert share > 0.9


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("steps", [8, 20, 50])
@pytest.mark.parametrize("rates", [LOADED, TESTED])
def test_a_short_run_tries_other_numbers_where_it_waits(rates: Rates, steps: int, seed: int):
    """Three steps of two threads are lost, one of which has no time."""
    _, threads, _ = run(2, lambda _: rates, steps, seed=seed, short=True, given=WAITING)
    assert threads == [2] * 3 + [1] * (steps - 3)


def test_a_short_run_on_an_idle_machine_tries_nothing():
    """Also with small networks, of whose steps one thread has a part to itself."""
    for given in (BUSY, 0.6):
        chooser, threads, share = run(2, lambda _: IDLE, 99, short=True, given=given)
        assert (threads, share, chooser.reason) == ([2] * 99, 1.0, "")


def test_a_short_run_keeps_all_threads_where_they_are_best():
    """It may wait for images instead."""
    chooser, threads, _ = run(2, lambda _: IDLE, 50, short=True, given=WAITING, noise=0)
    assert threads == [2] * 3 + [1] * 4 + [2] * 43
    assert chooser.reason == "2 threads (143 images/s, 90 with 1)"


@pytest.mark.parametrize("rates", [FOUR, FOUR_LOADED])
def test_more_threads_are_halved(rates: Rates):
    _, threads, share = run(4, lambda _: rates, 2000)
    assert rates[statistics.mode(threads[-100:])] == max(rates.values())
    assert share > 0.9


@pytest.mark.parametrize(
    ("first", "then"), [(IDLE, LOADED), (LOADED, IDLE), (ONE_CORE_TAKEN, IDLE)]
)
def test_a_load_that_comes_or_goes_is_noticed(first: Rates, then: Rates):
    """Also where the rate of the one thread that computes does not tell that it has gone."""
    _, _, share = run(2, lambda step: first if step < 1000 else then, 5000)
    assert share > 0.9


def test_an_idle_machine_computes_the_same_bits():
    """The numbers of threads do not depend on small differences of the times."""
    sequences = {tuple(run(2, lambda _: IDLE, 1000, seed=seed)[1]) for seed in range(10)}
    assert len(sequences) == 1
    (threads,) = sequences
    assert sum(n == 1 for n in threads) == 8
    assert set(threads[20:]) == {2}


def test_the_reason_is_said():
    assert run(2, lambda _: LOADED, 5)[0].reason == ""
    reason = run(2, lambda _: LOADED, 40, noise=0)[0].reason
    assert reason == "1 thread (44 images/s, 28 with 2)"
    assert run(2, lambda _: IDLE, 40, noise=0)[0].reason == "2 threads (143 images/s, 90 with 1)"


@pytest.mark.parametrize("place", [1, 3, 7, 12, 17, 30, 80])
@pytest.mark.parametrize("rates", [IDLE, LOADED])
def test_a_resumed_run_goes_on_with_the_same_numbers(rates: Rates, place: int):
    """Through the file, whose numbers are plain; the first step after it has no time."""
    whole, threads, _ = run(2, lambda _: rates, 200, noise=0)
    chooser, resumed = ThreadChooser(2), []
    for step in range(200):
        if step == place:
            state = chooser.state_dict()
            chooser = ThreadChooser(2)
            chooser.load_state_dict(state)
        resumed.append(chooser.threads)
        chooser.step(64, None if step in (0, place) else 64 / rates[chooser.threads])
    assert resumed == threads
    assert chooser.steps == whole.steps


def test_a_state_of_another_machine_is_left():
    state = run(4, lambda _: FOUR_LOADED, 100)[0].state_dict()
    chooser = ThreadChooser(2)
    chooser.load_state_dict(state)
    assert (chooser.threads, chooser.reason) == (2, "")


# --- In training. ---

ALONE: Any = SimpleNamespace(device=torch.device("cpu"), count=1)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("two_threads")
def test_a_number_is_chosen_unless_something_speaks_against_it(monkeypatch: pytest.MonkeyPatch):
    assert stage_chooser(Machine(), ALONE, 100)
    assert stage_chooser(Machine(), ALONE, 8)
    assert not stage_chooser(Machine(), ALONE, 7)
    assert not stage_chooser(Machine(deterministic=True), ALONE, 100)
    assert not stage_chooser(Machine(compile=True), ALONE, 100)
    gpu: Any = SimpleNamespace(device=torch.device("cuda"), count=1)
    several: Any = SimpleNamespace(device=torch.device("cpu"), count=2)
    assert not stage_chooser(Machine(), gpu, 100)
    assert not stage_chooser(Machine(), several, 100)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert not stage_chooser(Machine(), ALONE, 100)


@pytest.mark.usefixtures("two_threads")
def test_threads_are_set_and_given_back(monkeypatch: pytest.MonkeyPatch):
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    threads = Threads(ThreadChooser(torch.get_num_threads()))
    nothing = SimpleNamespace(indices=range(64))
    loop: Any = None
    threads.on_start(loop)
    for _ in range(6):
        threads.on_batch_end(loop, nothing)  # type: ignore[arg-type]
    threads.on_end(loop)
    assert given == [2, 1, 2]
    again = Threads(ThreadChooser(torch.get_num_threads()))
    again.load_state_dict(threads.state_dict())
    assert again.chooser.threads == 1
