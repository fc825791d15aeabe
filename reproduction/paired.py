"""Differences between networks, paired over test images and seeds, and their uncertainty.

A difference of two means over seeds has an error from two sources. First, the test images are a
sample: if the results say which of them were answered correctly, the two networks are paired over
them. Second, a network trained again is another one, with another seed or only with sums rounded
differently. How much its accuracy changes then is estimated from all networks of a campaign that
have several seeds, after removing what a seed does to all of them alike; a network that varies far
more than the others has a variance of its own. The two variances are added, which counts the noise
of single answers twice and is therefore cautious.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from burn.core.results import Result, decode_right
from burn.core.seeds import OverSeeds

_FAMILY_ERROR = 0.05  # probability that any verdict in a table is due to chance
_OUTLIER = 0.01  # probability that Cochran's test takes one of several equal variances for larger
_CLAIMS = 20  # about so many are decided together, which divides the level of each (Holm)
_MOST_SEEDS = 1000


@dataclass(frozen=True)
class Difference:
    """The difference of two networks' means over their seeds.

    Attributes:
        points: The difference in points.
        images: Its variance due to the test images; infinite if unknown.
        seeds: Its variance due to training again; infinite if unknown.
        freedom: Degrees of freedom of `seeds`, a fraction if it has several parts.
        runs: Number of seeds on each side, the smaller of the two.
    """

    points: float
    images: float
    seeds: float
    freedom: float
    runs: int

    @property
    def error(self) -> float:
        """The standard error in points."""
        return math.sqrt(self.images + self.seeds)

    @property
    def p(self) -> float:
        """The two-sided probability of so large a difference by chance; 1 if the error is unknown.

        It follows Student's t, with the degrees of freedom of Welch and Satterthwaite.
        """
        if not math.isfinite(self.error):
            return 1.0
        if self.error == 0:
            return 1.0 if self.points == 0 else 0.0
        from scipy.special import stdtr  # slow to import

        return float(2 * stdtr(self._freedom(), -abs(self.points) / self.error))

    @property
    def margin(self) -> float:
        """Half of the 95 % confidence interval; infinite if the error is unknown."""
        if not math.isfinite(self.error):
            return math.inf
        from scipy.special import stdtrit

        return float(stdtrit(self._freedom(), 0.975)) * self.error

    def _freedom(self) -> float:
        """Return the degrees of freedom of the sum.

        The images' variance is known well, so its part makes the sum more certain.
        """
        if self.seeds == 0:
            return math.inf
        return self.freedom * ((self.images + self.seeds) / self.seeds) ** 2

    def seeds_needed(self) -> int | None:
        """Return the number of seeds of every network that would decide a difference of this size.

        Returns:
            The number; None if no number up to a thousand would.
        """
        level = _FAMILY_ERROR / _CLAIMS

        def decided(runs: int) -> bool:
            more = replace(
                self,
                seeds=self.seeds * self.runs / runs,
                freedom=self.freedom * (runs - 1) / max(1, self.runs - 1),
            )
            return more.p <= level

        if not decided(_MOST_SEEDS):
            return None
        return 2 + bisect_left(range(2, _MOST_SEEDS + 1), True, key=decided)


def holm(probabilities: Sequence[float], level: float = _FAMILY_ERROR) -> list[bool]:
    """Decide which of several findings stand when all are considered together (Holm, 1979).

    Args:
        probabilities: Probability of each finding by chance.
        level: Probability that any finding that stands is due to chance.

    Returns:
        Whether each finding stands.
    """
    order = sorted(range(len(probabilities)), key=lambda i: probabilities[i])
    stands = [False] * len(probabilities)
    for rank, index in enumerate(order):
        if probabilities[index] > level / (len(probabilities) - rank):
            break
        stands[index] = True
    return stands


def measure_of(result: Result) -> str | None:
    """Return the name by which claims compare a result, or None if they do not.

    The names are knn, linear, transfer, semi 1%, semi 10%, svm k=16 and so on.
    """
    if result.metric == "top1":
        return result.protocol
    share, _, metric = result.metric.partition(" ")
    if (result.protocol, metric) in {("semi", "top1"), ("svm", "mAP cv")}:
        return f"{result.protocol} {share}"
    return None


class Scores:
    """Accuracies of models over seeds, by the measures of `measure_of`.

    Args:
        results: Results of a campaign.
        test_images: Number of test images.
        others: Results of other campaigns at the same budget. They only help to estimate the effect
            of training again.
    """

    def __init__(
        self, results: Sequence[Result], test_images: int, others: Sequence[Result] = ()
    ) -> None:
        self._test_images = test_images
        self.results = results
        self._by_model = _by_model(results)
        self._retraining: dict[str, tuple[float, int]] = {}
        self._uneven: dict[tuple[str, frozenset[str]], tuple[float, int]] = {}  # by measure, runs
        self._tables = [_by_model(_each_run_once(part)) for part in (results, others)]

    def has(self, *models: str, by: str = "linear") -> bool:
        """Return whether all models were evaluated by a measure."""
        return all(self._by_model.get((by, model)) for model in models)

    def common_seeds(self, *models: str, by: str = "linear") -> set[int]:
        """Return the seeds with which all models were evaluated by a measure."""
        return set.intersection(*(set(self._by_model.get((by, model), {})) for model in models))

    def mean(self, model: str, protocol: str = "linear") -> float:
        """Return a model's mean over seeds in %."""
        return OverSeeds.of(r.value for r in self._by_model[protocol, model].values()).mean

    def retraining(self, protocol: str = "linear") -> tuple[float, int]:
        """Return the variance of a network's accuracy when it is trained again.

        Networks that vary far more than the others do not count.

        Returns:
            The variance in points squared, and its degrees of freedom; infinite and 0 if no network
            has a second seed.
        """
        if protocol not in self._retraining:
            self._retraining[protocol] = self._of_retraining(protocol)
        return self._retraining[protocol]

    def _of_retraining(self, protocol: str) -> tuple[float, int]:
        squares, freedom = 0.0, 0
        for table in self._tables:
            alike: dict[tuple[int, ...], dict[frozenset[str], list[float]]] = {}
            for (name, _), runs in table.items():
                if name == protocol and len(runs) > 1:
                    values = [runs[seed].value for seed in sorted(runs)]
                    alike.setdefault(tuple(sorted(runs)), {})[_files(runs)] = values
            for rows in alike.values():
                for uneven in _outliers(rows):
                    values = rows.pop(uneven)
                    self._uneven[protocol, uneven] = statistics.variance(values), len(values) - 1
                block = np.array(list(rows.values()))
                residual = block - block.mean(axis=1, keepdims=True)
                count = len(block)
                if count > 1:  # an effect of a seed on all networks is no error of a difference
                    residual -= residual.mean(axis=0, keepdims=True)
                    count -= 1
                squares += float(np.square(residual).sum())
                freedom += count * (block.shape[1] - 1)
        return (squares / freedom, freedom) if freedom else (math.inf, 0)

    def difference(self, ahead: str, behind: str, protocol: str = "linear") -> Difference:
        """Return the difference between two models over the seeds that both have.

        The error is unknown if two trained models have no seed in common, since the effect of a
        seed on all networks does not cancel then, or if a trained model has a single seed; networks
        that were not trained in the campaign have only one result.

        Args:
            ahead: Name of the first model.
            behind: Name of the second model, which is subtracted.
            protocol: The measure.
        """
        runs = self._compared(ahead, behind, protocol)
        means = [statistics.mean(r.value for r in run.values()) for run in runs]
        if _same_runs(*runs):
            return Difference(0.0, 0.0, 0.0, 1, len(runs[0]))
        variance, freedom = self._of_training_again((ahead, behind), runs, protocol)
        if all(map(_is_trained, runs)) and runs[0].keys() != runs[1].keys():
            variance = math.inf
        return Difference(
            means[0] - means[1],
            self._of_images(*runs),
            variance,
            freedom,
            min((len(run) for run in runs if _is_trained(run)), default=1),
        )

    def _compared(self, ahead: str, behind: str, protocol: str) -> list[dict[int, Result]]:
        """Return the results of two models that are compared: those of the seeds that both have."""
        runs = [self._by_model[protocol, model] for model in (ahead, behind)]
        common = sorted(runs[0].keys() & runs[1].keys())
        if common and all(map(_is_trained, runs)):
            return [{seed: run[seed] for seed in common} for run in runs]
        return runs

    def _of_training_again(
        self, models: Sequence[str], runs: Sequence[Mapping[int, Result]], protocol: str
    ) -> tuple[float, float]:
        """Return the variance of a difference due to training again, and its degrees of freedom.

        Args:
            models: Names of the two networks.
            runs: The results that are compared, of each.
            protocol: The measure.
        """
        common, freedom = self.retraining(protocol)
        parts: list[tuple[float, float]] = []  # variances and degrees of freedom
        share = 0.0
        for model, run in zip(models, runs, strict=True):
            if not _is_trained(run):
                continue
            if len(run) < 2:
                return math.inf, freedom
            uneven = self._uneven.get((protocol, _files(self._by_model[protocol, model])))
            if uneven is None:
                share += 1 / len(run)
            else:
                parts.append((uneven[0] / len(run), uneven[1]))
        if share:
            parts.append((share * common, freedom))
        total = sum(variance for variance, _ in parts)
        if len(parts) < 2 or not 0 < total < math.inf:
            return total, parts[0][1] if parts else freedom
        return total, total**2 / sum(variance**2 / degrees for variance, degrees in parts)

    def _of_images(self, first: Mapping[int, Result], second: Mapping[int, Result]) -> float:
        """Return the variance due to the test images, paired if both results have the answers.

        If they do not, as with a mean average precision, it is that of two accuracies of this size.
        """
        answers = [_mean_answers(run) for run in (first, second)]
        if answers[0] is not None and answers[1] is not None and len(answers[0]) == len(answers[1]):
            apart = 100 * (answers[0] - answers[1])
            return float(apart.var(ddof=1)) / len(apart) if len(apart) > 1 else math.inf
        shares = [statistics.mean(r.value for r in run.values()) / 100 for run in (first, second)]
        images = min(
            (result.data or {}).get("test_images") or self._test_images
            for run in (first, second)
            for result in run.values()
        )
        return sum(100**2 * p * (1 - p) / images for p in shares)

    def collapsed(self, model: str) -> tuple[int, int]:
        """Return in how many of a model's runs the target collapsed, and the number of its runs."""
        stages = [
            r.settings.get("pretraining", {}).get("collapsed_stages", [])
            for r in self._by_model["linear", model].values()
        ]
        return sum(map(bool, stages)), len(stages)

    def seconds(self, model: str) -> float | None:
        """Return a model's mean training time; None if it is not known for every run."""
        told = [
            r.settings.get("pretraining", {}).get("seconds")
            for r in self._by_model["linear", model].values()
        ]
        measured = [float(s) for s in told if isinstance(s, (int, float)) and s > 0]
        return statistics.mean(measured) if measured and len(measured) == len(told) else None

    def images(self, model: str) -> float:
        """Return the mean number of images that a model's trainings saw."""
        runs = self._by_model["linear", model].values()
        return statistics.mean(r.settings["pretraining"]["images_seen"] for r in runs)

    def seconds_of_seed(self, *models: str, by: str = "linear") -> float | None:
        """Return what another seed of some models takes: training and evaluation by a measure.

        Returns:
            The sum of the models' mean times; None if one is not known.
        """
        total = 0.0
        for model in models:
            trained = self.seconds(model) if self.has(model) else None
            if trained is None:
                return None
            evaluated = (result.seconds for result in self._by_model[by, model].values())
            total += trained + statistics.mean(evaluated)
        return total

    def told(self, *models: str, by: str = "linear") -> str:
        """List models with linear accuracy and kNN: "burn 46.5 (44.3), s2bnn 46.7 (42.5)".

        The first one's means are over the seeds that it is compared on with the second, if there
        are two, and the others' over those on which they are compared with the first.
        """

        def mean(model: str, measure: str) -> float:
            first, *others = models
            if model != first:
                runs = self._compared(first, model, measure)[1]
            elif len(others) == 1:
                runs = self._compared(first, others[0], measure)[0]
            else:
                runs = self._by_model[measure, first]
            return statistics.mean(result.value for result in runs.values())

        if by != "linear":
            return ", ".join(f"{m} {mean(m, by):.1f}" for m in models)
        return ", ".join(f"{m} {mean(m, by):.1f} ({mean(m, 'knn'):.1f})" for m in models)


