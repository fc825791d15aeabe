"""Expert convolutions against a loop over images with one weight each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from burn.core.types import Precision
from burn.layers import expert
from burn.layers.expert import ExpertConv2d, choose

IN, OUT, GROUPS, EXPERTS = 8, 12, 4, 3


def straight_through(value: Tensor, smooth: Tensor) -> Tensor:
    """`value`, with the gradient of `smooth`."""
    return value.detach() + (smooth - smooth.detach())


def sign_of(x: Tensor) -> Tensor:
    return 2 * (x >= 0).to(x.dtype) - 1


def binary(weight: Tensor, experts: Tensor, gradient: str) -> Tensor:
    scale = experts.detach().abs().mean(dim=(0, 2, 3, 4)).view(-1, 1, 1, 1)
    smooth = weight.clamp(-1, 1) if gradient == "clip" else weight * scale
    return straight_through(sign_of(weight) * scale, smooth)


def twin(layer: ExpertConv2d, x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """The paper's formula, image by image: a gate mixes the weights before they become binary."""
    outputs = []
    for image in x:
        scores = p["choice.weight"] @ image.mean(dim=(1, 2)) + p["choice.bias"]
        winner = torch.zeros(EXPERTS, dtype=x.dtype)
        winner[int(scores.argmax())] = 1
        gates = straight_through(winner, scores.softmax(dim=0))
        if layer.precision == Precision.BINARY:
            mixed = sum(gates[e] * p["weight"][e] for e in range(EXPERTS))
            assert isinstance(mixed, Tensor)
            weight = binary(mixed, p["weight"], layer.weight_gradient)
        else:
            weight = p["weight"].mean(dim=0)
        if layer.precision != Precision.FLOAT:
            inside = image.clamp(-1, 1)
            poly = 2 * inside - inside * inside.abs()
            smooth = inside if layer.sign.gradient == "clip" else poly
            image = straight_through(sign_of(image), smooth)  # noqa: PLW2901
        padding = weight.shape[-1] // 2
        y = F.conv2d(image[None], weight, None, layer.stride, padding, groups=layer.groups)
        outputs.append(y[0] * p["scale"].view(-1, 1, 1))
    return torch.stack(outputs)


def build(precision: Precision, size: int = 3, stride: int = 1, **options: str) -> ExpertConv2d:
    """A float64 layer whose experts differ, some of their weights being larger than 1."""
    torch.manual_seed(0)
    layer = ExpertConv2d(IN, OUT, size, stride, GROUPS, EXPERTS, precision, **options).double()  # type: ignore[arg-type]
    with torch.no_grad():
        layer.weight.copy_(torch.randn_like(layer.weight))
        layer.scale.add_(0.3 * torch.randn_like(layer.scale))
        layer.choice.weight.mul_(5)
    return layer


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("gradients", [("poly", "clip"), ("clip", "identity")])
def test_forward_and_backward(
    precision: Precision,
    size: int,
    stride: int,
    gradients: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(expert, "_MOST_WEIGHTS", 2 * OUT * IN // GROUPS * size**2)  # parts of two
    layer = build(
        precision, size, stride, activation_gradient=gradients[0], weight_gradient=gradients[1]
    )
    x = torch.randn(7, IN, 6, 5, dtype=torch.float64, requires_grad=True)
    copies = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    other = x.detach().clone().requires_grad_()
    found, expected = layer(x), twin(layer, other, copies)
    # float64 sums of at most 18 terms forward and some 200 backward, in another order.
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    arriving = torch.randn_like(expected)
    found.backward(arriving)
    expected.backward(arriving)
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-11, atol=1e-11)
    for name, parameter in layer.named_parameters():
        grad, theirs = parameter.grad, copies[name].grad
        assert grad is not None
        if precision != Precision.BINARY and name.startswith("choice"):
            assert not grad.any(), "no expert is chosen yet"
            continue
        assert theirs is not None
        if precision != Precision.BINARY and name == "weight":
            theirs = theirs * EXPERTS  # each expert learns as a single one would
        torch.testing.assert_close(grad, theirs, rtol=1e-11, atol=1e-11)


def test_weights_within_one_are_not_clipped():
    layer = build(Precision.BINARY, weight_gradient="clip")
    with torch.no_grad():
        layer.weight.mul_(0.9 / layer.weight.abs().max())
    copies = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    x = torch.randn(5, IN, 6, 5, dtype=torch.float64)
    layer(x).square().sum().backward()
    twin(layer, x, copies).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, copies["weight"].grad, rtol=1e-11, atol=1e-11)


