"""Normalization and PReLU in one: equal to the layers, with one map kept instead of two."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from burn.layers.norm_activation import norm_prelu
from burn.layers.sync_norm import synchronize_norms
from networks import randomize

SHAPE = (4, 6, 5, 3)


def layers(dtype: torch.dtype = torch.float64) -> tuple[nn.BatchNorm2d, nn.PReLU]:
    torch.manual_seed(0)
    norm, activation = randomize(nn.BatchNorm2d(6, momentum=0.3)), nn.PReLU(6)
    nn.init.uniform_(activation.weight, -0.5, 1.5)
    return norm.to(dtype), activation.to(dtype)


def maps(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, arriving = (torch.randn(SHAPE, generator=generator).to(dtype) for _ in range(2))
    return (3 * x + 1).requires_grad_(), arriving


def found(
    x: Tensor, arriving: Tensor, norm: nn.BatchNorm2d, activation: nn.PReLU, *, ours: bool
) -> list[Tensor]:
    """Output, gradients of all inputs, and the norm's buffers."""
    x, norm, activation = copy.deepcopy(x), copy.deepcopy(norm), copy.deepcopy(activation)
    y = norm_prelu(x, norm, activation) if ours else activation(norm(x))
    y.backward(arriving.to(y.dtype))
    parameters = [*norm.parameters(), *activation.parameters()]
    gradients = [p.grad for p in (x, *parameters) if p.grad is not None]
    assert len(gradients) == 4
    return [y.detach(), *gradients, *norm.buffers()]


@pytest.mark.parametrize("training", [True, False])
def test_it_equals_the_layers(training: bool):
    norm, activation = layers()
    norm.train(training)
    one, other = (found(*maps(), norm, activation, ours=ours) for ours in (True, False))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert int(one[-1]) == int(training)


def test_under_autocast_it_is_as_exact_as_the_layers():
    """Both round to bfloat16; neither is further from float64 than the other."""
    norm, activation = layers(torch.float32)
    exact = found(*maps(), *layers(), ours=False)
    x, arriving = maps(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (found(x, arriving, norm, activation, ours=o) for o in (True, False))
    for a, b, reference in zip(ours[:5], theirs[:5], exact[:5], strict=True):
        assert a.dtype == b.dtype
        error, usual = ((t.double() - reference).norm() for t in (a, b))
        assert error <= 1.5 * usual + 1e-12


def test_a_float32_map_under_autocast():
    """PReLU narrows its output there, so the arriving gradient is narrower than the input."""
    norm, activation = layers(torch.float32)
    exact = found(*maps(), *layers(), ours=False)
    with torch.autocast("cpu", torch.bfloat16):
        ours = found(*maps(torch.float32), norm, activation, ours=True)
    for a, reference in zip(ours[:5], exact[:5], strict=True):
        assert (a.double() - reference).norm() < 0.02 * reference.norm()


def test_only_its_input_is_kept_of_the_size_of_a_map():
    norm, activation = layers()
    x, _ = maps()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        norm_prelu(x, norm, activation)
    assert [t.data_ptr() for t in kept if t.shape == SHAPE] == [x.data_ptr()]


def test_other_norms_are_used_as_they_are():
    """One over processes and one with a cumulative average; a single value has no statistics."""
    norm, activation = layers()
    x, _ = maps()
    shared = cast(nn.BatchNorm2d, synchronize_norms(copy.deepcopy(norm)))
    cumulative = nn.BatchNorm2d(6, momentum=None).double()
    for other in (shared, cumulative):
        same = copy.deepcopy(other)
        torch.testing.assert_close(norm_prelu(x, other, activation), activation(same(x)))
        torch.testing.assert_close(other.running_mean, same.running_mean)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm_prelu(x[:1, :, :1, :1], norm, activation)
