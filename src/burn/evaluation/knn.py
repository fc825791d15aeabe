"""Weighted k-nearest-neighbour classification of features (Wu et al., 2018)."""

from __future__ import annotations

import time
from dataclasses import asdict

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from burn.core.results import Result
from burn.evaluation.accuracy import right_answers, top_k
from burn.evaluation.artifacts.confusion import keep_confusion
from burn.evaluation.artifacts.neighbours import keep_neighbours
from burn.evaluation.cache import plain_features
from burn.evaluation.configs import KnnConfig
from burn.evaluation.context import EvaluationContext

_DEFAULT = KnnConfig()


def same_direction(features: Tensor) -> bool:
    """Return whether all features (images, features) have one direction, or none.

    Features that are zero have none in float32, nor have those so large or small that their squares
    are infinite or zero.
    """
    unit = F.normalize(features, dim=1)
    return float((unit - unit[0]).abs().max()) < 1e-6  # the difference that rounding makes


def knn_predict(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    num_classes: int,
    config: KnnConfig = _DEFAULT,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Score classes by the votes of the k nearest neighbours, weighted by exp(cosine / T).

    The features of the bank, (n, dimension), vote for the classes of the queries, (m, dimension);
    k is reduced to n if it is larger. The scores, (m, num_classes), are on the CPU, up to a factor
    of each query: the vote of its nearest neighbour is 1.
    """
    bank, bank_labels = F.normalize(bank.to(device), dim=1), bank_labels.to(device)
    scores = []
    for part in queries.split(1024):
        chunk = F.normalize(part.to(device), dim=1)
        similarity, nearest = (chunk @ bank.T).topk(min(config.k, len(bank)), dim=1)
        # The nearest's vote is 1, which divides all scores of a query by the same: at a low
        # temperature the votes of all would otherwise be zero in float32.
        votes = torch.exp((similarity - similarity[:, :1]) / config.temperature)
        score = votes.new_zeros(len(chunk), num_classes)
        scores.append(score.scatter_add_(1, bank_labels[nearest], votes).cpu())
    return torch.cat(scores)


def knn_accuracy(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    labels: Tensor,
    config: KnnConfig = _DEFAULT,
) -> float:
    """Return the share of queries, in [0, 1], whose class with the best score is their label.

    >>> bank, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> knn_accuracy(bank, labels, torch.tensor([[2.0, 0.1], [2.0, 0.1]]), torch.tensor([0, 1]))
    0.5
    """
    num_classes = int(max(bank_labels.max(), labels.max())) + 1
    scores = knn_predict(bank, bank_labels, queries, num_classes, config)
    return float((scores.argmax(dim=1) == labels).float().mean())


def run_knn(context: EvaluationContext, config: KnnConfig, console: Console) -> list[Result]:
    """Run kNN evaluation: top-1 of weighted kNN with plain features.

    The confusion matrix, which replaces an older one, and the nearest neighbours of a few test
    images, one set for each network, are written to `context.out`.

    Raises:
        UserError: Images cannot be read, or their features are not finite.
    """
    began = time.perf_counter()
    bank, queries = (plain_features(context, part, console) for part in ("train", "test"))
    assert bank.labels is not None
    assert queries.labels is not None
    if same_direction(bank.values):
        context.notes.append(
            f"the features of all images of {context.train.name} have the same direction, so that "
            "kNN is only a matter of their order: the network collapsed, or is broken"
        )
    num_classes = len(bank.classes)
    scores = knn_predict(
        bank.values, bank.labels, queries.values, num_classes, config, context.device
    )
    numbers = {"top1": 100 * top_k(scores, queries.labels, 1)}
    right = right_answers(scores, queries.labels, queries.positions, len(context.test))
    used = {**asdict(config), "k": min(config.k, len(bank.values))}
    results = context.results("knn", numbers, used, began, right=right)
    context.announce(results)
    keep_confusion(context, "knn", "top1", scores, queries.labels)
    keep_neighbours(context, bank, queries)
    return results
