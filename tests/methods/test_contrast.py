"""Queue, shuffled keys and InfoNCE against loops over lists and rows."""

from __future__ import annotations

import copy
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from burn.core.types import Precision
from burn.methods.shared.contrast import (
    KeyQueue,
    MomentumContrast,
    ShuffledEncoder,
    gather,
    in_parts,
    info_nce,
    l2_normalize,
)
from method_checks import numeric_gradient
from networks import shallow_reactnet

# --- Slow twins, in float64. ---


def rows_of_unit_length(vectors: np.ndarray) -> np.ndarray:
    return np.stack([v / math.sqrt(sum(v * v)) for v in vectors])


def looped_info_nce(
    queries: np.ndarray, keys: np.ndarray, negatives: np.ndarray, temperature: float
) -> float:
    """He et al., Eq. 1, query by query."""
    total = 0.0
    for query, key in zip(queries, keys, strict=True):
        positive = math.exp(query @ key / temperature)
        others = sum(math.exp(query @ negative / temperature) for negative in negatives)
        total -= math.log(positive / (positive + others))
    return total / len(queries)


# --- InfoNCE. ---


@pytest.mark.parametrize("temperature", [0.07, 0.2])
@pytest.mark.parametrize("count", [1, 9])
def test_info_nce_and_its_gradient(temperature: float, count: int):
    """In float64, where nothing but the order of sums differs from the loops (1e-12)."""
    queries, keys = (l2_normalize(torch.randn(4, 6)).double() for _ in range(2))
    negatives = l2_normalize(torch.randn(count, 6)).double()
    queries.requires_grad_()
    loss = info_nce(queries, keys, negatives, temperature)
    fixed = keys.numpy(), negatives.numpy(), temperature
    expected = looped_info_nce(queries.detach().numpy(), *fixed)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    loss.backward()
    assert queries.grad is not None
    # MoCo's gradient: Σ p_j n_j - (1 - p_0) k, by row, over N T.
    for row in range(4):
        q, k = queries.detach().numpy()[row], keys.numpy()[row]
        candidates = np.concatenate([k[None], negatives.numpy()])
        p = np.exp(candidates @ q / temperature)
        closed = ((p / p.sum()) @ candidates - k) / (4 * temperature)
        np.testing.assert_allclose(queries.grad[row].numpy(), closed, rtol=1e-9, atol=1e-12)


def test_a_queue_of_orthogonal_keys_has_a_known_loss():
    axes = torch.eye(5)
    loss = info_nce(axes[:1], axes[:1], axes[1:], temperature=0.5)
    # -log(e² / (e² + 4)), in float32.
    assert loss.item() == pytest.approx(math.log1p(4 * math.exp(-2)), rel=1e-6)


def test_large_logits_stay_finite():
    axis = torch.eye(2)[:1]
    # exp alone overflows; 0.001 is rounded in float32.
    assert info_nce(axis, -axis, axis, 0.001).item() == pytest.approx(2000, rel=1e-6)


def test_autocast_does_not_reach_the_loss():
    queries, keys, negatives = (l2_normalize(torch.randn(n, 16)) for n in (4, 4, 50))
    plain = info_nce(queries, keys, negatives, 0.2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (queries @ negatives.T).dtype == torch.bfloat16, "the test needs a narrow product"
        assert torch.equal(info_nce(queries, keys, negatives, 0.2), plain)
        assert l2_normalize(queries.bfloat16()).dtype == torch.float32


# --- The queue. ---


@pytest.mark.parametrize("size", [1, 5, 8, 12])
def test_the_queue_is_a_ring(size: int):
    queue = KeyQueue(size, 3)
    ring = [row.clone() for row in queue.keys]
    # float32 roundings of three squares.
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(size), rtol=0, atol=1e-6)
    place = 0
    for length in [4] * 7 + [1, 3, 5, 20, 2, 0, 12, 24, 7, 11]:
        keys = torch.randn(length, 3)
        queue.add(keys)
        for key in keys:
            ring[place] = key
            place = (place + 1) % size
        assert torch.equal(queue.keys, torch.stack(ring))
        assert queue.pointer == place


def test_the_queue_starts_from_the_global_generator():
    torch.manual_seed(3)
    first = KeyQueue(10, 4).keys
    torch.manual_seed(3)
    assert torch.equal(KeyQueue(10, 4).keys, first)
    assert not torch.equal(KeyQueue(10, 4).keys, first)


# --- Parts and shuffling. ---


@pytest.mark.parametrize(
    ("length", "count", "parts"),
    [(6, 1, [6]), (6, 3, [2, 2, 2]), (7, 3, [3, 2, 2]), (5, 4, [3, 2]), (3, 8, [3]), (1, 2, [1])],
)
def test_parts_are_even_and_never_a_single_image(length: int, count: int, parts: list[int]):
    seen: list[int] = []

    def network(images: Tensor) -> Tensor:
        seen.append(len(images))
        return images * 2

    images = torch.randn(length, 3)
    assert torch.equal(in_parts(network, images, count), 2 * images)
    assert seen == parts


