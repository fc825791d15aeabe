"""Squeeze-and-excitation and learned mixtures against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from burn.layers.gate import ChannelGate, channel_means
from burn.layers.mix import Mix


@pytest.mark.parametrize("bias", [True, False])
def test_the_gate_is_the_papers_formula(bias: bool):
    torch.manual_seed(0)
    gate = ChannelGate(12, 16, bias=bias).double()
    x = torch.randn(3, 12, 5, 4, dtype=torch.float64)
    state = {name: tensor.numpy() for name, tensor in gate.state_dict().items()}
    assert state["squeeze.weight"].shape == (2, 12), "an eighth of the outputs"
    means = x.numpy().reshape(3, 12, -1).mean(axis=2)
    hidden = np.maximum(means @ state["squeeze.weight"].T + state.get("squeeze.bias", 0), 0)
    z = hidden @ state["excite.weight"].T + state.get("excite.bias", 0)
    found = gate(channel_means(x))
    assert found.shape == (3, 16, 1, 1)
    # Sums of 12 and of 20 float64 numbers in another order.
    np.testing.assert_allclose(found[:, :, 0, 0].detach(), 1 / (1 + np.exp(-z)), rtol=1e-12)
    assert len(state) == (4 if bias else 2)


def test_few_channels_have_one_hidden_unit():
    assert ChannelGate(4, 4).squeeze.out_features == 1


def test_means_are_accumulated_in_float32():
    x = torch.full((1, 1, 64, 64), 1.0, dtype=torch.bfloat16)
    x[0, 0, 0, 0] = 2.0
    means = channel_means(x)
    assert means.dtype == torch.float32
    assert means.item() == 1 + 2**-12


def test_mixtures_and_their_gradients():
    mix = Mix(4).double()
    assert (mix.share == 0.5).all()
    with torch.no_grad():
        mix.share.copy_(torch.tensor([-0.5, 0.25, 1.0, 1.5]))
    used = torch.tensor([0.0, 0.25, 1.0, 1.0], dtype=torch.float64).view(1, 4, 1, 1)
    first, second = torch.randn(2, 3, 4, 2, 2, dtype=torch.float64)
    found = mix(first, second)
    assert torch.equal(found, used * first + (1 - used) * second)
    found.sum().backward()
    # Also where the share is outside, so that it can return. Sums of 12 float64 numbers.
    expected = (first - second).sum(dim=(0, 2, 3))
    torch.testing.assert_close(mix.share.grad, expected, rtol=1e-12, atol=1e-12)
    # The mixture of the means is the mean of the mixture.
    torch.testing.assert_close(
        mix(channel_means(first), channel_means(second)), channel_means(found), rtol=1e-12, atol=0.0
    )