def _is_trained(run: Mapping[int, Result]) -> bool:
    return not any(map(_is_reference, run.values()))


def _files(run: Mapping[int, Result]) -> frozenset[str]:
    return frozenset(result.checkpoint for result in run.values())


def _outliers(rows: Mapping[frozenset[str], Sequence[float]]) -> list[frozenset[str]]:
    """Return the networks whose accuracies vary more than those of the others.

    Cochran's test compares the largest variance with the sum of all, again after each that it
    finds. Two networks are too few to say which of them is unusual.

    Args:
        rows: Accuracies of each network, of equally many seeds.
    """
    from scipy.special import fdtri  # slow to import

    variances = {files: statistics.variance(values) for files, values in rows.items()}
    outliers: list[frozenset[str]] = []
    while len(variances) > 2:
        largest = max(variances, key=lambda files: variances[files])
        others, freedom = len(variances) - 1, len(rows[largest]) - 1
        quantile = fdtri(freedom, others * freedom, 1 - _OUTLIER / len(variances))
        if variances[largest] <= sum(variances.values()) / (1 + others / quantile):
            break
        outliers.append(largest)
        del variances[largest]
    return outliers


def _is_reference(result: Result) -> bool:
    """Return whether a network was not trained in the campaign: a teacher, or random weights."""
    return "pretraining" not in result.settings


