"""Why KL to a jointly trained classifier is trivial to minimize: the derivations of method.md."""

from __future__ import annotations

import torch
from torch import Tensor

from burn.methods.burn.method import kl_divergence


def test_the_common_part_of_both_logits_moves_towards_classes_with_least_disagreement() -> None:
    # To second order in r = log(p1 / p2), a step of gradient flow adds ½ p1 (Σ p1 r² - r²) to the
    # sum of both networks' logits.
    generator = torch.Generator().manual_seed(0)
    images, classes, disagreement = 400, 50, 0.01
    common = torch.randn(classes, generator=generator) / 2

    def logits() -> Tensor:
        noise = torch.randn(images, classes, generator=generator)
        return (common + disagreement * noise).double().requires_grad_()

    first, second = logits(), logits()
    # kl_divergence computes in float32, whose errors of 1e-7 are as large as these terms.
    log_p1, log_p2 = first.log_softmax(1), second.log_softmax(1)
    kl = (log_p1.exp() * (log_p1 - log_p2)).sum(1).mean()
    gradients = torch.autograd.grad(kl, (first, second))
    motion = -sum(gradients).sum(0)  # type: ignore[union-attr]

    p, r = log_p1.detach().exp(), (log_p1 - log_p2).detach()
    predicted = (p * ((p * r.square()).sum(1, keepdim=True) - r.square()) / 2).mean(0)
    # The next order is smaller by about |r|, which is 0.01 · √2 here.
    assert (motion - predicted).norm() < 0.03 * predicted.norm()


def test_a_target_fades_at_the_rate_at_which_the_student_cannot_follow() -> None:
    # Two linear classifiers on whitened features x and y, whose coordinates have the correlations
    # ρ. With small logits the sum of both classifiers' weights fades as exp(-(1 - ρ) t / classes).
    generator = torch.Generator().manual_seed(0)
    rho = torch.tensor([1.0, 0.9, 0.5, 0.0]).double()
    images, classes, rate, steps = 4_000, 8, 0.2, 200
    whole = torch.randn(images, 8, generator=generator).double()
    whole = torch.linalg.qr(whole - whole.mean(0))[0] * images**0.5
    x = whole[:, :4]
    y = rho * x + (1 - rho.square()).sqrt() * whole[:, 4:]
    start = [0.01 * torch.randn(4, classes, generator=generator).double() for _ in range(2)]
    weights = [each.clone().requires_grad_() for each in start]
    for _ in range(steps):
        p1, p2 = (x @ weights[0]).log_softmax(1), (y @ weights[1]).log_softmax(1)
        kl = (p1.exp() * (p1 - p2)).sum(1).mean()
        gradients = torch.autograd.grad(kl, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.data -= rate * gradient

    def signal(both: list[Tensor]) -> Tensor:
        total = (both[0] + both[1]).detach()
        return (total - total.mean(1, keepdim=True)).norm(dim=1)

    left = signal(weights) / signal(start)
    predicted = torch.exp(-(1 - rho) * steps * rate / classes)
    # Steps of 0.2 instead of a flow, and logits that are small but not zero: below 1 % here.
    torch.testing.assert_close(left, predicted, rtol=0.02, atol=1e-3)


def test_any_constant_answer_costs_nothing() -> None:
    constant = torch.randn(1, 30, generator=torch.Generator().manual_seed(0)).repeat(5, 1)
    target = constant.clone().requires_grad_()
    loss = kl_divergence(target, constant, temperature=0.2)
    loss.backward()
    assert loss.item() == 0
    assert target.grad is not None
    assert target.grad.abs().max() < 1e-7
