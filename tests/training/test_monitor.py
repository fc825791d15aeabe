import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from burn.core.errors import GradientFlowError
from burn.core.types import Part
from burn.training.callbacks.checks import Guard, gradient_norms
from burn.training.collapse import FeatureMonitor, TargetMonitor, effective_rank


def two_layers() -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(3, 4), nn.Linear(4, 2)


def backward(first: nn.Linear, second: nn.Linear) -> None:
    second(first(torch.ones(5, 3))).square().sum().backward()


def test_guard_passes_when_every_part_does_what_it_should():
    first, second = two_layers()
    first.requires_grad_(False)
    backward(first, second)
    guard = Guard([Part("first", first, False), Part("second", second, True)])
    guard.check({"second"}, step=1)
    assert not guard.pending


def test_guard_names_a_part_that_receives_no_gradient():
    first, second = two_layers()
    first.requires_grad_(False)
    backward(first, second)
    guard = Guard([Part("first", first, True), Part("second", second, True)])
    with pytest.raises(GradientFlowError, match="first is meant to learn but received no gradient"):
        guard.check({"first", "second"}, step=1)


def test_guard_names_a_single_parameter_that_is_cut_off():
    first, second = two_layers()
    first.bias.requires_grad_(False)
    backward(first, second)
    guard = Guard([Part("first", first, True)])
    with pytest.raises(GradientFlowError, match="bias received no gradient"):
        guard.check({"first"}, step=1)


def test_guard_names_a_frozen_part_that_receives_a_gradient():
    first, second = two_layers()
    backward(first, second)
    guard = Guard([Part("first", first, False)])
    with pytest.raises(GradientFlowError, match="first is frozen but received a gradient"):
        guard.check(set(), step=1)


@pytest.mark.parametrize(("value", "message"), [(0.0, "is zero"), (math.nan, "not finite")])
def test_guard_stops_zero_and_non_finite_gradients(value: float, message: str):
    first, _ = two_layers()
    for parameter in first.parameters():
        parameter.grad = torch.full_like(parameter, value)
    with pytest.raises(GradientFlowError, match=message):
        Guard([Part("first", first, True)]).check({"first"}, step=1)


def test_guard_lets_a_part_of_an_earlier_stage_have_zero_gradients():
    first, _ = two_layers()
    guard = Guard([Part("first", first, True)], continued=True)
    with pytest.raises(GradientFlowError, match="received no gradient"):
        guard.check({"first"}, step=1)
    for parameter in first.parameters():
        parameter.grad = torch.zeros_like(parameter)
    guard.check({"first"}, step=1)
    assert not guard.pending


@pytest.mark.parametrize(
    ("step", "pending", "may_be_zero"),
    [
        (0, None, False),
        (3, [], True),
        (3, ["first"], False),  # the loss has not reached it yet
        (3, None, True),  # a resume file of burn 0.2.0 does not say
    ],
)
def test_a_part_that_was_checked_may_have_no_gradient_when_a_stage_is_resumed(
    step: int, pending: list[str] | None, may_be_zero: bool
):
    """A classifier that has collapsed stops no run that goes on."""
    first, _ = two_layers()
    guard = Guard([Part("first", first, True)])
    assert guard.state_dict() == {"pending": ["first"]}
    if pending is not None:
        guard.load_state_dict({"pending": pending})
    guard.on_start(cast(Any, SimpleNamespace(step=step)))
    for parameter in first.parameters():
        parameter.grad = torch.zeros_like(parameter)
    refused = pytest.raises(GradientFlowError, match="gradient is zero")
    with nullcontext() if may_be_zero else refused:
        guard.check({"first"}, step=step + 1)


def test_guard_waits_for_a_part_that_the_loss_does_not_reach_yet():
    first, second = two_layers()
    guard = Guard([Part("first", first, True), Part("second", second, True)])
    second.weight.grad = torch.ones_like(second.weight)
    second.bias.grad = torch.ones_like(second.bias)
    guard.check({"second"}, step=1)
    assert guard.pending
    with pytest.raises(GradientFlowError, match="at step 7: first"):
        guard.check({"first", "second"}, step=7)


def test_effective_rank_of_known_matrices():
    assert effective_rank(torch.eye(6)) == pytest.approx(6, rel=1e-4)  # the 1e-7 inside the log
    one = torch.outer(torch.arange(1.0, 9.0), torch.arange(1.0, 5.0))
    assert effective_rank(one) == pytest.approx(1, abs=1e-4)  # float32 singular values


def test_monitor_against_loops():
    torch.manual_seed(0)
    batches = [torch.softmax(torch.randn(8, 5), dim=1) for _ in range(3)]
    monitor = TargetMonitor()
    for batch in batches:
        monitor.add(batch)
    numbers = monitor.close(step=3)
    rows = torch.cat(batches).double().tolist()
    mean = [sum(row[c] for row in rows) / len(rows) for c in range(5)]
    entropy = -sum(p * math.log(p) for p in mean) / math.log(5)
    each = [-sum(p * math.log(p) for p in row) / math.log(5) for row in rows]
    # float32 sums against float64 loops
    assert numbers["target_entropy"] == pytest.approx(entropy, rel=1e-5)
    assert numbers["target_mean_entropy"] == pytest.approx(sum(each) / len(each), rel=1e-5)
    assert numbers["target_peak"] == pytest.approx(max(mean), rel=1e-5)
    assert monitor.collapsed_at is None
    assert monitor.close(step=4) == {}


