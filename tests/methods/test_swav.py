"""SwAV's loss, codes, queue and prototypes against plain loops, in one process and in two."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed

from burn.core.errors import UserError
from burn.core.types import Precision
from burn.methods.swav.method import Swav
from burn.methods.swav.settings import SwavConfig
from method_checks import (
    Plain,
    double,
    goes_on_from_its_state,
    gradient_of,
    half,
    in_two_processes,
    learning_parts,
    numeric_gradient,
    outputs_of,
    train,
    views,
    without_norm,
)
from networks import shallow_reactnet

TINY: dict[str, Any] = {
    "small_crops": 2, "small_size": 16, "prototypes": 6, "queue": 15, "queue_from": 0.25,
    "hidden": 8, "dimension": 4, "freeze_prototypes": 0.1,
}  # fmt: skip
CROPS = (32, 32, 16, 16)


def method(precision: Precision = Precision.BINARY, *, seed: int = 0, **settings: Any) -> Swav:
    config = SwavConfig(**{**TINY, **settings})
    return Swav(shallow_reactnet(precision, seed=seed), config).train()


def plain(**settings: Any) -> Swav:
    """Without BN, and quick."""
    torch.manual_seed(0)
    m = Swav(Plain(), SwavConfig(**{**TINY, **settings})).train()
    without_norm(m.head)
    return m


# --- Slow twins, in float64. ---


def unit(rows: np.ndarray) -> np.ndarray:
    return np.array([row / math.sqrt(sum(row * row)) for row in rows])


def sinkhorn(scores: np.ndarray, epsilon: float, iterations: int) -> np.ndarray:
    """Codes (embeddings, prototypes) by the listing of Caron et al., appendix A."""
    b, k = scores.shape
    q = np.array([[math.exp(scores[j, i] / epsilon) for j in range(b)] for i in range(k)])
    q /= q.sum()
    for _ in range(iterations):
        for i in range(k):
            q[i] *= (1 / k) / q[i].sum()
        for j in range(b):
            q[:, j] *= (1 / b) / q[:, j].sum()
    return np.array([q[:, j] / q[:, j].sum() for j in range(b)])


def codes(
    outputs: list[np.ndarray], prototypes: np.ndarray, queue: np.ndarray | None, config: SwavConfig
) -> list[np.ndarray]:
    """Of the two large crops, the queue's embeddings taking part in the assignment."""
    found = []
    for crop in (0, 1):
        scores = unit(outputs[crop]) @ prototypes.T
        if queue is not None:
            scores = np.concatenate([scores, queue[crop] @ prototypes.T])
        assigned = sinkhorn(scores, config.epsilon, config.sinkhorn_iterations)
        found.append(assigned[: len(outputs[crop])])
    return found


def loss(
    outputs: list[np.ndarray], prototypes: np.ndarray, q: list[np.ndarray], temperature: float
) -> float:
    """Caron et al., Eqs. 2 and 6: cross-entropies of all ordered pairs (code, other crop)."""
    total, count = 0.0, 0
    for large in (0, 1):
        for crop, output in enumerate(outputs):
            if crop == large:
                continue
            for row, z in enumerate(unit(output)):
                powers = [math.exp(z @ c / temperature) for c in prototypes]
                for k, power in enumerate(powers):
                    total -= q[large][row, k] * math.log(power / sum(powers))
            count += len(output)
    return total / count


# --- The loss. ---


