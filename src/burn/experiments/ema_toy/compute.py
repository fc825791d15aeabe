"""The paper's toy of a target that follows by EMA: how far it falls behind its backbone.

Backbone ← Backbone + η·n, Target ← τ·Target + (1 - τ)·Backbone, with n ~ N(0, 1) in each of 100
dimensions, η = 4.8 and τ = 0.99, both from the same values, which the paper calls random and are
standard normal here. It compares the L2 distance of the two with that of the two binarised.

Taken literally the two distances have different units: of vectors of ±1 it is 2·√(differing signs),
20 at most, while that of float vectors grows with η. So beside the literal one other readings are
measured, which put both on a scale or change what the paper leaves open. LARS moves a weight by a
thousandth of its norm times η; norms then stay at √100, which is that of a hundred signs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burn.core.schedule import cosine_anneal
from burn.experiments.rows import Row

ETA, TAU = 4.8, 0.99
DIMENSIONS, STEPS, RUNS = 100, 100, 10
MANY = 1000  # runs of which mean and deviation owe nothing to chance
LARS = 0.001  # LARS's usual trust coefficient: the share of a weight's norm that lr 1 moves it by

Vectors = NDArray[np.float64]  # (runs, dimensions)


def signs(x: Vectors) -> Vectors:
    """±1; +1 for 0, as everywhere here."""
    return np.where(x >= 0, 1.0, -1.0)


def scaled_signs(x: Vectors) -> Vectors:
    """sign(x)·mean|x|, as binary weights are made (ReActNet)."""
    return signs(x) * np.abs(x).mean(axis=-1, keepdims=True)


def unit(x: Vectors) -> Vectors:
    """The vectors at length 1: their direction alone."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def same(x: Vectors) -> Vectors:
    """As it is."""
    return x


@dataclass(frozen=True)
class Reading:
    """One way to read the paper's setting.

    eta: size of a step. decays: η falls to 0 by half a cosine, as learning rates do. floats,
    binaries: what is made of both vectors before the distance is taken.
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
    Reading("direction", "both scaled to length 1", floats=unit, binaries=lambda x: unit(signs(x))),
    Reading("decay", "step size η falls to 0", decays=True),
    Reading("lars", "step size 0.0048, as LARS", eta=ETA * LARS),
    Reading("lars-decay", "step size 0.0048 falls to 0", eta=ETA * LARS, decays=True),
)


def follow(
    start: Vectors, noise: Vectors, etas: NDArray[np.float64], tau: float
) -> Iterator[tuple[Vectors, Vectors]]:
    """Backbone and target after every step.

    start: (runs, dimensions). noise: n of each step, (steps, runs, dimensions). etas: (steps,).
    """
    backbone = target = start
    for n, eta in zip(noise, etas, strict=True):
        backbone = backbone + eta * n
        target = tau * target + (1 - tau) * backbone
        yield backbone, target


def ema_toy(seed: int) -> list[Row]:
    """A row a reading and step, all readings from the same random values.

    float, binary: L2 distance of backbone and target, mean over the paper's ten runs; float_std,
    binary_std: its standard deviation over them. float_many and so on: the same of `many`
    other runs. differing: share of the signs that differ, of these.
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
    """Where the runs start, and their noise."""
    random = np.random.default_rng(seed)
    start = random.standard_normal((runs, DIMENSIONS))
    return start, random.standard_normal((STEPS, runs, DIMENSIONS))


def _distances(reading: Reading, start: Vectors, noise: Vectors) -> Iterator[dict[str, float]]:
    """Mean and standard deviation over the runs after every step."""
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
