"""Triton's kernels of a block in Triton's interpreter, against its layers applied one by one.

pytest does not collect this file by itself: test_fused.py runs it in a process of its own, because
Triton reads TRITON_INTERPRET when it is imported.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from test_block import SHAPES, build, five_images, image, one_by_one, run, share_of
from torch import Tensor, nn

from burn.backbones.reactnet import Block
from burn.core.types import Precision
from burn.layers.fused.choice import block_kernels
from burn.layers.fused.launch import Launch, batch_statistics
from method_checks import in_two_processes

assert os.environ["TRITON_INTERPRET"] == "1"
GRADIENTS = [("poly", "clip"), ("clip", "identity")]
PRECISIONS = (Precision.BINARY, Precision.BINARY_ACTIVATIONS)
WIDENS, REDUCES = SHAPES[1], SHAPES[3]
# Every value of every setting, in few combinations; the others are long.
QUICK = (
    *((shape, Precision.BINARY, GRADIENTS[0]) for shape in SHAPES),
    (REDUCES, Precision.BINARY_ACTIVATIONS, GRADIENTS[1]),
)


def long_but(quick: Sequence[Any], cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The cases, of which those that are not quick are marked as long."""
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.long) for case in cases]


@contextmanager
def launches() -> Iterator[list[Launch]]:
    """All launches of kernels in this context."""
    found: list[Launch] = []
    launch = Launch.run

    def noted(self: Launch) -> None:
        found.append(self)
        launch(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launch, "run", noted)
        yield found


def fused(block: Block, x: Tensor) -> list[Tensor]:
    with block_kernels("triton"), launches() as found:
        numbers = run(block, x)
    assert [launch.kernel for launch in found] == [
        "signs", *["statistics", "merge", "activate"] * 2,
        "signs", "activate", *["activate_backward", "norm_backward", "input_backward"] * 2,
    ]  # fmt: skip
    return numbers


@pytest.mark.parametrize(
    ("shape", "precision", "gradients"),
    long_but(QUICK, itertools.product(SHAPES, PRECISIONS, GRADIENTS)),
)
def test_float64(shape: tuple[int, int, int], precision: Precision, gradients: tuple[str, str]):
    """Maps of 7×6 pixels, whose last pooled row averages two numbers instead of four."""
    compare_in_float64(shape, precision, gradients, torch.channels_last)


@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=() if s == REDUCES else pytest.mark.long) for s in SHAPES],
)
def test_a_map_in_pytorchs_default_order(shape: tuple[int, int, int]):
    compare_in_float64(shape, Precision.BINARY, GRADIENTS[0], torch.contiguous_format)


def compare_in_float64(
    shape: tuple[int, int, int], precision: Precision, gradients: tuple[str, str],
    layout: torch.memory_format,
) -> None:  # fmt: skip
    block = build(*shape, precision, activation_gradient=gradients[0], weight_gradient=gradients[1])
    layers = copy.deepcopy(block)
    x = image(shape[0]).contiguous(memory_format=layout)
    found = fused(block, x)
    with one_by_one():
        expected = run(layers, x)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        # float64; the same operations in another order, sums of 126 terms.
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(
    ("channels", "out", "stride", "height", "width"),
    [
        (66, 132, 2, 3, 5),
        (3, 6, 2, 1, 5),
        (8, 8, 1, 9, 11),
        pytest.param(8, 32, 1, 4, 4, marks=pytest.mark.long),
        pytest.param(96, 96, 1, 5, 5, marks=pytest.mark.long),
        pytest.param(80, 160, 2, 9, 7, marks=pytest.mark.long),
        pytest.param(8, 8, 1, 24, 37, marks=pytest.mark.long),
    ],
)
def test_sizes_that_fill_no_tile(channels: int, out: int, stride: int, height: int, width: int):
    """More channels than a tile has, numbers that are no powers of two, and several chunks."""
    block = build(channels, out, stride)
    layers = copy.deepcopy(block)
    x = image(channels, height, width)
    found = fused(block, x)
    with one_by_one():
        expected = run(layers, x)
    for ours, theirs in zip(found, expected, strict=True):
        # float64; sums of up to 2,664 terms.
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("shape", "precision"),
    long_but(
        [(WIDENS, Precision.BINARY), (REDUCES, Precision.BINARY_ACTIVATIONS)],
        itertools.product(SHAPES, PRECISIONS),
    ),
)
def test_float32(shape: tuple[int, int, int], precision: Precision):
    block = build(*shape, precision).float()
    layers = copy.deepcopy(block).double()
    x = image(shape[0]).float()
    found = fused(block, x)
    with one_by_one():
        expected = run(layers, x.double())
    for ours, theirs in zip(found, expected, strict=True):
        # Rounding to 24 bits, 6e-8, in about ten operations on numbers up to 30 (sums of a
        # convolution); and in these numbers no sign is within that of zero.
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("precision", [Precision.BINARY, Precision.BINARY_ACTIVATIONS])
def test_bfloat16(precision: Precision):
    """Against float64 on the same maps, and as near to it as PyTorch's operations are.

    A sign whose argument is within 8 bits of mantissa of zero turns, and with it whatever depends
    on it, so angles between tensors are compared, and their means over several blocks.
    """
    off: list[tuple[float, float]] = []  # 1 - cosine with float64's: of kernels, and of PyTorch
    for seed, shape in enumerate(SHAPES * 2):
        torch.manual_seed(seed)
        block = build(*shape, precision).float()
        exact, layers = copy.deepcopy(block).double(), copy.deepcopy(block)
        x = image(shape[0], 12, 13).bfloat16()
        found, usual = fused(block, x), run(layers, x)
        with one_by_one():
            expected = run(exact, x.double())
        assert found[0].dtype == torch.bfloat16
        for ours, torchs, theirs in zip(found, usual, expected, strict=True):
            assert ours.dtype == torchs.dtype
            off.append((1 - cosine(ours, theirs), 1 - cosine(torchs, theirs)))
    ours, torchs = torch.tensor(off).T
    # Measured with three sets of seeds: the means are 0.20 to 0.64 of PyTorch's, which rounds more
    # often, and 0.0003 to 0.0014; single tensors are up to 0.042 off, and PyTorch's up to 0.041.
    assert ours.mean() < torchs.mean()
    assert ours.max() < 0.1


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0))


