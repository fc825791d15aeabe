"""Signs and binary weights against their closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from burn.layers.sign import binary_weight, hard_sign, sign, sign_backward, weight_scale

# Halves and quarters: every value and closed form below is exact in each of the dtypes.
GRID = (-1.5, -1.0, -0.75, -0.5, -0.0, 0.0, 0.5, 0.75, 1.0, 1.5)
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def closed_form(x: float, gradient: str) -> float:
    """The derivative that stands in for that of the sign."""
    if gradient == "poly":
        return 2 - 2 * abs(x) if abs(x) < 1 else 0.0
    return 1.0 if abs(x) <= 1 else 0.0


def piecewise_quadratic(x: float) -> float:
    """ReActNet's smooth stand-in for the sign."""
    if abs(x) >= 1:
        return math.copysign(1.0, x)
    return 2 * x + x * x if x < 0 else 2 * x - x * x


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_plus_or_minus_one_and_zero_counts_as_plus(dtype: torch.dtype):
    x = torch.tensor(GRID, dtype=dtype)
    expected = torch.tensor([-1, -1, -1, -1, 1, 1, 1, 1, 1, 1], dtype=dtype)
    for result in (sign(x, "poly"), sign(x, "clip"), hard_sign(x)):
        assert result.dtype == dtype
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_smallest_numbers_keep_their_sign(dtype: torch.dtype):
    tiny = torch.finfo(dtype).tiny
    assert hard_sign(torch.tensor([-tiny, tiny], dtype=dtype)).tolist() == [-1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gradient", ["poly", "clip"])
def test_gradient_is_the_closed_form_times_what_arrives(gradient: str, dtype: torch.dtype):
    x = torch.tensor(GRID, dtype=dtype, requires_grad=True)
    arriving = torch.tensor([1.0, -2.0, 4.0, 8.0, -1.0, 2.0, 0.5, 1.0, -4.0, 3.0], dtype=dtype)
    sign(x, gradient).backward(arriving)  # type: ignore[arg-type]
    expected = [a * closed_form(v, gradient) for a, v in zip(arriving.tolist(), GRID, strict=True)]
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert x.grad.tolist() == expected


@pytest.mark.parametrize("gradient", ["poly", "clip"])
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float32])
def test_a_gradient_may_be_overwritten_and_narrower(gradient: str, narrow: torch.dtype):
    x = torch.tensor(GRID)
    arriving = torch.arange(1.0, 11.0).to(narrow)
    expected = [a * closed_form(v, gradient) for a, v in zip(range(1, 11), GRID, strict=True)]
    found = sign_backward(arriving, x, gradient, out=arriving)  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    assert found.tolist() == expected


@pytest.mark.parametrize("gradient", ["poly", "clip"])
def test_the_gradient_can_be_differentiated(gradient: str):
    x = torch.tensor([0.3, -0.2], requires_grad=True)
    (grad,) = torch.autograd.grad(sign(x.square(), gradient).sum(), x, create_graph=True)  # type: ignore[arg-type]
    grad.sum().backward()
    assert x.grad is not None
    assert x.grad.all()


def test_poly_is_the_derivative_of_reactnets_piecewise_quadratic():
    points = np.linspace(-1.47, 1.47, 50)  # no point within 1e-3 of -1, 0 or 1
    step = 1e-4
    slopes = [
        (piecewise_quadratic(p + step) - piecewise_quadratic(p - step)) / (2 * step) for p in points
    ]
    # The central difference of a quadratic is exact but for rounding, 1e-16 / 1e-4.
    x = torch.from_numpy(points)
    assert np.allclose(sign_backward(torch.ones_like(x), x, "poly"), slopes, rtol=0, atol=1e-11)


def test_sign_leaves_its_input_and_the_memory_format_alone():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    before = x.clone()
    result = sign(x.requires_grad_(), "poly")
    result.sum().backward()
    assert torch.equal(x, before)
    assert result.is_contiguous(memory_format=torch.channels_last)


def looped_binary_weight(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """sign(W) · mean|W| of each output channel, and the means, by loop."""
    binary, scales = np.empty_like(weight), np.empty(len(weight))
    for channel in range(len(weight)):
        total, count = 0.0, 0
        for value in weight[channel].flat:
            total += abs(value)
            count += 1
        scales[channel] = total / count
        for position in np.ndindex(weight[channel].shape):
            positive = weight[channel][position] >= 0
            binary[channel][position] = scales[channel] if positive else -scales[channel]
    return binary, scales


@pytest.fixture
def weight() -> torch.Tensor:
    """Seven channels, with zeros of both signs, ±1 exactly, and values beyond 1."""
    weight = torch.randn(7, 5, 3, 3, dtype=torch.float64)
    weight[0, 0, 0] = torch.tensor([0.0, -0.0, 1.0], dtype=torch.float64)
    weight[0, 0, 1] = torch.tensor([-1.0, 1.0 + 1e-9, -1.0 - 1e-9], dtype=torch.float64)
    return weight


@pytest.mark.parametrize("gradient", ["clip", "identity"])
def test_binary_weight_by_loop(weight: torch.Tensor, gradient: str):
    expected, scales = looped_binary_weight(weight.numpy())
    result = binary_weight(weight, gradient)  # type: ignore[arg-type]
    # Sums of 45 float64 in another order: a few units of 1e-16.
    assert np.allclose(result.numpy(), expected, rtol=1e-14, atol=0)
    assert np.allclose(weight_scale(weight).numpy().ravel(), scales, rtol=1e-14, atol=0)
    assert weight_scale(weight).shape == (7, 1, 1, 1)


def test_clip_passes_unscaled_up_to_one_and_nothing_beyond(weight: torch.Tensor):
    arriving = torch.randn_like(weight)
    weight.requires_grad_()
    binary_weight(weight, "clip").backward(arriving)
    assert weight.grad is not None
    expected = np.where(np.abs(weight.detach().numpy()) <= 1, arriving.numpy(), 0.0)
    assert np.array_equal(weight.grad.numpy(), expected)
    assert (expected == 0).sum() > 50, "the test needs weights beyond 1"


def test_identity_passes_everywhere_times_the_scale_which_is_a_constant(weight: torch.Tensor):
    """A scale that were no constant would add sign(W) · mean of (sign(W) · gradient)."""
    arriving = torch.randn_like(weight)
    _, scales = looped_binary_weight(weight.numpy())
    weight.requires_grad_()
    binary_weight(weight, "identity").backward(arriving)
    assert weight.grad is not None
    expected = arriving.numpy() * scales[:, None, None, None]
    assert np.allclose(weight.grad.numpy(), expected, rtol=1e-14, atol=0)  # the scale's last bits


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_weight_keeps_the_dtype(dtype: torch.dtype):
    weight = torch.randn(2, 3, 1, 1).to(dtype).requires_grad_()
    result = binary_weight(weight)
    result.sum().backward()
    assert weight.grad is not None
    assert result.dtype == weight.grad.dtype == dtype
