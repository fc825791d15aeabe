import math

import numpy as np
import pytest

from reproduction.analyses.ema_toy import compute as toy


def test_the_toy_is_the_papers_equation_in_a_plain_loop():
    random = np.random.default_rng(7)
    start = random.standard_normal((toy.RUNS, toy.DIMENSIONS))
    noise = random.standard_normal((toy.STEPS, toy.RUNS, toy.DIMENSIONS))
    real = [[0.0] * toy.RUNS for _ in range(toy.STEPS)]
    binary = [[0.0] * toy.RUNS for _ in range(toy.STEPS)]
    differing = [0] * toy.STEPS
    for run in range(toy.RUNS):
        for place in range(toy.DIMENSIONS):
            backbone = target = start[run, place]
            for step in range(toy.STEPS):
                backbone = backbone + 4.8 * noise[step, run, place]
                target = 0.99 * target + 0.01 * backbone
                real[step][run] += (backbone - target) ** 2
                if (backbone >= 0) != (target >= 0):
                    binary[step][run] += 4
                    differing[step] += 1
    found = list(toy._distances(toy.READINGS[0], start, noise))
    for step, row in enumerate(found):
        for name, squares in (("float", real[step]), ("binary", binary[step])):
            distances = [math.sqrt(square) for square in squares]
            # sums of a hundred squares in another order, in float64
            assert row[name] == pytest.approx(np.mean(distances), rel=1e-12)
            assert row[f"{name}_std"] == pytest.approx(np.std(distances), rel=1e-9)
        assert row["differing"] == differing[step] / (toy.RUNS * toy.DIMENSIONS)


def test_the_expected_float_distance_is_the_closed_form(monkeypatch: pytest.MonkeyPatch):
    """B - T follows D ← τ(D + η·n), so E|D|² = 100·η²·Σ τ^2k for k to t."""
    monkeypatch.setattr(toy, "MANY", 200)
    rows = [row for row in toy.ema_toy(0) if row["reading"] == "literal"]
    for row in rows[::20]:
        variance = 4.8**2 * sum(0.99 ** (2 * k) for k in range(1, row["step"] + 1))
        # a mean over 200 runs of a norm in 100 dimensions: 0.5 % of chance, 0.3 % below √E|D|²
        assert row["float_many"] == pytest.approx(math.sqrt(100 * variance), rel=0.02)
        assert row["binary_many"] <= 20


def test_readings_put_both_vectors_on_a_scale():
    x = np.array([[3.0, -4.0, 0.0, 0.0]])
    assert np.array_equal(toy.signs(x), [[1, -1, 1, 1]])
    assert np.array_equal(toy.scaled_signs(x), [[1.75, -1.75, 1.75, 1.75]])
    assert np.linalg.norm(toy.l2_normalize(x)) == pytest.approx(1)
    assert len({reading.name for reading in toy.READINGS}) == len(toy.READINGS)


def test_a_seed_repeats_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(toy, "MANY", 20)
    assert toy.ema_toy(3) == toy.ema_toy(3)
    assert toy.ema_toy(3) != toy.ema_toy(4)