def test_an_input_wider_than_autocast():
    """A float32 map to a block that computes in bfloat16, which has scales of its own."""
    block = build(8, 16, 2).float()
    layers = copy.deepcopy(block)
    x = image(8).float()
    results = []
    for chosen, one in (("triton", block), ("torch", layers)):
        own = x.clone().requires_grad_()
        with block_kernels(chosen), torch.autocast("cpu", torch.bfloat16):  # type: ignore[arg-type]
            out = one(own)
        out.float().square().sum().backward()
        assert own.grad is not None
        assert (out.dtype, own.grad.dtype) == (torch.bfloat16, torch.float32)
        results.append(out.float())
    # But for signs of what bfloat16 rounds to the other side.
    assert torch.isclose(*results, rtol=0.05, atol=0.1).float().mean() > 0.97


def synchronized(rank: int) -> list[Tensor]:
    """What one of two processes finds, of a block whose BN is SyncBN."""
    torch.manual_seed(0)
    block: Any = nn.SyncBatchNorm.convert_sync_batchnorm(build(8, 16, 2))
    x, arriving = five_images()
    own = x[share_of(rank)].requires_grad_()
    with block_kernels("triton"), launches() as found:
        out = block(own)
        out.backward(arriving[share_of(rank)])
    assert len(found) == 15
    assert own.grad is not None
    gradients = [p.grad for p in block.parameters() if p.grad is not None]
    return [out.detach(), own.grad, *gradients, *block.buffers()]


@pytest.mark.long
def test_two_processes_normalize_together(tmp_path: Path):
    """With SyncBN they are one process with the images of both."""
    torch.manual_seed(0)
    block = build(8, 16, 2)
    x, arriving = five_images()
    x.requires_grad_()
    out = block(x)
    out.backward(arriving)
    first, second = in_two_processes(synchronized, tmp_path)
    gradients = [p.grad for p in block.parameters() if p.grad is not None]
    assert x.grad is not None
    expected = [out.detach(), x.grad, *gradients, *block.buffers()]
    for i, theirs in enumerate(expected):
        ours = first[i]
        if i < 2:
            ours = torch.cat([first[i], second[i]])
        elif i < 2 + len(gradients):
            ours = first[i] + second[i]
        # float64; the same sums in another order.
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)


@pytest.mark.long
def test_the_same_bits_again():
    block = build(8, 16, 2).float()
    x = image(8, 24, 37).float()
    first, second = (fused(copy.deepcopy(block), x) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_zero_is_plus_one_also_when_negative():
    block = build(8, 8, 1)
    x = image(8)
    x[0] = -0.0
    with torch.no_grad():
        block.spatial.sign.shift.fill_(-0.0)
    with block_kernels("triton"):
        found = block(x)
    with one_by_one():
        torch.testing.assert_close(found, block(x), rtol=1e-12, atol=1e-12)


def test_a_large_mean_does_not_cost_the_variance():
    """Squares in float32 of numbers around 3,000 would leave no bits of a variance of 1."""
    torch.manual_seed(0)
    y = (3000 + torch.randn(4, 8, 9, 9)).contiguous(memory_format=torch.channels_last)
    norm = nn.BatchNorm2d(8)
    mean, variance, inverse_std = batch_statistics(y, None, norm, updates=True)
    expected = torch.var_mean(y.double(), dim=(0, 2, 3), correction=0)
    # float32: 324 numbers that are themselves rounded to 2e-4.
    torch.testing.assert_close(variance.double(), expected[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(mean.double(), expected[1], rtol=1e-6, atol=0)
    torch.testing.assert_close(inverse_std, (variance + norm.eps).rsqrt(), rtol=1e-5, atol=0)


def test_arguments_stay_as_they_are():
    block = build(8, 8, 1)
    x = image(8).requires_grad_()
    before = x.detach().clone()
    with block_kernels("triton"):
        out = block(x)
    arriving = torch.randn_like(out)
    copied = arriving.clone()
    out.backward(arriving, retain_graph=True)
    once = [p.grad.clone() for p in block.parameters() if p.grad is not None]
    out.backward(arriving)
    assert torch.equal(x.detach(), before)
    assert torch.equal(arriving, copied)
    for gradient, parameter in zip(once, block.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("context", [nullcontext(), block_kernels("torch")])
def test_without_the_option_nothing_of_it_runs(context: object):
    with context, launches() as found:  # type: ignore[attr-defined]
        build(8, 8, 1)(image(8)).sum().backward()
    assert not found
