"""A block as one function, against the same layers one by one, in float64 and in bfloat16."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from burn.backbones.config import BackboneConfig
from burn.backbones.plan import block_plan
from burn.backbones.reactnet import Block
from burn.core.types import Precision
from burn.layers import RPReLU
from burn.layers.half import Half
from method_checks import in_two_processes
from networks import randomize

BINARY = (Precision.BINARY, Precision.BINARY_ACTIVATIONS)
SHAPES = ((8, 8, 1), (8, 16, 1), (8, 8, 2), (8, 16, 2))  # in, out, stride


def build(
    channels: int, out: int, stride: int, precision: Precision = Precision.BINARY,
    **gradients: str,
) -> Block:  # fmt: skip
    """Weights, shifts and maps past 1, where clipped gradients end."""
    config = BackboneConfig(**gradients)  # type: ignore[arg-type]
    block = randomize(
        Block(*block_plan("block", channels, out, stride), config, precision)
    ).double()
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.ndim == 4:
                parameter.copy_(torch.randn_like(parameter))
    return block


@contextmanager
def one_by_one() -> Iterator[None]:
    """Blocks run their layers, each of which has a slow twin of its own in the other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Half, "fits", lambda self: False)
        yield


def run(block: Block, x: Tensor) -> list[Tensor]:
    """Output, gradients of a random sum of it, and buffers."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = block(x)
    generator = torch.Generator().manual_seed(7)
    arriving = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    out.backward(arriving.to(out.dtype).to(memory_format=torch.channels_last))
    gradients = [parameter.grad for parameter in (x, *block.parameters())]
    assert all(gradient is not None for gradient in gradients)
    return [out.detach(), *gradients, *block.buffers()]  # type: ignore[list-item]


def image(channels: int, height: int = 7, width: int = 6) -> Tensor:
    x = torch.randn(3, channels, height, width, dtype=torch.float64)
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", BINARY)
@pytest.mark.parametrize("gradients", [("poly", "clip"), ("clip", "identity")])
def test_forward_backward_and_running_statistics(
    shape: tuple[int, int, int], precision: Precision, gradients: tuple[str, str]
):
    fused = build(*shape, precision, activation_gradient=gradients[0], weight_gradient=gradients[1])
    layers = copy.deepcopy(fused)
    x = image(shape[0])
    found = run(fused, x)
    with one_by_one():
        expected = run(layers, x)
    for ours, theirs in zip(found, expected, strict=True):
        # float64; the same operations in another order, sums of 126 terms.
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


def test_the_function_is_what_runs_in_training():
    assert "_Block" in type(build(8, 8, 1)(image(8)).grad_fn).__name__


def test_gradient_against_finite_differences():
    """Of what has a derivative: BN's, RPReLU's and the last shift; signs have none."""
    block = build(4, 8, 1)
    x = image(4, 4, 4)
    names = ("weight", "bias"), ("slope", "after")
    chosen = [getattr(block.pointwise_norm, n) for n in names[0]]
    chosen += [getattr(block.pointwise_activation, n) for n in names[1]]

    def call(*_: Tensor) -> Tensor:
        return block(x)

    assert torch.autograd.gradcheck(call, chosen)


def test_a_block_keeps_its_input_and_what_its_convolutions_gave():
    """Of maps: the block's input and two more; neither signs, nor binary weights, nor x1."""
    block = build(8, 16, 1)
    x = image(8, 16, 16).requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        block(x)
    parameters = {parameter.data_ptr() for parameter in block.parameters()}
    large = [t for t in kept if t.numel() > 16 and t.data_ptr() not in parameters]
    assert sorted(t.shape[1] for t in large) == [8, 8, 16]
    assert sum(t.data_ptr() == x.data_ptr() for t in large) == 1


def test_input_and_arriving_gradient_stay_as_they_are():
    block = build(8, 8, 1)
    x = image(8).requires_grad_()
    before = x.detach().clone()
    out = block(x)
    arriving = torch.randn_like(out)
    copied = arriving.clone()
    out.backward(arriving)
    assert torch.equal(x.detach(), before)
    assert torch.equal(arriving, copied)


def test_two_backward_passes_add_up():
    block = build(8, 8, 2)
    x = image(8)
    block(x).sum().backward()
    once = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    block(x).sum().backward()
    for gradient, parameter in zip(once, block.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient, rtol=1e-12, atol=1e-14)


