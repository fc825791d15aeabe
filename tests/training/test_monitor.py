import math

import pytest
import torch
from torch import nn

from burn.training.monitor import (
    GradientFlowError,
    GradientFlowGuard,
    TargetMonitor,
    effective_rank,
)
from burn.types import Part


def two_layers() -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    return nn.Linear(3, 4), nn.Linear(4, 2)


def backward(first: nn.Linear, second: nn.Linear) -> None:
    second(first(torch.ones(5, 3))).square().sum().backward()


def test_guard_passes_when_every_part_does_what_it_should():
    first, second = two_layers()
    first.requires_grad_(False)
    backward(first, second)
    guard = GradientFlowGuard([Part("first", first, False), Part("second", second, True)])
    guard.check({"second"}, step=1)
    assert guard.done


def test_guard_names_a_part_that_receives_no_gradient():
    first, second = two_layers()
    first.requires_grad_(False)
    backward(first, second)
    guard = GradientFlowGuard([Part("first", first, True), Part("second", second, True)])
    with pytest.raises(GradientFlowError, match="first is meant to learn but received no gradient"):
        guard.check({"first", "second"}, step=1)


def test_guard_names_a_single_parameter_that_is_cut_off():
    first, second = two_layers()
    first.bias.requires_grad_(False)
    backward(first, second)
    guard = GradientFlowGuard([Part("first", first, True)])
    with pytest.raises(GradientFlowError, match="bias received no gradient"):
        guard.check({"first"}, step=1)


def test_guard_names_a_frozen_part_that_receives_a_gradient():
    first, second = two_layers()
    backward(first, second)
    guard = GradientFlowGuard([Part("first", first, False)])
    with pytest.raises(GradientFlowError, match="first is frozen but received a gradient"):
        guard.check(set(), step=1)


@pytest.mark.parametrize(("value", "message"), [(0.0, "is zero"), (math.nan, "not finite")])
def test_guard_stops_zero_and_non_finite_gradients(value: float, message: str):
    first, _ = two_layers()
    for parameter in first.parameters():
        parameter.grad = torch.full_like(parameter, value)
    with pytest.raises(GradientFlowError, match=message):
        GradientFlowGuard([Part("first", first, True)]).check({"first"}, step=1)


def test_guard_waits_for_a_part_that_the_loss_does_not_reach_yet():
    first, second = two_layers()
    guard = GradientFlowGuard([Part("first", first, True), Part("second", second, True)])
    second.weight.grad = torch.ones_like(second.weight)
    second.bias.grad = torch.ones_like(second.bias)
    guard.check({"second"}, step=1)
    assert not guard.done
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
    constant = torch.zeros(16, 100)
    constant[:, 3] = 1
    monitor = TargetMonitor()
    for step in (20, 40):
        monitor.add(constant)
        assert monitor.close(step)["target_entropy"] == pytest.approx(0, abs=1e-6)
    assert monitor.collapsed_at == 20


def test_monitor_is_quiet_for_confident_targets_that_differ():
    monitor = TargetMonitor()
    monitor.add(torch.eye(100))
    assert monitor.close(1)["target_entropy"] == pytest.approx(1, rel=1e-5)
    assert monitor.collapsed_at is None
