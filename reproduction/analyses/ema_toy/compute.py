"""The paper's toy experiment on an EMA target: how far it is behind its backbone.

Backbone ← Backbone + η·n, Target ← τ·Target + (1 - τ)·Backbone, with n ~ N(0, 1) in each of 100
dimensions, η = 4.8 and τ = 0.99. Both start from the same values, which the paper calls random and
which are standard normal here. It compares the L2 distance of the two with that of the two
binarised.

Taken literally the two distances have different units: between vectors of ±1 it is 2·√(differing
signs), 20 at most, while between float vectors it grows with η. Therefore other readings are
measured beside the literal one, which give both the same scale or change what the paper leaves
open. LARS moves a weight by a thousandth of its norm times η; norms then stay at √100, which is
also the norm of a hundred signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burn.core.schedule import cosine_anneal
from reproduction.analyses.rows import Row

ETA, TAU = 4.8, 0.99
DIMENSIONS, STEPS, RUNS = 100, 100, 10
MANY = 1000  # enough runs for mean and deviation to be free of chance
LARS = 0.001  # LARS's usual trust coefficient: a step with lr 1, as a share of the weight's norm

Vectors = NDArray[np.float64]  # (runs, dimensions)


def signs(x: Vectors) -> Vectors:
    """Return ±1 for each value, and +1 for 0, as everywhere in burn."""
    return np.where(x >= 0, 1.0, -1.0)


def scaled_signs(x: Vectors) -> Vectors:
    """Return sign(x)·mean|x|, as ReActNet makes binary weights."""
    return signs(x) * np.abs(x).mean(axis=-1, keepdims=True)


def l2_normalize(x: Vectors) -> Vectors:
    """Scale the vectors to length 1."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def same(x: Vectors) -> Vectors:
    """Return the vectors unchanged."""
    return x


@dataclass(frozen=True)
class Reading:
    """One way to read the paper's setting.

    Attributes:
        name: Name in the CSV file.
        title: Title in picture and table.
        eta: Size of a step.
        decays: Whether η falls to 0 by half a cosine, as learning rates do.
        floats: Function applied to both float vectors before their distance is measured.
        binaries: Function that makes both binary vectors.
    """

    name: str
    title: str
    eta: float = ETA
    decays: bool = False
    floats: Callable[[Vectors], Vectors] = same
    binaries: Callable[[Vectors], Vectors] = signs


READINGS: tuple[Reading, ...] = (
    Reading("literal", "as written: η = 4.8, signs ±1"),
    Reading("scaled", "signs times mean absolute value", binaries=scaled_signs),
    Reading(
        "direction",
        "both scaled to length 1",
        floats=l2_normalize,
        binaries=lambda x: l2_normalize(signs(x)),
    ),
    Reading("decay", "step size η falls to 0", decays=True),
    Reading("lars", "step size 0.0048, as LARS", eta=ETA * LARS),
    Reading("lars-decay", "step size 0.0048 falls to 0", eta=ETA * LARS, decays=True),
)


def follow(
    start: Vectors, noise: Vectors, etas: NDArray[np.float64], tau: float
) -> Iterator[tuple[Vectors, Vectors]]:
    """Yield backbone and target after every step.

    Args:
        start: Both vectors' start, (runs, dimensions).
        noise: n of each step, (steps, runs, dimensions).
        etas: η of each step, (steps,).
        tau: Momentum of the target.
    """
    backbone = target = start
    for n, eta in zip(noise, etas, strict=True):
        backbone = backbone + eta * n
        target = tau * target + (1 - tau) * backbone
        yield backbone, target


def ema_toy(seed: int) -> list[Row]:
    """Compute the distances of all readings from the same random values.

    Args:
        seed: Random seed.

    Returns:
        A row for each reading and step. `float` and `binary` are the L2 distance of backbone and
        target, mean over the paper's ten runs, and `float_std` and `binary_std` its standard
        deviation over them. `float_many` and so on are the same over `many` other runs, and
        `differing` is the share of the signs that differ in these.
    """
    few, many = _draws(seed, RUNS), _draws(seed + 1, MANY)
    rows: list[Row] = []
    for reading in READINGS:
        both = zip(_distances(reading, *few), _distances(reading, *many), strict=True)
        for step, (ten, others) in enumerate(both, start=1):
            row: Row = {"reading": reading.name, "title": reading.title, "step": step}
            differing = others.pop("differing")
            row |= {name: ten[name] for name in others}
            row |= {f"{name}_many": value for name, value in others.items()}
            rows.append({**row, "differing": differing, "many": MANY})
    return rows


def _draws(seed: int, runs: int) -> tuple[Vectors, Vectors]:
    """Return the start of the runs and their noise."""
    random = np.random.default_rng(seed)
    start = random.standard_normal((runs, DIMENSIONS))
    return start, random.standard_normal((STEPS, runs, DIMENSIONS))


def _distances(reading: Reading, start: Vectors, noise: Vectors) -> Iterator[dict[str, float]]:
    """Yield mean and standard deviation over the runs after every step."""
    etas = [
        cosine_anneal(step / STEPS, reading.eta, 0.0) if reading.decays else reading.eta
        for step in range(STEPS)
    ]
    for backbone, target in follow(start, noise, np.array(etas), TAU):
        numbers: dict[str, float] = {}
        for name, make in (("float", reading.floats), ("binary", reading.binaries)):
            distances = np.linalg.norm(make(backbone) - make(target), axis=1)
            numbers[name] = float(distances.mean())
            numbers[f"{name}_std"] = float(distances.std())
        numbers["differing"] = float((signs(backbone) != signs(target)).mean())
        yield numbers