def test_a_gate_multiplies_the_output():
    layer = build(Precision.BINARY)
    x = torch.randn(5, IN, 6, 5, dtype=torch.float64)
    gate = torch.rand(5, OUT, 1, 1, dtype=torch.float64, requires_grad=True)
    other = gate.detach().clone().requires_grad_()
    scales = []
    found, expected = layer(x, gate=gate), layer(x) * other
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for y in (found, expected):
        layer.zero_grad()
        y.square().sum().backward()
        assert layer.scale.grad is not None
        scales.append(layer.scale.grad.clone())
    torch.testing.assert_close(gate.grad, other.grad, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(*scales, rtol=1e-11, atol=1e-11)


def test_images_choose_different_experts_and_one_image_does_not_change_another():
    layer = build(Precision.BINARY)
    x = torch.randn(16, IN, 6, 6, dtype=torch.float64)
    chosen = layer.choice(x.mean(dim=(2, 3))).argmax(dim=1)
    assert len(set(chosen.tolist())) == EXPERTS
    assert torch.equal(layer(x)[3:5], layer(x[3:5]))


def test_a_batch_without_images():
    layer = build(Precision.BINARY, stride=2)
    x = torch.zeros(0, IN, 5, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert y.shape == (0, OUT, 3, 3)
    y.sum().backward()
    assert layer.weight.grad is not None
    assert not layer.weight.grad.any()


def test_means_that_are_known_are_not_computed_again():
    layer = build(Precision.BINARY)
    x = torch.randn(3, IN, 4, 4, dtype=torch.float64)
    assert torch.equal(layer(x, means=x.mean(dim=(2, 3))), layer(x))


def test_a_choice_is_the_largest_score_with_the_softmax_gradient():
    scores = torch.tensor([[0.5, 2.0, -1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    scores.requires_grad_()
    gates = choose(scores)
    assert gates.tolist() == [[0, 1, 0], [1, 0, 0]]  # of ties the first
    arriving = torch.randn_like(gates)
    gates.backward(arriving)
    (expected,) = torch.autograd.grad(scores.softmax(dim=1), scores, arriving)
    torch.testing.assert_close(scores.grad, expected, rtol=1e-13, atol=1e-15)


def test_experts_start_as_copies_and_stay_copies_until_they_are_binary():
    torch.manual_seed(0)
    layer = ExpertConv2d(IN, OUT, 3, 1, GROUPS, EXPERTS, Precision.BINARY_ACTIVATIONS)
    bound = (IN // GROUPS * 9) ** -0.5
    assert 0.9 * bound < layer.weight.detach().abs().max() <= bound  # of 216 uniform draws
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    before = layer.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(4, IN, 5, 5)).square().sum().backward()
        optimizer.step()
    assert not torch.equal(layer.weight, before)
    assert all(torch.equal(layer.weight[0], one) for one in layer.weight[1:])
    binary_layer = ExpertConv2d(IN, OUT, 3, 1, GROUPS, EXPERTS, Precision.BINARY)
    binary_layer.load_state_dict(layer.state_dict())
    binary_layer(torch.randn(8, IN, 5, 5)).square().sum().backward()
    grad = binary_layer.weight.grad
    assert grad is not None
    assert not torch.equal(grad[0], grad[1])


def test_the_sign_has_no_threshold_to_learn():
    layer = build(Precision.BINARY)
    assert set(layer.state_dict()) == {"weight", "scale", "choice.weight", "choice.bias"}
    assert not layer.sign.shift.any()
    assert layer.fan_in == IN // GROUPS * 9
    assert layer.effective_weight().shape == layer.weight.shape


@pytest.mark.parametrize("precision", list(Precision))
def test_bfloat16_autocast(precision: Precision):
    layer = build(precision).float()
    x = torch.randn(4, IN, 6, 6, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = layer(x)
    result.float().square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()