def looped_norm(rows: np.ndarray) -> np.ndarray:
    """BN without its affine part, column by column; eps as in PyTorch."""
    result = np.empty_like(rows)
    for column in range(rows.shape[1]):
        values = rows[:, column]
        mean = sum(values) / len(values)
        variance = sum((values - mean) ** 2) / len(values)
        result[:, column] = (values - mean) / math.sqrt(variance + 1e-5)
    return result


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_keys_are_normalised_by_random_groups_and_put_back_in_order(groups: int):
    shuffle, norm = ShuffledEncoder(groups), nn.BatchNorm1d(4)
    compositions = set()
    for _ in range(3):
        images = torch.randn(12, 4)
        order = copy.deepcopy(shuffle).next_order(12)
        own, everyones = shuffle(norm, images)
        assert torch.equal(own, everyones)
        expected = np.empty((12, 4))
        for part in order.numpy().reshape(groups, -1):
            expected[part] = looped_norm(images.double().numpy()[part])
            compositions.add(frozenset(part.tolist()))
        # float32 statistics of numbers of size 1.
        np.testing.assert_allclose(own.numpy(), rows_of_unit_length(expected), atol=2e-6)
        assert not own.requires_grad
    assert len(compositions) == (1 if groups == 1 else 3 * groups), "composed anew every time"


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_without_batch_norm_shuffling_changes_nothing(groups: int):
    weight = torch.randn(5)
    images = torch.randn(11, 5)
    keys, _ = ShuffledEncoder(groups)(lambda part: part * weight, images)
    assert torch.equal(keys, l2_normalize(images * weight))


def test_orders_are_permutations_without_a_favourite():
    shuffle = ShuffledEncoder(1)
    orders = Counter(tuple(shuffle.next_order(4).tolist()) for _ in range(2400))
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len(orders) == 24
    # 100 of each are expected, with a standard deviation of 10: five of them.
    assert all(50 < number < 150 for number in orders.values())


def test_orders_depend_on_the_state_dict_alone():
    first, second = ShuffledEncoder(1), ShuffledEncoder(1)
    assert first.seed != second.seed
    assert not torch.equal(first.next_order(50), second.next_order(50))
    for _ in range(3):
        first.next_order(9)
    second.load_state_dict({name: t.clone() for name, t in first.state_dict().items()})
    torch.manual_seed(77)
    assert torch.equal(first.next_order(50), second.next_order(50))
    torch.manual_seed(5)
    third = ShuffledEncoder(1)
    torch.manual_seed(5)
    assert torch.equal(third.next_order(50), ShuffledEncoder(1).next_order(50))


def test_a_process_by_itself_gathers_its_own():
    rows = torch.randn(3, 2)
    (only,) = gather(rows)
    assert only is rows


# --- All of it together. ---


def contrast(queue: int, groups: int = 1, precision: Precision = Precision.FLOAT) -> tuple[
    MomentumContrast, nn.Module, nn.Module
]:  # fmt: skip
    backbone, head = shallow_reactnet(precision), nn.Linear(256, 6)
    built = MomentumContrast(
        backbone, head, 6, queue=queue, temperature=0.2, momentum=0.9, groups=groups
    )
    return built.train(), backbone.train(), head


@pytest.mark.parametrize("groups", [1, 2])
def test_loss_and_gradient_by_the_embeddings(groups: int):
    """Normalisation included: against differences of the loops."""
    module, _, _ = contrast(queue=7, groups=groups)
    for _ in range(3):
        embeddings = torch.randn(5, 6, requires_grad=True)
        images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
        negatives = module.queue.keys.double().numpy().copy()
        keys, _ = copy.deepcopy(module.shuffle)(module.target, images)
        loss = module(embeddings, images)

        def twin(
            values: np.ndarray, keys: Tensor = keys, negatives: np.ndarray = negatives
        ) -> float:
            queries = rows_of_unit_length(values)
            return looped_info_nce(queries, keys.double().numpy(), negatives, 0.2)

        at = embeddings.detach().double().numpy()
        # float32 cosines over T = 0.2: some 1e-6.
        assert loss.item() == pytest.approx(twin(at), rel=1e-5, abs=1e-6)
        loss.backward()
        assert embeddings.grad is not None
        expected = numeric_gradient(twin, at)
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(embeddings.grad.numpy(), expected, rtol=1e-4, atol=2e-6)
        assert torch.equal(module.queue.keys[(module.queue.pointer - 1) % 7], keys[-1])


def test_queries_are_cut_as_the_keys_are_and_not_shuffled():
    module, backbone, _ = contrast(queue=4, groups=3)
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    parts = [backbone(images[start : start + 2]) for start in (0, 2, 4)]
    found = module.encode(backbone, images)  # type: ignore[arg-type]
    assert torch.equal(found, torch.cat(parts))
    assert not torch.allclose(found, backbone(images), rtol=0.01), "the test needs BN that matters"


def test_the_momentum_encoder_follows():
    module, backbone, head = contrast(queue=4)
    with torch.no_grad():
        for parameter in (*backbone.parameters(), *head.parameters()):
            parameter.add_(1)
    before = [p.clone() for p in module.target.parameters()]
    module.follow(backbone, head)  # type: ignore[arg-type]
    online = (*backbone.parameters(), *head.parameters())
    for old, new, other in zip(before, module.target.parameters(), online, strict=True):
        # One float32 rounding more or less.
        torch.testing.assert_close(new, 0.9 * old + 0.1 * other, rtol=1e-6, atol=1e-6)
