"""BinaryConv2d against convolutions of explicit signs with explicit binary weights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burn.core.types import Precision
from burn.layers import BinaryConv2d

IN, OUT = 4, 6
PRECISIONS = tuple(Precision)


def straight_through(value: Tensor, smooth: Tensor) -> Tensor:
    """`value`, with the gradient of `smooth`."""
    return value.detach() + (smooth - smooth.detach())


def signs_of(x: Tensor, gradient: str) -> Tensor:
    inside = x.clamp(-1, 1)
    smooth = inside if gradient == "clip" else 2 * inside - inside * inside.abs()
    return straight_through(torch.where(x >= 0, 1.0, -1.0).to(x.dtype), smooth)


def weight_of(weight: Tensor, gradient: str) -> Tensor:
    signs = torch.where(weight >= 0, 1.0, -1.0).to(weight.dtype)
    scale = weight.detach().abs().sum(dim=(1, 2, 3), keepdim=True) / weight[0].numel()
    smooth = weight.clamp(-1, 1) if gradient == "clip" else weight * scale
    return straight_through(signs * scale, smooth)


def twin(layer: BinaryConv2d, x: Tensor, shift: Tensor, weight: Tensor) -> Tensor:
    """The layer's formula in ordinary operations, differentiated by autograd."""
    x = x + shift.view(1, -1, 1, 1)
    if layer.precision != Precision.FLOAT:
        x = signs_of(x, layer.sign.gradient)
    if layer.precision == Precision.BINARY:
        weight = weight_of(weight, layer.weight_gradient)
    return F.conv2d(x, weight, stride=layer.stride, padding=weight.shape[-1] // 2)


def build(precision: Precision, size: int, stride: int, **options: str) -> BinaryConv2d:
    """A float64 layer whose weights and shifts are spread past 1."""
    layer = BinaryConv2d(IN, OUT, size, stride, precision, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        layer.weight.copy_(torch.randn_like(layer.weight))
        layer.sign.shift.copy_(0.3 * torch.randn_like(layer.sign.shift))
    return layer


@pytest.mark.parametrize(
    ("precision", "size", "stride"), list(itertools.product(PRECISIONS, (1, 3), (1, 2)))
)
@pytest.mark.parametrize("gradients", [("poly", "clip"), ("clip", "identity")])
def test_forward_and_backward(
    precision: Precision, size: int, stride: int, gradients: tuple[str, str]
):
    layer = build(
        precision, size, stride, activation_gradient=gradients[0], weight_gradient=gradients[1]
    )
    x = torch.randn(3, IN, 8, 7, dtype=torch.float64, requires_grad=True)
    copies = [t.detach().clone().requires_grad_() for t in (x, layer.sign.shift, layer.weight)]
    result, expected = layer(x), twin(layer, *copies)
    # float64 sums of at most 36 terms forward and some 500 backward, in another order.
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    arriving = torch.randn_like(expected)
    result.backward(arriving)
    expected.backward(arriving)
    for ours, theirs in zip((x, layer.sign.shift, layer.weight), copies, strict=True):
        assert ours.grad is not None
        assert ours.grad.abs().sum() > 0
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_binary_forward_by_loop():
    """Every tap by itself, in NumPy; taps outside the image are left out."""
    layer = build(Precision.BINARY, 3, 2)
    x = torch.randn(2, IN, 5, 6, dtype=torch.float64)
    with torch.no_grad():
        result = layer(x).numpy()
    weight, shift, image = (t.detach().numpy() for t in (layer.weight, layer.sign.shift, x))
    expected = np.zeros((2, OUT, 3, 3))
    for n, o, row, column in np.ndindex(expected.shape):
        total = 0
        for c, i, j in np.ndindex(IN, 3, 3):
            r, s = 2 * row + i - 1, 2 * column + j - 1
            if 0 <= r < 5 and 0 <= s < 6:
                agree = (image[n, c, r, s] + shift[c] >= 0) == (weight[o, c, i, j] >= 0)
                total += 1 if agree else -1
        expected[n, o, row, column] = total * np.abs(weight[o]).mean()
    # The scale's last bits; and its 36 additions need not cancel to 0 where the signs do.
    assert np.allclose(result, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("precision", [Precision.BINARY, Precision.BINARY_ACTIVATIONS])
def test_padding_comes_after_the_sign(precision: Precision):
    """Ones everywhere: the output counts the taps inside the image. A sign of the padding adds."""
    layer = BinaryConv2d(IN, 1, 3, precision=precision)
    torch.nn.init.ones_(layer.weight)
    with torch.no_grad():
        counts = layer(torch.ones(1, IN, 4, 5))[0, 0]
    taps = torch.full((4, 5), 9.0)
    taps[[0, -1]] = taps[:, [0, -1]] = 6
    taps[[0, 0, -1, -1], [0, -1, 0, -1]] = 4
    assert torch.equal(counts, IN * taps)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("height", [1, 2, 7, 8])
def test_output_is_the_input_over_the_stride_rounded_up(height: int, size: int, stride: int):
    layer = BinaryConv2d(IN, OUT, size, stride)
    shape = layer(torch.randn(2, IN, height, 5)).shape
    assert shape == (2, OUT, -(-height // stride), -(-5 // stride))


def test_one_state_dict_loads_at_every_precision():
    source = build(Precision.BINARY_ACTIVATIONS, 3, 1)
    x = torch.randn(2, IN, 5, 5, dtype=torch.float64)
    outputs = []
    for precision in PRECISIONS:
        layer = BinaryConv2d(IN, OUT, 3, precision=precision).double()
        assert list(layer.state_dict()) == ["weight", "sign.shift"]
        layer.load_state_dict(source.state_dict(), strict=True)
        outputs.append(layer(x))
    for a, b in itertools.combinations(outputs, 2):
        assert not torch.allclose(a, b), "two precisions gave the same output"


@pytest.mark.parametrize("precision", [Precision.BINARY, Precision.BINARY_ACTIVATIONS])
def test_x_is_the_only_tensor_of_its_size_that_is_kept(precision: Precision):
    layer = BinaryConv2d(IN, OUT, 3, precision=precision)
    x = torch.randn(2, IN, 16, 16, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(x)
    assert [t.data_ptr() for t in kept if t.numel() >= x.numel()] == [x.data_ptr()]
    # Else only what has the size of the parameters: the shift, the weight used, and the latent one.
    assert sum(t.numel() for t in kept) <= x.numel() + IN + 2 * layer.weight.numel()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_autocast(precision: Precision, dtype: torch.dtype):
    layer = build(precision, 3, 2).float()
    # Powers of two away from 0: x + shift has the same sign and |x + shift| > 1 in both formats.
    x = (2 * torch.where(torch.rand(2, IN, 6, 6) < 0.5, -1.0, 1.0)).to(dtype).requires_grad_()
    expected = layer(x.detach().float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = layer(x)
    result.float().square().sum().backward()
    assert result.dtype == torch.bfloat16
    assert x.grad is not None
    assert x.grad.dtype == dtype
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()
    assert layer.weight.grad is not None
    assert layer.weight.grad.abs().sum() > 0
    # Rounding to bfloat16's 8 bits errs by up to 2^-8: the output by that much of itself, each
    # product by twice that of its size, |x + shift| · |W| with |shift| < 1.
    sizes = F.conv2d(x.detach().float().abs() + 1, layer.weight.abs(), stride=2, padding=1)
    bound = 2**-8 * expected.abs() + 2**-7 * sizes
    assert ((result.float() - expected).abs() <= bound).all()


@pytest.mark.parametrize("needed", ["x", "shift", "weight"])
def test_gradient_of_one_input_alone(needed: str):
    """The backward pass computes what is asked for, and that the same as ever."""
    layer = build(Precision.BINARY, 3, 1)
    x = torch.randn(2, IN, 5, 5, dtype=torch.float64, requires_grad=True)
    tensors = {"x": x, "shift": layer.sign.shift, "weight": layer.weight}
    layer(x).square().sum().backward()
    wanted = tensors[needed].grad
    assert wanted is not None
    for name, tensor in tensors.items():
        tensor.grad = None
        tensor.requires_grad_(name == needed)
    layer(x).square().sum().backward()
    for name, tensor in tensors.items():
        assert (tensor.grad is None) == (name != needed)
    # Another order of float64 sums is all that may differ.
    torch.testing.assert_close(tensors[needed].grad, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3])
def test_weights_start_uniform_within_the_bound(size: int):
    layer = BinaryConv2d(64, 32, size)
    bound = (64 * size * size) ** -0.5
    assert layer.weight.abs().max() <= bound
    # Of 2,048 or more uniform draws, the largest lies within a hundredth of the bound, and the
    # standard deviation within 5 % of bound / sqrt(3) (its standard error is below 1 %).
    assert layer.weight.abs().max() > 0.99 * bound
    assert layer.weight.detach().std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not layer.sign.shift.any()
