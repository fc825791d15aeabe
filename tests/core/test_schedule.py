"""Schedules at their ends, their middles and their corners."""

from __future__ import annotations

import math

import pytest

from burn.core.schedule import cosine_anneal, learning_rate_factor, loss_balance


def exact(value: float) -> object:
    """A few roundings of float64 (a cosine of π/2 is 6e-17, not 0)."""
    return pytest.approx(value, rel=0, abs=1e-15)


@pytest.mark.parametrize(
    ("progress", "lam"),
    [(0.0, 0.9), (0.25, 0.8 + 0.1 * math.sqrt(0.5)), (0.5, 0.8), (1.0, 0.7)],
)
def test_lambda_cosine(progress: float, lam: float):
    assert loss_balance(progress, "cosine", 0.9, 0.7) == exact(lam)


def test_lambda_cosine_is_equation_3():
    num_steps = 37
    for t in range(num_steps + 1):
        equation = 0.7 - (0.7 - 0.9) * (math.cos(math.pi * t / num_steps) + 1) / 2
        assert loss_balance(t / num_steps, "cosine", 0.9, 0.7) == exact(equation)


@pytest.mark.parametrize("progress", [0.0, 0.3, 0.5, 1.0])
def test_lambda_constant_is_the_last_value(progress: float):
    assert loss_balance(progress, "constant", 0.9, 0.7) == 0.7


@pytest.mark.parametrize(
    ("progress", "lam"),
    [(0.0, 1.0), (0.25, 1.0), (0.5, 1.0), (math.nextafter(0.5, 1.0), 0.0), (0.75, 0.0), (1.0, 0.0)],
)
def test_lambda_heaviside_is_1_up_to_half_and_0_after(progress: float, lam: float):
    assert loss_balance(progress, "heaviside", 0.9, 0.7) == lam


def test_cosine_anneal_goes_either_way():
    for start, end in ((0.9, 0.7), (0.0, 1.0)):
        assert cosine_anneal(0.0, start, end) == exact(start)
        assert cosine_anneal(0.5, start, end) == exact((start + end) / 2)
        assert cosine_anneal(1.0, start, end) == exact(end)


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
def test_warm_up_is_a_line_that_reaches_1_where_the_course_begins(shape: str):
    factors = [learning_rate_factor(step, 100, 4, shape) for step in range(6)]
    assert factors[:5] == exact_list([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[5] <= 1.0


def exact_list(values: list[float]) -> object:
    return pytest.approx(values, rel=0, abs=1e-15)  # as `exact`


@pytest.mark.parametrize(
    ("shape", "middle", "last"),
    [("cosine", 0.5, 0.0), ("linear", 0.5, 0.0), ("constant", 1.0, 1.0)],
)
@pytest.mark.parametrize("num_warmup", [0, 20])
def test_after_the_warm_up(shape: str, middle: float, last: float, num_warmup: int):
    def factor(step: int) -> float:
        return learning_rate_factor(step, 100, num_warmup, shape)

    assert factor(num_warmup) == exact(1.0)
    assert factor((100 + num_warmup) // 2) == exact(middle)
    assert factor(100) == exact(last)
    assert factor(120) == exact(last), "past the end nothing moves"


def test_cosine_between_the_ends():
    for step in range(10, 51):
        expected = (1 + math.cos(math.pi * (step - 10) / 40)) / 2
        assert learning_rate_factor(step, 50, 10, "cosine") == exact(expected)


def test_the_last_step_still_learns():
    assert learning_rate_factor(99, 100, 0, "cosine") > 0
    assert learning_rate_factor(99, 100, 0, "linear") == exact(0.01)


def test_a_warm_up_as_long_as_the_stage():
    factors = [learning_rate_factor(step, 5, 5, "cosine") for step in range(5)]
    assert factors == exact_list([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6])
