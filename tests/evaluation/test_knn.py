"""Weighted kNN against a triple loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from burn.evaluation.configs import KnnConfig
from burn.evaluation.knn import knn_accuracy, knn_predict, same_direction


def looped(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray, classes: int, k: int, t: float
) -> np.ndarray:
    """Votes exp(cos / T) of the k nearest, divided by the nearest's vote."""
    scores = np.zeros((len(queries), classes))
    for i in range(len(queries)):
        cosines = []
        for j in range(len(bank)):
            dot = first = second = 0.0
            for d in range(bank.shape[1]):
                dot += queries[i, d] * bank[j, d]
                first += queries[i, d] ** 2
                second += bank[j, d] ** 2
            cosines.append((dot / math.sqrt(first * second), j))
        nearest = sorted(cosines, reverse=True)[:k]
        for cosine, j in nearest:
            scores[i, labels[j]] += math.exp((cosine - nearest[0][0]) / t)
    return scores


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    bank, queries = torch.randn(30, 6), 10 * torch.randn(12, 6)
    return bank, torch.randint(0, 4, (30,)), queries, torch.randint(0, 4, (12,))


@pytest.mark.parametrize("k", [1, 5, 30, 100])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_scores(data: tuple[torch.Tensor, ...], k: int, temperature: float):
    bank, labels, queries, _ = data
    found = knn_predict(bank, labels, queries, 5, KnnConfig(k, temperature))
    expected = looped(
        bank.double().numpy(), labels.numpy(), queries.double().numpy(), 5, k, temperature
    )
    assert found.shape == (12, 5)
    # A cosine errs by some 1e-7 in float32, which exp(cos / 0.07) makes 1e-6 of a vote.
    assert np.allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_lowest_temperature_is_one_neighbour(data: tuple[torch.Tensor, ...]):
    """Cosines that are 0.1 or more below 1 have votes, too."""
    bank, labels, queries, _ = data
    lowest = knn_predict(bank, labels, queries, 4, KnnConfig(30, 1e-3))
    one = knn_predict(bank, labels, queries, 4, KnnConfig(1))
    assert torch.equal(lowest.argmax(dim=1), one.argmax(dim=1))
    assert bool((lowest.max(dim=1).values >= 1).all())


def test_accuracy(data: tuple[torch.Tensor, ...]):
    bank, bank_labels, queries, labels = data
    scores = looped(
        bank.double().numpy(), bank_labels.numpy(), queries.double().numpy(), 4, 7, 0.07
    )
    expected = np.mean(scores.argmax(axis=1) == labels.numpy())
    found = knn_accuracy(bank, bank_labels, queries, labels, KnnConfig(7))
    assert found == pytest.approx(expected, rel=1e-6)  # a mean in float32
    assert 0 < found < 1, "the test needs hits and misses"


def test_a_near_neighbour_outvotes_two_far_ones():
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    labels = torch.tensor([0, 1, 1])
    query = torch.tensor([[1.0, 0.05]])
    assert knn_predict(bank, labels, query, 2, KnnConfig(3)).argmax() == 0
    # At a high temperature all votes are equal, and the majority has it.
    assert knn_predict(bank, labels, query, 2, KnnConfig(3, 100)).argmax() == 1


def test_lengths_of_vectors_do_not_matter(data: tuple[torch.Tensor, ...]):
    bank, labels, queries, _ = data
    stretched = bank * torch.linspace(0.1, 9, len(bank))[:, None]
    # Normalising rounds differently: as in `test_scores`.
    torch.testing.assert_close(
        knn_predict(stretched, labels, queries, 4), knn_predict(bank, labels, queries, 4),
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("features", "same"),
    [
        (torch.zeros(4, 3), True),
        (torch.full((4, 3), 0.3), True),
        (torch.tensor([[1.0, 2.0], [0.1, 0.2], [30.0, 60.0]]), True),
        (torch.tensor([[1.0], [5.0]]), True),
        (torch.tensor([[1.0], [-5.0]]), False),
        (torch.eye(3), False),
        (1e30 * torch.eye(3), True),
        (1e-30 * torch.eye(3), True),
        (torch.tensor([[1.0, 0.0]]), True),
    ],
)
def test_features_of_one_direction_are_noticed(features: torch.Tensor, same: bool):
    assert same_direction(features) == same


def test_more_queries_than_one_chunk(data: tuple[torch.Tensor, ...]):
    bank, labels, queries, _ = data
    many = queries.repeat(100, 1)  # 1,200: more than 1,024
    found = knn_predict(bank, labels, many, 4, KnnConfig(5))
    # A matrix product of other shape may sum in another order.
    torch.testing.assert_close(
        found,
        knn_predict(bank, labels, queries, 4, KnnConfig(5)).repeat(100, 1),
        rtol=1e-5,
        atol=1e-6,
    )
