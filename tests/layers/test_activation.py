"""RSign and RPReLU against twins of ordinary operations in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from burn.layers import BinaryConv2d, RPReLU, RSign
from burn.layers.activation import sum_products
from burn.layers.temperature import SoftBinaryConv2d

CHANNELS = 3


def channels(vector: Tensor) -> Tensor:
    return vector.view(1, -1, 1, 1)


def rprelu_twin(x: Tensor, before: Tensor, slope: Tensor, after: Tensor) -> Tensor:
    shifted = x + channels(before)
    return torch.where(shifted > 0, shifted, channels(slope) * shifted) + channels(after)


def rsign_twin(x: Tensor, shift: Tensor, *, gradient: str) -> Tensor:
    """The sign, with the gradient of a function that autograd can differentiate."""
    shifted = x + channels(shift)
    inside = shifted.clamp(-1, 1)
    smooth = inside if gradient == "clip" else 2 * inside - inside * inside.abs()
    value = torch.where(shifted >= 0, 1.0, -1.0).to(x.dtype)
    return value + (smooth - smooth.detach())


def leaves(count: int) -> list[Tensor]:
    """An input and `count` vectors, for two calls to be compared."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, CHANNELS, 5, 6, generator=generator, dtype=torch.float64)
    vectors = [
        torch.randn(CHANNELS, generator=generator, dtype=torch.float64) for _ in range(count)
    ]
    return [tensor.requires_grad_() for tensor in (x, *vectors)]


def test_rprelu_forward_and_backward():
    mine, twin = leaves(3), leaves(3)
    values: dict[str, Tensor] = dict(zip(("before", "slope", "after"), mine[1:], strict=True))
    result = functional_call(RPReLU(CHANNELS).double(), values, (mine[0],))
    expected = rprelu_twin(*twin)
    # float64 throughout; sums over 120 elements in another order: some 1e-15.
    torch.testing.assert_close(result, expected, rtol=1e-13, atol=1e-13)
    arriving = torch.randn_like(expected)
    result.backward(arriving)
    expected.backward(arriving)
    for ours, theirs in zip(mine, twin, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-13, atol=1e-13)


def test_rprelu_gradient_against_finite_differences():
    layer = RPReLU(CHANNELS).double()
    x, before, slope, after = leaves(3)
    shifted = x.detach() + channels(before.detach())
    with torch.no_grad():  # away from the kink, which finite differences cannot step over
        x += torch.where(shifted.abs() < 0.05, 0.2, 0.0)

    def call(x: Tensor, before: Tensor, slope: Tensor, after: Tensor) -> Tensor:
        return functional_call(layer, {"before": before, "slope": slope, "after": after}, (x,))

    assert torch.autograd.gradcheck(call, (x, before, slope, after))


def test_rprelu_starts_as_a_leaky_relu():
    x = torch.tensor([-2.0, -0.5, 0.0, 3.0]).view(1, 1, 2, 2).expand(1, CHANNELS, 2, 2)
    assert RPReLU(CHANNELS)(x)[0, 1].flatten().tolist() == [-0.5, -0.125, 0.0, 3.0]


@pytest.mark.parametrize("gradient", ["poly", "clip"])
def test_rsign_forward_and_backward(gradient: str):
    mine, twin = leaves(1), leaves(1)
    layer = RSign(CHANNELS, gradient).double()  # type: ignore[arg-type]
    result = functional_call(layer, {"shift": mine[1]}, (mine[0],))
    expected = rsign_twin(*twin, gradient=gradient)
    assert set(result.detach().unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(result, expected.detach().round())
    arriving = torch.randn_like(expected)
    result.backward(arriving)
    expected.backward(arriving)
    for ours, theirs in zip(mine, twin, strict=True):
        # float64; the twin's 2 - |x| - |x| rounds otherwise than 2 - 2|x|, in the last bits.
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-13, atol=1e-13)


def test_rsign_threshold_is_minus_the_shift_and_zero_counts_as_plus():
    layer = RSign(2)
    with torch.no_grad():
        layer.shift.copy_(torch.tensor([0.5, -0.5]))
    x = torch.tensor([-0.75, -0.5, 0.25, 0.5]).view(1, 1, 2, 2).expand(1, 2, 2, 2)
    assert layer(x)[0, 0].flatten().tolist() == [-1, 1, 1, 1]
    assert layer(x)[0, 1].flatten().tolist() == [-1, -1, -1, 1]


@pytest.mark.parametrize("layout", ["same", "slice", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_over_channels_in_any_layout(layout: str, dtype: torch.dtype):
    """A gradient may be a slice of a larger map, or in another memory format."""
    a, b = (torch.ones(1, 2, 17, 241).to(dtype) for _ in range(2))
    if layout == "slice":
        a = torch.cat([a, a], dim=1)[:, 2:]
    elif layout == "channels_last":
        a = a.to(memory_format=torch.channels_last)
    for found in sum_products(a, b):
        assert found.dtype == torch.promote_types(dtype, torch.float32)
        assert found.tolist() == [4097, 4097]  # bfloat16 has no 4097


@pytest.mark.parametrize("layer", [RPReLU(8), BinaryConv2d(8, 8, 3), SoftBinaryConv2d(8, 8, 3)])
def test_a_batch_may_be_empty(layer: torch.nn.Module):
    x = torch.zeros(0, 8, 6, 6, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert all(p.grad is None or not p.grad.any() for p in layer.parameters())


def test_rprelu_of_a_float32_map_under_autocast():
    """PReLU narrows its output there, so the arriving gradient is narrower than the input."""
    x = torch.randn(3, CHANNELS, 8, 8)
    gradients = []
    for enabled in (True, False):
        layer, given = RPReLU(CHANNELS), x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            layer(given).float().square().sum().backward()
        gradients.append([given.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert one.dtype == other.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


def test_parameters_of_a_bfloat16_input_get_float32_gradients_summed_in_float32():
    """bfloat16 has no 4097: a sum kept in it would end at 4096."""
    x = torch.ones(1, 1, 17, 241, dtype=torch.bfloat16, requires_grad=True)
    layer = RPReLU(1)
    result = layer(x)
    result.backward(torch.ones_like(result))
    assert result.dtype == torch.bfloat16
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    for parameter, expected in ((layer.before, 4097), (layer.slope, 0), (layer.after, 4097)):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.item() == expected


def test_rprelu_keeps_its_input_and_nothing_else_of_that_size():
    x = torch.randn(2, CHANNELS, 8, 8, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        RPReLU(CHANNELS)(x)
    assert [t.data_ptr() for t in kept if t.numel() >= x.numel()] == [x.data_ptr()]


def test_rprelu_leaves_its_input_alone():
    x = torch.randn(2, CHANNELS, 4, 4, requires_grad=True)
    before = x.detach().clone()
    RPReLU(CHANNELS)(x).sum().backward()
    assert np.array_equal(x.detach().numpy(), before.numpy())
