"""The momentum target against a loop over numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.core.types import Precision
from burn.methods.base import mlp
from burn.methods.shared.momentum import MomentumTarget
from networks import shallow_reactnet


def online(precision: Precision = Precision.BINARY) -> tuple[Backbone, nn.Module]:
    return shallow_reactnet(precision, seed=5).train(), mlp(256, 12, 7).train()


def images(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (5, 3, 32, 32), generator=generator, dtype=torch.uint8)


def move(*modules: nn.Module) -> None:
    """What an optimizer might do."""
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("precision", list(Precision))
def test_it_begins_as_a_copy_of_its_own(precision: Precision):
    backbone, head = online(precision)
    target = MomentumTarget(backbone, head).train()
    expected = head(backbone(images()))
    assert torch.equal(target(images()), expected)
    move(backbone, head)
    assert torch.equal(target(images()), expected), "no weights are shared"
    assert not torch.equal(head(backbone(images())), expected)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.99, 1.0])
def test_follow_is_the_moving_average(momentum: float):
    backbone, head = online()
    target = MomentumTarget(backbone, head)
    followed = [p.double() for p in target.parameters()]
    for _ in range(4):
        move(backbone, head)
        target.follow(backbone, head, momentum)
        now = [*backbone.parameters(), *head.parameters()]
        followed = [
            momentum * old + (1 - momentum) * p.detach().double()
            for old, p in zip(followed, now, strict=True)
        ]
    for expected, parameter in zip(followed, target.parameters(), strict=True):
        # Four steps of float32 roundings, of numbers of size 1.
        torch.testing.assert_close(parameter.double(), expected, rtol=1e-6, atol=1e-6)


def test_running_statistics_are_its_own():
    """Batches are normalised by their own statistics; what has run does not follow."""
    backbone, head = online()
    target = MomentumTarget(backbone, head).train()
    backbone(images())
    buffers = {name: b.clone() for name, b in target.named_buffers()}
    target.follow(backbone, head, 0.0)
    assert all(torch.equal(b, buffers[name]) for name, b in target.named_buffers())
    found = target(images(1))
    assert torch.equal(found, head(backbone(images(1)))), "running statistics would differ"
    statistics = {n: b for n, b in target.named_buffers() if n.endswith("running_mean")}
    assert statistics
    assert all(not torch.equal(b, buffers[name]) for name, b in statistics.items())


def test_no_gradient_enters_or_leaves():
    backbone, head = online()
    target = MomentumTarget(backbone, head)
    assert not target(images()).requires_grad
    assert not any(p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in (*backbone.parameters(), *head.parameters()))
