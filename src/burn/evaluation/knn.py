"""Weighted k-nearest-neighbour classification of features (Wu et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def knn_predict(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, num_classes: int, k: int = 20,
    temperature: float = 0.07,
) -> Tensor:  # fmt: skip
    """Class scores (queries, num_classes): votes of the k nearest, weighted by exp(cos / T).

    bank (n, dimension), bank_labels int64 (n,), queries (m, dimension). k is cut to n.
    """
    bank, queries = F.normalize(bank, dim=1), F.normalize(queries, dim=1)
    scores = []
    for chunk in queries.split(1024):
        similarity, nearest = (chunk @ bank.T).topk(min(k, len(bank)), dim=1)
        votes = torch.exp((similarity - 1) / temperature)  # the shift by 1 cancels in a comparison
        score = votes.new_zeros(len(chunk), num_classes)
        scores.append(score.scatter_add_(1, bank_labels[nearest], votes))
    return torch.cat(scores)


def knn_accuracy(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, labels: Tensor, k: int = 20,
    temperature: float = 0.07,
) -> float:  # fmt: skip
    """Share of queries, in [0, 1], whose best-scored class is their label."""
    num_classes = int(max(bank_labels.max(), labels.max())) + 1
    scores = knn_predict(bank, bank_labels, queries, num_classes, k, temperature)
    return float((scores.argmax(dim=1) == labels).float().mean())