def _same_runs(first: Mapping[int, Result], second: Mapping[int, Result]) -> bool:
    """Return whether two names stand for the same runs, as the recipe's own choice may."""
    paths = [{r.checkpoint for r in run.values()} for run in (first, second)]
    return paths[0] == paths[1] and _is_trained(first)


def _mean_answers(run: Mapping[int, Result]) -> NDArray[np.float64] | None:
    """Return, for each test image, the share of seeds whose network answers correctly."""
    answers = [decode_right(result) for result in run.values()]
    kept = [a for a in answers if a is not None]
    if not kept or len(kept) < len(answers) or len({len(a) for a in kept}) > 1:
        return None
    return np.mean(kept, axis=0)


def _each_run_once(results: Sequence[Result]) -> list[Result]:
    """Keep one result of each training.

    An ablation repeats it for every variant that it represents, and random weights are those of a
    checkpoint that was trained.
    """
    first: dict[tuple[object, ...], Result] = {}
    for r in results:
        if not _is_reference(r):
            first.setdefault((r.protocol, r.metric, r.checkpoint, r.seed), r)
    return list(first.values())


def _by_model(results: Sequence[Result]) -> dict[tuple[str, str], dict[int, Result]]:
    """Return the result of each seed, by measure and model."""
    results_by_model: dict[tuple[str, str], dict[int, Result]] = {}
    for r in results:
        if measure := measure_of(r):
            results_by_model.setdefault((measure, r.model), {})[r.seed] = r
    return results_by_model
