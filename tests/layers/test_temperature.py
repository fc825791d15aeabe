"""Soft weights against their formula, between float weights and binary ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from burn.core.types import Precision
from burn.layers import BinaryConv2d
from burn.layers.sign import binary_weight
from burn.layers.temperature import SoftBinaryConv2d, falling_temperature, soft_weight


def weights() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(5, 4, 3, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("gradient", ["clip", "identity"])
@pytest.mark.parametrize("temperature", [0.01, 0.7, 100.0])
def test_values_and_gradients_channel_by_channel(temperature: float, gradient: str):
    weight = weights().requires_grad_()
    found = soft_weight(weight, torch.tensor(temperature, dtype=torch.float64), gradient)  # type: ignore[arg-type]
    arriving = torch.randn_like(found)
    found.backward(arriving)
    assert weight.grad is not None
    for channel, value, grad, ours in zip(
        weight.detach(), found, arriving, weight.grad, strict=True
    ):
        soft = torch.minimum(torch.maximum(channel / temperature, -torch.ones(())), torch.ones(()))
        factor = channel.abs().sum() / soft.abs().sum()
        # Two float64 sums of 36 numbers and their quotient, in another order.
        torch.testing.assert_close(value, soft * factor, rtol=1e-13, atol=0)
        passes = (channel.abs() <= 1) if gradient == "clip" else factor
        torch.testing.assert_close(ours, grad * passes, rtol=1e-13, atol=0)


@pytest.mark.parametrize("gradient", ["clip", "identity"])
def test_without_temperature_they_are_binary_weights(gradient: str):
    one, other = (weights().requires_grad_() for _ in range(2))
    with torch.no_grad():
        for weight in (one, other):
            weight[0, 0, 0, 0], weight[1] = 0.0, 0.0  # the sign of 0 is +1, and mean|W| may be 0
    found = soft_weight(one, torch.zeros((), dtype=torch.float64), gradient)  # type: ignore[arg-type]
    expected = binary_weight(other, gradient)  # type: ignore[arg-type]
    assert torch.equal(found, expected)
    arriving = torch.randn_like(found)
    found.backward(arriving)
    expected.backward(arriving)
    assert one.grad is not None
    assert other.grad is not None
    assert torch.equal(one.grad, other.grad)


def test_a_high_temperature_leaves_the_weights():
    weight = weights()
    found = soft_weight(weight, torch.tensor(50.0, dtype=torch.float64))
    torch.testing.assert_close(found, weight, rtol=1e-13, atol=0)  # divided and multiplied by means


def test_weights_that_are_all_zero_stay_finite():
    weight = torch.zeros(2, 3, 1, 1)
    assert not soft_weight(weight, torch.tensor(0.5)).any()


@pytest.mark.parametrize("precision", list(Precision))
def test_the_temperature_counts_in_training_with_binary_weights_alone(precision: Precision):
    torch.manual_seed(0)
    soft = SoftBinaryConv2d(4, 6, 3, 2, precision)
    hard = BinaryConv2d(4, 6, 3, 2, precision)
    assert list(soft.state_dict()) == list(hard.state_dict())
    hard.load_state_dict(soft.state_dict())
    x = torch.randn(2, 4, 7, 5)
    assert torch.equal(soft(x), hard(x)), "the temperature is 0 at first"
    soft.temperature.fill_(0.1)
    assert torch.equal(soft(x), hard(x)) == (precision != Precision.BINARY)
    assert torch.equal(soft.eval()(x), hard.eval()(x))


def test_the_temperature_falls_by_the_same_factor_in_equal_times():
    found = [falling_temperature(i / 4, 1e-8) for i in range(5)]
    assert found == pytest.approx([1, 1e-2, 1e-4, 1e-6, 1e-8], rel=1e-12)


def test_in_bfloat16_the_weights_are_soft_too():
    """Once the signs alone were convolved, with some weight's size as their scale."""
    convolution = SoftBinaryConv2d(32, 8, 3).train()
    convolution.temperature.fill_(1.0)
    x = torch.randn(2, 32, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = convolution(x)
    assert found.dtype == torch.bfloat16
    # Rounded to 8 bits are each weight, here up to 0.06, and the sum of 288, of size 1.
    torch.testing.assert_close(found.float(), convolution(x), rtol=0.01, atol=0.02)
    convolution.eval()
    with torch.autocast("cpu", torch.bfloat16):
        binary = convolution(x)
    assert not torch.allclose(found.float(), binary.float(), rtol=0.01, atol=0.02)
