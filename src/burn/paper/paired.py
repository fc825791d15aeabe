"""Differences between networks, paired over test images and seeds, and how sure they are.

A difference of two means over seeds has an error from two sources. The test images are a sample:
where results tell which of them were answered rightly, the two networks are paired over them. And a
network trained again is another one, be it with another seed or with sums rounded otherwise: how
much its accuracy then moves is learned from all networks of a campaign that have several seeds,
after what a seed does to all of them alike is taken off. The two are added, which counts the noise
of single answers twice and errs towards caution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burn.core.results import Result, answers_of

_FAMILY_ERROR = 0.05  # chance that a table has any verdict that is only chance
_ONE_DECISION = 3.0  # standard errors that decide one of some twenty claims after Holm's correction


@dataclass(frozen=True)
class Difference:
    """The difference of two networks' means over their seeds, in points.

    images, seeds: its variance by the test images and by training again; infinite where unknown.
    freedom: degrees of freedom of the latter. runs: seeds on each side, the fewer of the two.
    """

    points: float
    images: float
    seeds: float
    freedom: int
    runs: int

    @property
    def error(self) -> float:
        """Standard error, in points."""
        return math.sqrt(self.images + self.seeds)

    @property
    def p(self) -> float:
        """Two-sided probability of a difference as large by chance; 1 where the error is unknown.

        Student's t, with the degrees of freedom after Welch and Satterthwaite.
        """
        if not math.isfinite(self.error):
            return 1.0
        if self.error == 0:
            return 1.0 if self.points == 0 else 0.0
        from scipy.special import stdtr  # slow to import

        return float(2 * stdtr(self._freedom(), -abs(self.points) / self.error))

    @property
    def margin(self) -> float:
        """Half of the 95 % confidence interval; infinite where the error is unknown."""
        if not math.isfinite(self.error):
            return math.inf
        from scipy.special import stdtrit

        return float(stdtrit(self._freedom(), 0.975)) * self.error

    def _freedom(self) -> float:
        """The images' variance is known well; its part makes the sum surer."""
        if self.seeds == 0:
            return math.inf
        return self.freedom * ((self.images + self.seeds) / self.seeds) ** 2

    def seeds_needed(self) -> int | None:
        """Seeds on each side that would decide a difference of this size; None: no number does."""
        spare = (self.points / _ONE_DECISION) ** 2 - self.images
        if not math.isfinite(self.seeds) or spare <= 0:
            return None
        return max(2, math.ceil(self.seeds * self.runs / spare))


def holm(probabilities: Sequence[float], level: float = _FAMILY_ERROR) -> list[bool]:
    """Which of several findings stand when all are looked at together (Holm, 1979)."""
    order = sorted(range(len(probabilities)), key=lambda i: probabilities[i])
    stands = [False] * len(probabilities)
    for rank, index in enumerate(order):
        if probabilities[index] > level / (len(probabilities) - rank):
            break
        stands[index] = True
    return stands


def measure_of(result: Result) -> str | None:
    """What claims compare it by: knn, linear, transfer, semi 1%, svm k=16; None for the rest."""
    if result.metric == "top1":
        return result.protocol
    share, _, metric = result.metric.partition(" ")
    if (result.protocol, metric) in {("semi", "top1"), ("svm", "mAP cv")}:
        return f"{result.protocol} {share}"
    return None


