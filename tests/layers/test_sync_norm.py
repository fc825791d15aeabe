"""Synchronized BN: two processes against one with the images of both, and what is converted."""

from __future__ import annotations

import copy
import itertools
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.core.types import Precision
from burn.layers.sync_norm import SyncNorm, synchronize_norms
from method_checks import in_two_processes
from networks import randomize

SHAPES = {"map": (5, 4, 3, 2), "vectors": (5, 4)}
# The first process has two images and the other three, or the other has none.
SHARES = {"2 and 3": (slice(0, 2), slice(2, 5)), "5 and 0": (slice(0, 5), slice(5, 5))}
CASES = list(itertools.product(SHAPES, SHARES, [True, False]))  # the last: weight and bias or not


def build(*, affine: bool = True) -> nn.BatchNorm2d:
    torch.manual_seed(0)
    return randomize(nn.BatchNorm2d(4, momentum=0.3, affine=affine).double())


def images(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, arriving = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return 2 * x + 1, arriving


def of_one_process(rank: int) -> list[list[Tensor]]:
    """Output, gradients and buffers of each case."""
    found = []
    for shape, share, affine in CASES:
        norm = synchronize_norms(build(affine=affine))
        x, arriving = images(SHAPES[shape])
        own = x[SHARES[share][rank]].requires_grad_()
        out = norm(own)
        out.backward(arriving[SHARES[share][rank]])
        gradients = [p.grad for p in norm.parameters() if p.grad is not None]
        assert own.grad is not None
        found.append([out.detach(), own.grad, *gradients, *norm.buffers()])
    return found


def test_two_processes_normalize_together(tmp_path: Path):
    both = in_two_processes(of_one_process, tmp_path)
    # float64; the same sums in another order.
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-11)
    for (shape, _, affine), first, second in zip(CASES, *both, strict=True):
        norm: nn.Module = build(affine=affine)
        if len(SHAPES[shape]) == 2:
            norm = nn.BatchNorm1d(4, momentum=0.3, affine=affine).double()
            norm.load_state_dict(build(affine=affine).state_dict())
        x, arriving = images(SHAPES[shape])
        x.requires_grad_()
        out = norm(x)
        out.backward(arriving)
        assert x.grad is not None
        close(torch.cat([first[0], second[0]]), out.detach())
        close(torch.cat([first[1], second[1]]), x.grad)
        for i, parameter in enumerate(norm.parameters(), start=2):
            assert parameter.grad is not None
            close(first[i] + second[i], parameter.grad)
        for ours in (first[-3:], second[-3:]):
            for buffer, expected in zip(ours, norm.buffers(), strict=True):
                close(buffer, expected)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet"])
def test_a_converted_network_is_the_same_and_can_be_converted_again(name: str):
    """EfficientNet's BN contains its activations, which torch's own conversion loses."""
    torch.manual_seed(0)
    backbone = randomize(build_backbone(BackboneConfig(name), Precision.FLOAT)).eval()
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        expected = backbone(pixels)
        for _ in range(2):
            assert synchronize_norms(backbone) is backbone
            assert torch.equal(backbone(pixels), expected)
    norms = [m for m in backbone.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms
    assert all(isinstance(norm, SyncNorm) for norm in norms)


def test_alone_it_trains_as_batch_norm_does():
    plain = build()
    norm = synchronize_norms(copy.deepcopy(plain))
    x, _ = images(SHAPES["map"])
    assert torch.equal(norm(x), plain(x))
    assert all(torch.equal(a, b) for a, b in zip(norm.buffers(), plain.buffers(), strict=True))


def test_other_kinds_of_batch_norm_are_left_alone():
    class Own(nn.BatchNorm2d):
        pass

    network = nn.Sequential(Own(4), nn.InstanceNorm2d(4))
    synchronize_norms(network)
    assert type(network[0]) is Own
    assert type(network[1]) is nn.InstanceNorm2d