@pytest.mark.parametrize("full_queue", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{}, {"small_crops": 0, "temperature": 0.5}, {"epsilon": 0.2, "sinkhorn_iterations": 5}],
)
def test_loss_and_gradient_are_the_papers(full_queue: bool, settings: dict[str, Any]):
    m = method(**settings)
    config, sizes = m.config, CROPS[: m.num_views]
    if full_queue:
        train(m, range(4, 7), 8, *sizes)
    batch, queue = views(*sizes), double(m.queue).copy()
    made = outputs_of(m.head)
    output = m(batch, 0.9)
    m.zero_grad()
    output.loss.backward()
    crops = [double(crop) for crop in made[0].split(5)]
    assert len(crops) == m.num_views
    weight = double(m.prototypes.weight)
    q = codes(crops, weight, queue if full_queue else None, config)
    expected = loss(crops, weight, q, config.temperature)
    # float32 cosines over ε = 0.05 are right to 2e-6, and so are exponentials of them.
    assert output.loss.item() == pytest.approx(expected, rel=2e-5)
    assert output.loss.shape == ()
    if full_queue:
        other = loss(crops, weight, codes(crops, weight, None, config), config.temperature)
        assert abs(expected - other) > 1e-3, "the queue must matter"

    def of_outputs(z: np.ndarray) -> float:
        return loss(np.split(z, m.num_views), weight, q, config.temperature)

    def of_prototypes(c: np.ndarray) -> float:
        return loss(crops, c, q, config.temperature)

    # The codes are constants to the gradient; sizes 0.01 to 10, errors as above.
    stacked = np.concatenate(crops)
    found = gradient_of(made[0])
    assert np.allclose(found, numeric_gradient(of_outputs, stacked), rtol=1e-4, atol=2e-5)
    found = gradient_of(m.prototypes.weight)
    assert np.allclose(found, numeric_gradient(of_prototypes, weight), rtol=1e-4, atol=2e-5)


def test_codes_share_the_embeddings_evenly_among_the_prototypes():
    """What the twin's iterations converge to, so that it is not merely a second copy."""
    scores = np.random.default_rng(0).uniform(-1, 1, size=(30, 6))
    assigned = sinkhorn(scores, 0.2, 200)
    assert np.allclose(assigned.sum(axis=1), 1)
    assert np.allclose(assigned.sum(axis=0), 5)


def test_what_a_step_gives():
    m, batch = method(), views(*CROPS)
    output = m(batch, 0.0)
    assert set(output.terms) == {"loss"}
    assert output.terms["loss"].item() == output.loss.item()
    assert not output.terms["loss"].requires_grad
    assert output.features.shape == (5, 256)
    assert not output.features.requires_grad
    both = m.backbone(torch.cat(batch.views[:2]))
    assert torch.equal(output.features, both[:5])


def test_crops_of_a_size_pass_together():
    m, sizes = method(), []
    m.backbone.register_forward_pre_hook(lambda _, args: sizes.append(tuple(args[0].shape)))
    m(views(*CROPS), 0.0)
    assert sizes == [(10, 3, 32, 32), (10, 3, 16, 16)]
    sizes.clear()
    m(views(32, 32, 32, 32), 0.0)
    assert sizes == [(20, 3, 32, 32)]


def test_scores_and_codes_are_float32_in_mixed_precision():
    m = method()
    made = outputs_of(m.head)
    with torch.autocast("cpu", torch.bfloat16):
        output = m(views(*CROPS), 0.5)
    assert made[0].dtype == torch.bfloat16
    assert output.loss.dtype == torch.float32
    crops, weight = [double(crop) for crop in made[0].split(5)], double(m.prototypes.weight)
    expected = loss(crops, weight, codes(crops, weight, None, m.config), 0.1)
    # As in float32 above; bfloat16 would err by some 1e-2.
    assert output.loss.item() == pytest.approx(expected, rel=2e-5)


# --- The queue. ---


@pytest.mark.parametrize("size", [15, 12, 3])
def test_the_queue_fills_from_its_time_on_and_serves_when_full(size: int):
    """A list of embeddings per crop, newest batch first; a batch has 5 images."""
    m = plain(queue=size)
    made = outputs_of(m.head)
    given: list[Any] = []
    m.criterion.register_forward_pre_hook(lambda _, inputs: given.append(inputs[2]))
    expected: list[list[Tensor]] = [[], []]
    for step in range(8):
        before = [list(kept) for kept in expected]
        m(views(*CROPS, seed=step), step / 8)
        if step < 2:  # queue_from 0.25
            assert given[-1] is None
            assert not m.queue.any()
            continue
        for crop in (0, 1):
            own = torch.nn.functional.normalize(made[-1][5 * crop : 5 * crop + 5].detach())
            expected[crop] = [*own, *expected[crop]][:size]
            for place, embedding in enumerate(expected[crop]):
                assert torch.equal(m.queue[crop, place], embedding)
            assert not m.queue[crop, len(expected[crop]) :].any()
        served = given[-1]
        if len(before[0]) < size:
            assert served is None
        else:
            assert served is not None
            for scores, kept in zip(served, before, strict=True):
                # float32 products of unit vectors, perhaps in another order.
                torch.testing.assert_close(
                    scores, torch.stack(kept) @ m.prototypes.weight.T, rtol=1e-5, atol=1e-6
                )