class Scores:
    """Accuracies of models over seeds, by the measures of `measure_of`.

    test_images: how many there are. others: results of other campaigns at the same budget, from
    which it is learned too what training again does.
    """

    def __init__(
        self, results: Sequence[Result], test_images: int, others: Sequence[Result] = ()
    ) -> None:
        self._test_images = test_images
        self.results = results
        self._by_model = _by_model(results)
        self._retraining: dict[str, tuple[float, int]] = {}
        self._tables = [_by_model(_each_run_once(part)) for part in (results, others)]

    def has(self, *models: str, by: str = "linear") -> bool:
        """Whether all were evaluated."""
        return all(self._by_model.get((by, model)) for model in models)

    def seeds(self, model: str, protocol: str = "linear") -> int:
        """How many runs there are of a model."""
        return len(self._by_model[protocol, model])

    def mean(self, model: str, protocol: str = "linear") -> float:
        """In %."""
        return statistics.mean(r.value for r in self._by_model[protocol, model].values())

    def retraining(self, protocol: str = "linear") -> tuple[float, int]:
        """Variance of a network's accuracy when it is trained again, and its degrees of freedom.

        In points squared; infinite, and 0, where no network has a second seed.
        """
        if protocol not in self._retraining:
            self._retraining[protocol] = self._of_retraining(protocol)
        return self._retraining[protocol]

    def _of_retraining(self, protocol: str) -> tuple[float, int]:
        squares, freedom = 0.0, 0
        for table in self._tables:
            alike: dict[tuple[int, ...], list[list[float]]] = {}
            for (name, _), runs in table.items():
                if name == protocol and len(runs) > 1:
                    values = [runs[seed].value for seed in sorted(runs)]
                    alike.setdefault(tuple(sorted(runs)), []).append(values)
            for rows in alike.values():
                block = np.array(rows)
                residual = block - block.mean(axis=1, keepdims=True)
                count = len(rows)
                if count > 1:  # what a seed does to all networks is no error of a difference
                    residual -= residual.mean(axis=0, keepdims=True)
                    count -= 1
                squares += float(np.square(residual).sum())
                freedom += count * (block.shape[1] - 1)
        return (squares / freedom, freedom) if freedom else (math.inf, 0)

    def difference(self, ahead: str, behind: str, protocol: str = "linear") -> Difference:
        """How far the first is ahead of the second, over the seeds that both have.

        Over all seeds where they have none in common. A trained model of a single seed leaves the
        error unknown; networks that were not trained here have but one.
        """
        runs = [self._by_model[protocol, model] for model in (ahead, behind)]
        common = sorted(runs[0].keys() & runs[1].keys())
        if common and not any(_is_reference(r) for run in runs for r in run.values()):
            runs = [{seed: run[seed] for seed in common} for run in runs]
        means = [statistics.mean(r.value for r in run.values()) for run in runs]
        if _same_runs(*runs):
            return Difference(0.0, 0.0, 0.0, 1, len(runs[0]))
        variance, freedom = self.retraining(protocol)
        trained = [run for run in runs if not any(map(_is_reference, run.values()))]
        if any(len(run) < 2 for run in trained):
            variance = math.inf
        seeds = sum(variance / len(run) for run in trained)
        return Difference(
            means[0] - means[1], self._of_images(*runs), seeds, freedom,
            min((len(run) for run in trained), default=1),
        )  # fmt: skip

    def _of_images(self, first: Mapping[int, Result], second: Mapping[int, Result]) -> float:
        """Variance of a difference by the test images: paired where both tell their answers.

        Where they do not, as in a mean average precision, it is that of two accuracies as large.
        """
        answers = [_mean_answers(run) for run in (first, second)]
        if answers[0] is not None and answers[1] is not None and len(answers[0]) == len(answers[1]):
            apart = 100 * (answers[0] - answers[1])
            return float(apart.var(ddof=1)) / len(apart) if len(apart) > 1 else math.inf
        shares = [statistics.mean(r.value for r in run.values()) / 100 for run in (first, second)]
        return sum(100**2 * p * (1 - p) / self._test_images for p in shares)

    def collapsed(self, model: str) -> tuple[int, int]:
        """In how many of its runs the target collapsed, and how many there are."""
        stages = [
            r.settings.get("pretraining", {}).get("collapsed_stages", [])
            for r in self._by_model["linear", model].values()
        ]
        return sum(map(bool, stages)), len(stages)

    def seconds(self, model: str) -> float | None:
        """Mean time of its training; None where it is not known of every run."""
        told = [
            r.settings.get("pretraining", {}).get("seconds")
            for r in self._by_model["linear", model].values()
        ]
        known = [float(s) for s in told if isinstance(s, (int, float)) and s > 0]
        return statistics.mean(known) if known and len(known) == len(told) else None

    def told(self, *models: str, by: str = "linear") -> str:
        """ "burn 46.5 (44.3), s2bnn 46.7 (42.5)": linear accuracy, and kNN behind it."""
        if by != "linear":
            return ", ".join(f"{m} {self.mean(m, by):.1f}" for m in models)
        return ", ".join(f"{m} {self.mean(m):.1f} ({self.mean(m, 'knn'):.1f})" for m in models)


def _is_reference(result: Result) -> bool:
    """Whether the network was not trained in the campaign: a teacher, or random weights."""
    return "pretraining" not in result.settings


def _same_runs(first: Mapping[int, Result], second: Mapping[int, Result]) -> bool:
    """Whether two names stand for the same runs, as those of a recipe as it is do in each group."""
    paths = [{r.checkpoint for r in run.values()} for run in (first, second)]
    return paths[0] == paths[1] and not any(map(_is_reference, first.values()))


def _mean_answers(run: Mapping[int, Result]) -> NDArray[np.float64] | None:
    """The share of seeds whose network answers rightly, for each test image."""
    answers = [answers_of(result) for result in run.values()]
    known = [a for a in answers if a is not None]
    if not known or len(known) < len(answers) or len({len(a) for a in known}) > 1:
        return None
    return np.mean(known, axis=0)


def _each_run_once(results: Sequence[Result]) -> list[Result]:
    """An ablation gives one run for every variant that it stands for."""
    first: dict[tuple[object, ...], Result] = {}
    for r in results:
        first.setdefault((r.protocol, r.metric, r.checkpoint, r.seed), r)
    return list(first.values())


def _by_model(results: Sequence[Result]) -> dict[tuple[str, str], dict[int, Result]]:
    """Measure and model to the result of each seed."""
    found: dict[tuple[str, str], dict[int, Result]] = {}
    for r in results:
        if measure := measure_of(r):
            found.setdefault((measure, r.model), {})[r.seed] = r
    return found
