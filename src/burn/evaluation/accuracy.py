"""How many images scores classify correctly, and which."""

from __future__ import annotations

import torch
from torch import Tensor

from burn.core.results import encode_right


def top_k(scores: Tensor, labels: Tensor, k: int) -> float:
    """Return the share of rows, in [0, 1], whose label is among the k best scores, or among all."""
    best = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return float((best == labels[:, None]).any(dim=1).float().mean())


def right_answers(scores: Tensor, labels: Tensor, positions: Tensor, number: int) -> str:
    """Encode which of `number` test images are classified correctly, as in `Result.right`.

    Scores (rows, classes) and labels (rows,) are those of the images at `positions`, (rows,).
    """
    right = torch.zeros(number, dtype=torch.bool)
    right[positions] = scores.topk(1, dim=1).indices[:, 0] == labels
    return encode_right(right.numpy())