def test_no_gradient_enters_the_queue():
    m = plain()
    train(m, range(4, 8), 8, *CROPS)
    assert m.queue.all()
    assert not m.queue.requires_grad


def test_without_a_queue():
    m = plain(queue=0, queue_from=0.0)
    assert all(math.isfinite(value) for value in train(m, range(3), 3, *CROPS))
    assert m.queue.numel() == 0


# --- The prototypes. ---


def lengths(m: Swav) -> Tensor:
    return m.prototypes.weight.detach().norm(dim=1)


def test_prototypes_have_length_1_when_a_step_begins():
    m = plain()
    assert m.prototypes.bias is None
    # Lengths of float32 vectors of 4 numbers.
    torch.testing.assert_close(lengths(m), torch.ones(6), rtol=1e-6, atol=0)
    optimizer = torch.optim.SGD(m.parameters(), lr=1.0)
    m(views(*CROPS), 0.5).loss.backward()
    optimizer.step()
    assert (lengths(m) - 1).abs().max() > 0.01
    moved = double(m.prototypes.weight)
    m.after_step(0.5)
    torch.testing.assert_close(lengths(m), torch.ones(6), rtol=1e-6, atol=0)
    assert np.allclose(double(m.prototypes.weight), unit(moved), rtol=1e-6)


def test_frozen_prototypes_stay_and_then_learn():
    m = plain(freeze_prototypes=0.5)
    start = m.prototypes.weight.detach().clone()
    train(m, range(4), 8, *CROPS)
    # Made length 1 anew after every step: a rounding each.
    torch.testing.assert_close(m.prototypes.weight.detach(), start, rtol=0, atol=1e-6)
    train(m, range(4, 5), 8, *CROPS)
    assert (m.prototypes.weight - start).abs().max() > 1e-3


def test_freezing_changes_the_prototypes_gradient_alone():
    m, batch = plain(freeze_prototypes=0.1), views(*CROPS)
    gradients = []
    for progress in (0.0, 0.1):
        m.zero_grad()
        output = m(batch, progress)
        output.loss.backward()
        gradients.append([output.loss, *(p.grad for p in m.parameters())])
    names = ["loss", *(name for name, _ in m.named_parameters())]
    for name, frozen, free in zip(names, *gradients, strict=True):
        if name == "prototypes.weight":
            assert not frozen.any()
            assert free.any()
        else:
            assert torch.equal(frozen, free), name


# --- Parts and weights. ---


@pytest.mark.parametrize("precision", list(Precision))
def test_reached_is_what_gradients_reach(precision: Precision):
    m = method(precision)
    for progress in (0.0, 0.0999, 0.1, 0.5, 0.5, 0.5, 0.5):  # the queue is full at the last
        m.zero_grad()
        m(views(*CROPS), progress).loss.backward()
        expected = {"backbone", "projection head"} | ({"prototypes"} if progress >= 0.1 else set())
        assert m.reached(progress) == learning_parts(m) == expected
    assert m.queue.all()
    assert all(part.trained for part in m.parts())
    assert sum(len(list(p.module.parameters())) for p in m.parts()) == len(list(m.parameters()))


def test_it_goes_on_from_its_state():
    """The queue is half full when the state is taken, and serves in the last step."""
    goes_on_from_its_state(lambda seed: method(seed=seed, queue=10), *CROPS)