def test_zero_is_plus_one_also_when_negative():
    """-0.0 in the map and in the shift: their sum is -0.0, whose sign bit is set."""
    block = build(8, 8, 1)
    x = image(8)
    x[0] = -0.0
    with torch.no_grad():
        block.spatial.sign.shift.fill_(-0.0)
    fused = block(x)
    with one_by_one():
        torch.testing.assert_close(fused, block(x), rtol=1e-12, atol=1e-12)


def test_bfloat16_maps_give_float32_gradients():
    """In float32 where it matters: sums over the map and the parameters' gradients."""
    block = build(16, 32, 1).float()
    exact = copy.deepcopy(block).double()
    x = image(16, 16, 16)
    found = run(block, x.bfloat16())
    assert found[0].dtype == torch.bfloat16
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in block.parameters())
    expected = run(exact, x.bfloat16().double())
    for (name, _), ours, theirs in zip(
        [("out", 0), ("x", 0), *block.named_parameters()], found, expected, strict=False
    ):
        cosine = torch.cosine_similarity(ours.double().flatten(), theirs.flatten(), dim=0)
        assert cosine > 0.99, name  # a sign near zero may flip: 8 bits of mantissa


@pytest.mark.parametrize("stays", ["eval", "momentum", "type", "image", "float"])
def test_what_it_does_not_know_runs_layer_by_layer(stays: str):
    precision = Precision.FLOAT if stays == "float" else Precision.BINARY
    block = build(8, 8, 1, precision)
    norm = block.pointwise_norm
    x = image(8)
    if stays == "eval":
        norm.eval()
    elif stays == "momentum":
        norm.momentum = None  # type: ignore[assignment]
    elif stays == "type":
        block.pointwise_norm = type("Other", (nn.BatchNorm2d,), {})(8).double()
    elif stays == "image":
        x = x[:1]
    assert "RPReLU" in type(block(x.requires_grad_()).grad_fn).__name__


def test_a_layer_that_is_replaced_is_heeded():
    block = build(8, 8, 1)
    other = RPReLU(8).double()
    with torch.no_grad():
        other.after.fill_(100.0)
    before = block(image(8)).mean()
    block.pointwise_activation = other
    assert block(image(8)).mean() > before + 50


def share_of(rank: int) -> slice:
    """The images of each of two processes, which have different numbers of them."""
    return slice(0, 2) if rank == 0 else slice(2, 5)


def synchronized(rank: int) -> list[Tensor]:
    """What one of two processes finds, of a block whose BN is SyncBN."""
    torch.manual_seed(0)
    block = build(8, 16, 2)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(block)
    x, arriving = five_images()
    own = x[share_of(rank)].requires_grad_()
    out = synced(own)
    assert "_Block" in type(out.grad_fn).__name__
    out.backward(arriving[share_of(rank)])
    assert own.grad is not None
    gradients = [p.grad for p in synced.parameters() if p.grad is not None]
    return [out.detach(), own.grad, *gradients, *synced.buffers()]


def five_images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = (5, 8, 7, 6), (5, 16, 4, 3)
    x, arriving = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return x.contiguous(memory_format=torch.channels_last), arriving


def test_two_processes_normalise_together(tmp_path: Path):
    """With SyncBN they are one process with the images of both, in the same function."""
    torch.manual_seed(0)
    block = build(8, 16, 2)
    x, arriving = five_images()
    x.requires_grad_()
    out = block(x)
    out.backward(arriving)
    found = in_two_processes(synchronized, tmp_path)
    gradients = [p.grad for p in block.parameters() if p.grad is not None]
    number = len(gradients)
    # float64; the same sums in another order.
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-11)
    assert x.grad is not None
    close(torch.cat([one[0] for one in found]), out.detach())
    close(torch.cat([one[1] for one in found]), x.grad)
    for i, expected in enumerate(gradients, start=2):
        close(found[0][i] + found[1][i], expected)
    for one in found:
        for ours, theirs in zip(one[2 + number :], block.buffers(), strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("stride", [1, 2])
def test_an_input_wider_than_autocast(stride: int):
    """As detection gives it: a float32 map to a block that computes in bfloat16."""
    block = build(8, 16, stride).float()
    x = image(8).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = block(x)
    out.float().square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    with one_by_one(), torch.autocast("cpu", torch.bfloat16):
        twin = copy.deepcopy(block)(x.detach())
    # But for signs of what bfloat16 rounds to the other side.
    close = torch.isclose(out.float(), twin.float(), rtol=0.05, atol=0.1)
    assert close.float().mean() > 0.97