def test_monitor_rings_for_a_constant_target_and_remembers_the_first_step():
    constant = torch.zeros(40, 100)
    constant[:, 3] = 1
    monitor = TargetMonitor()
    for step in (20, 40):
        monitor.add(constant)
        assert monitor.close(step)["target_entropy"] == pytest.approx(0, abs=1e-6)
    assert monitor.collapsed_at == 20


def test_a_window_of_few_images_stays_open_and_rings_no_alarm():
    """16 images that are told apart have no more than log 16, 0.36 of log 2,000."""
    monitor = TargetMonitor()
    for step in range(1, 28):
        monitor.add(torch.eye(2000)[16 * step : 16 * step + 16])
        assert monitor.close(step) == {}
    monitor.add(torch.eye(2000)[-16:])  # 448 images, and 2000^0.8 is 437.3
    assert monitor.close(28)["target_entropy"] == pytest.approx(math.log(448) / math.log(2000))
    assert monitor.collapsed_at is None


def test_random_weights_ring_no_alarm_and_two_looks_after_them_do():
    monitor = FeatureMonitor()
    for step in (1, 2):
        monitor.look(torch.ones(32, 8), step)
    assert monitor.collapsed_at is None
    monitor.look(torch.ones(32, 8), 3)
    assert monitor.collapsed_at == 3


def test_monitor_is_quiet_for_confident_targets_that_differ():
    monitor = TargetMonitor()
    monitor.add(torch.eye(100))
    assert monitor.close(1)["target_entropy"] == pytest.approx(1, rel=1e-5)
    assert monitor.collapsed_at is None


def test_gradient_norms_against_loops():
    first, second = two_layers()
    modules = first, second, nn.Linear(2, 2)  # the last is not reached
    backward(first, second)
    parts = [Part(name, module, True) for name, module in zip("abc", modules, strict=True)]
    squares = [
        sum(
            v**2
            for p in module.parameters()
            if p.grad is not None
            for v in p.grad.flatten().tolist()
        )
        for module in (first, second)
    ]
    # float32 sums against float64 loops
    expected = {"a": math.sqrt(squares[0]), "b": math.sqrt(squares[1]), "c": 0.0}
    assert gradient_norms(parts) == pytest.approx(expected, rel=1e-6)


def test_numbers_of_features_against_loops():
    features = 5 + torch.randn(40, 6)
    numbers = FeatureMonitor().look(features, 1)
    rows = np.array([row / np.linalg.norm(row) for row in features.double().numpy()])
    mean = [sum(row[i] for row in rows) / 40 for i in range(6)]
    squares = [sum((row[i] - mean[i]) ** 2 for i in range(6)) for row in rows]
    # float32 against float64; 1e-7 is inside the rank's log
    assert numbers["feature_spread"] == pytest.approx(math.sqrt(sum(squares) / 40), rel=1e-4)
    centred = features.double().numpy() - features.double().numpy().mean(axis=0)
    singular = np.sqrt(np.linalg.eigvalsh(centred.T @ centred))
    share = singular / singular.sum()
    rank = math.exp(-sum(p * math.log(p) for p in share))
    assert numbers["feature_rank"] == pytest.approx(rank, rel=1e-4)


LINE = torch.ones(8) + torch.linspace(0, 4, 32).outer(torch.arange(8.0))
COLLAPSED = {
    "a line": LINE,
    "constant": torch.ones(32, 8),
    "zero": torch.zeros(32, 8),
    "rounding": torch.linspace(1, 2, 8) * (1 + 1e-3 * (torch.rand(32, 8) - 0.5)),
}


@pytest.mark.parametrize("name", COLLAPSED)
def test_features_that_say_nothing_are_called_collapsed_at_the_second_look(name: str):
    monitor = FeatureMonitor()
    spread = torch.randn(32, 8)
    for step, features in ((1, COLLAPSED[name]), (2, spread), (3, COLLAPSED[name])):
        assert all(math.isfinite(number) for number in monitor.look(features, step).values())
    assert monitor.collapsed_at is None
    resumed = FeatureMonitor()
    resumed.load_state_dict(monitor.state_dict())
    for step in (4, 5):
        resumed.look(COLLAPSED[name], step)
    assert resumed.collapsed_at == 4


def test_features_with_a_large_mean_or_of_few_images_are_not_called_collapsed():
    monitor = FeatureMonitor()
    for step in range(4):
        monitor.look(100 + torch.randn(32, 64), step)
    for step in range(4):
        monitor.look(torch.randn(3, 64), step)
    assert monitor.collapsed_at is None