def test_weights_hand_over_all_but_what_the_queue_holds():
    first = method(Precision.BINARY_ACTIVATIONS)
    train(first, range(3, 6), 6, *CROPS)
    weights = first.weights()
    assert {"queue", "prototypes.weight"} <= weights.keys()
    assert weights["queue"].all()
    second = method(seed=2)
    second.load_weights(weights)
    ours = second.weights()
    assert list(ours) == list(weights)
    assert not second.queue.any()
    assert first.queue.all()
    assert all(torch.equal(ours[n], tensor) for n, tensor in weights.items() if n != "queue")


# --- Settings. ---


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"small_crops": -1}, "--swav.small-crops -1"),
        ({"small_size": 0}, "--swav.small-size 0"),
        ({"small_scale": (0.2, 0.1)}, r"swav.small_scale \[0.2, 0.1\]"),
        ({"small_scale": (0.0, 0.1)}, r"swav.small_scale \[0.0, 0.1\]"),
        ({"prototypes": 1}, "swav.prototypes 1"),
        ({"temperature": 0.0}, "swav.temperature 0.0"),
        ({"epsilon": 0.01}, "swav.epsilon 0.01"),
        ({"sinkhorn_iterations": 0}, "--swav.sinkhorn-iterations 0"),
        ({"queue": -1}, "swav.queue -1"),
        ({"queue_from": 1.5}, "--swav.queue-from 1.5"),
        ({"hidden": 0}, "swav.hidden 0"),
        ({"dimension": 0}, "swav.dimension 0"),
        ({"freeze_prototypes": -0.5}, "--swav.freeze-prototypes -0.5"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        SwavConfig(**settings).check()


def test_defaults_are_the_papers():
    SwavConfig().check()
    assert SwavConfig() == SwavConfig(
        small_crops=6, small_size=96, small_scale=(0.05, 0.14), prototypes=3000, temperature=0.1,
        epsilon=0.05, sinkhorn_iterations=3, queue=3840, queue_from=0.075, hidden=2048,
        dimension=128, freeze_prototypes=0.005,
    )  # fmt: skip
    assert Swav(Plain(), SwavConfig()).num_views == 8


def test_the_least_epsilon_keeps_codes_finite():
    """Every embedding on one prototype and opposite another, among many."""
    m = plain(epsilon=0.03, prototypes=3000)
    scores = torch.full((2000, 3000), -1.0)
    scores[:, 0] = 1.0
    assert m.criterion([scores, scores], []).isfinite().all()


# --- Several processes. ---


def test_the_queue_must_have_equal_shares(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lightly.utils.dist.world_size", lambda: 3)
    with pytest.raises(UserError, match=r"swav\.queue 8 is not a multiple of the 3 processes"):
        plain(queue=8)(views(*CROPS), 0.0)


def _train_together(rank: int | None) -> tuple[list[Tensor], Swav]:
    """Four steps, the last two with the queue; as DDP, gradients are averaged over processes."""
    m = plain(queue=8, queue_from=0.0, freeze_prototypes=0.25)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        batch = views(*CROPS, count=6, seed=step)
        loss = m(batch if rank is None else half(batch, rank), step / 4).loss
        optimizer.zero_grad()
        loss.backward()
        if rank is not None:
            for parameter in m.parameters():
                assert parameter.grad is not None
                distributed.all_reduce(parameter.grad)
                parameter.grad /= 2
        optimizer.step()
        m.after_step(step / 4)
        losses.append(loss.detach())
    return losses, m


def _halves(rank: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    losses, m = _train_together(rank)
    return losses, dict(m.state_dict())


def test_two_processes_are_one_at_double_the_batch(tmp_path: Path):
    """Their mean loss is its loss at every step, so the codes are those of all images."""
    (first, state), (second, other) = in_two_processes(_halves, tmp_path)
    losses, m = _train_together(None)
    assert m.queue.all()
    # float32 sums in another order, over ε = 0.05, through four steps.
    for loss, a, b in zip(losses, first, second, strict=True):
        assert a != b
        assert loss.item() == pytest.approx((a + b).item() / 2, rel=1e-5)
    for name, tensor in m.state_dict().items():
        assert torch.equal(state[name], other[name]), name
        torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5)
