"""The number of threads of training on a CPU, chosen by measured rate.

Threads that share a step wait for each other. As soon as something else runs on the processor, each
of them waits for the one that was interrupted, and fewer threads are faster than one for each core.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import deque
from typing import Any

import torch

from burn.core.types import Batch
from burn.learning.loop import Callback, Loop

_FEWEST = 100  # batches for which a trial pays, whatever its outcome
_LEAST = 8  # batches for which one pays that is known to be needed
_WAITING = 0.55  # part of its threads' time below which a process waits for processors
_PINS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_ROUNDS = 2  # times that a trial goes through its numbers
_STEPS = 4  # steps of a round with a number of threads, of which the first, a start, is left out
_WINDOW = 8  # steps whose median is the rate now
_FALL = 0.7  # part of the best rate since the last trial below which there is another
_CLEAR = 2  # times another rate, which end a trial early
_GAIN = 1.1  # times the rate of more threads that fewer must have
_PAUSE, _LONGEST_PAUSE = 50, 400  # steps from a trial to the next, doubled up to the second


class ThreadChooser:
    """Chooses between all threads, half of them and so on, by trials of a few steps each.

    The first trial begins with the second step. There is another when the rate has fallen to less
    than 0.7 of the best since the last one. While fewer than all threads compute, a few steps now
    and then try the other numbers, because what else runs may have ended; if one of them seems
    faster, a trial follows. The steps of the first trial are the same in every run, so that runs on
    an idle machine compute the same bits.

    In a short run a trial would cost too much where all threads are best. It has one, of the other
    numbers alone, only after two steps in which the process was given little more than half of its
    threads' time, which it is given on an idle machine.
    """

    def __init__(self, most: int, *, short: bool = False) -> None:
        self.most = self.threads = self._chosen = most  # `threads` is for the next step
        self._short, self._waited = short, 0  # steps in a row in which threads waited
        self.steps: dict[int, int] = {}  # that each number of threads computed
        self.reason = ""  # the last choice, and the rates that led to it
        self._pause = _PAUSE
        self._since = 0  # steps since the last trial
        self._newest: deque[float] = deque(maxlen=_WINDOW)  # seconds per image
        self._best = 0.0
        self._trial: list[int] = []  # numbers of threads of the steps that are still to try
        self._tried: dict[int, list[float | None]] = {}
        self._probes = False  # whether this is less than a trial, which only a trial can confirm

    def step(self, images: int, seconds: float | None, busy: float = math.inf) -> None:
        """Record a step that `threads` threads computed, and set `threads` for the next one.

        `seconds` is the time since the end of the step before, None where there was none, and
        `busy` is this process's processor time in it.
        """
        self.steps[self.threads] = self.steps.get(self.threads, 0) + 1
        seconds_per_image = None if seconds is None else max(seconds, 1e-9) / max(1, images)
        waits = seconds is not None and busy < _WAITING * self.threads * seconds
        self._waited = self._waited + 1 if waits else 0
        if self._trial:
            self._try(seconds_per_image)
        else:
            self._since += 1
            self._watch(seconds_per_image)

    def _try(self, seconds_per_image: float | None) -> None:
        threads = self._trial.pop(0)
        self._tried[threads].append(seconds_per_image)
        rates = self._rates()
        if self._probes and 0 < _CLEAR * rates[threads] < rates[self._chosen]:
            self._trial = [n for n in self._trial if n != threads]
        if len(self._trial) == _STEPS * len(self._tried):  # a round is over
            second, best = sorted(rates.values())[-2:]
            if best > _CLEAR * second:
                self._trial.clear()
        if not self._trial:
            if self._probes and not self._short and self._fastest() != self._chosen:
                self._begin()
                return
            self._choose()
        self.threads = self._trial[0] if self._trial else self._chosen

    def _begin(self, now: float | None = None) -> None:
        """Begin a trial; with the rate `now` of the chosen number, only of the others."""
        numbers = {self._chosen, max(1, self._chosen // 2), min(self.most, 2 * self._chosen)}
        around = sorted(numbers, reverse=True)
        self._tried = {threads: [] for threads in around}
        self._probes = now is not None
        rounds = _ROUNDS
        if now is not None:
            self._tried[self._chosen] = [1 / now] * _STEPS
            around.remove(self._chosen)
            rounds = 1
        self._trial = [n for _ in range(rounds) for n in around for _ in range(_STEPS)]
        self.threads = self._trial[0]

    def _fastest(self) -> int:
        rates = self._rates()
        return max(rates, key=lambda n: rates[n] * (_GAIN if n == max(rates) else 1))

    def _rates(self) -> dict[int, float]:
        """Return images per second of each number of threads of the trial."""
        rates = {}
        for threads, times in self._tried.items():
            counted = [s for place, s in enumerate(times) if place % _STEPS and s is not None]
            rates[threads] = 1 / statistics.median(counted or [math.inf])
        return rates

    def _watch(self, seconds_per_image: float | None) -> None:
        """Begin a trial if it is the first one, or if the rate gives a reason."""
        if seconds_per_image is not None:
            self._newest.append(seconds_per_image)
        if not self.reason:
            if not self._short:
                self._begin()
            elif self._waited > 1:
                self._begin(1 / statistics.median(self._newest))
            return
        if len(self._newest) < _WINDOW:
            return
        now = 1 / statistics.median(self._newest)
        self._best = max(self._best, now)
        fallen = now < _FALL * self._best
        if self._since < self._pause or not (fallen or self._chosen < self.most):
            return
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._begin(None if fallen else now)

    def _choose(self) -> None:
        rates = self._rates()
        before = self._chosen
        self._chosen = self._fastest()
        if self._chosen != before:
            self._pause = _PAUSE
        others = " and ".join(
            f"{rate:.3g} with {n}" for n, rate in rates.items() if n != self._chosen
        )
        name = "thread" if self._chosen == 1 else "threads"
        self.reason = f"{self._chosen} {name} ({rates[self._chosen]:.3g} images/s, {others})"
        self._since, self._best = 0, 0.0
        self._newest.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return everything for a resume file, so that trials go on where they were."""
        return {**vars(self), "_newest": list(self._newest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, unless it is that of a machine with another number of threads."""
        if state["most"] == self.most:
            newest = deque(state["_newest"], maxlen=_WINDOW)
            vars(self).update(state, _newest=newest, _short=self._short)


def thread_chooser(batches: int) -> ThreadChooser | None:
    """Return what chooses the number of threads of a training on the CPU while it runs.

    It is None where the user gave a number, there is but one, or the batches are too few to choose.
    """
    most = torch.get_num_threads()
    pinned = any(os.environ.get(name) for name in _PINS)
    if most == 1 or pinned or batches < _LEAST:
        return None
    return ThreadChooser(most, short=batches < _FEWEST)


class Threads(Callback):
    """Sets the number of threads that a chooser chooses, which a resumed run goes on with."""

    def __init__(self, chooser: ThreadChooser) -> None:
        self.chooser = chooser
        self._last: tuple[float, float] | None = None

    def on_start(self, loop: Loop[Any]) -> None:
        torch.set_num_threads(self.chooser.threads)

    def on_batch_end(self, loop: Loop[Any], batch: Batch) -> None:
        now = time.monotonic(), time.process_time()
        last, self._last = self._last, now  # the first batch also starts workers
        before = self.chooser.threads
        if last is None:
            self.chooser.step(len(batch.indices), None)
        else:
            self.chooser.step(len(batch.indices), now[0] - last[0], now[1] - last[1])
        if self.chooser.threads != before:
            torch.set_num_threads(self.chooser.threads)

    def on_end(self, loop: Loop[Any]) -> None:
        torch.set_num_threads(self.chooser.most)

    on_failure = on_end

    def state_dict(self) -> dict[str, Any]:
        return self.chooser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chooser.load_state_dict(state)
