"""Accuracies of scores against a loop, and which answers are right."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch

from burn.evaluation.accuracy import right_answers, top_k


@pytest.mark.parametrize("k", [1, 2, 5, 6, 9])
def test_top_k_by_loop(k: int):
    scores, labels = torch.randn(40, 6), torch.randint(0, 6, (40,))
    hits = 0
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        better = sum(score > row[label] for score in row)
        hits += better < k
    assert top_k(scores, labels, k) == pytest.approx(hits / 40, rel=1e-6)  # a float32 mean


def test_an_image_that_cannot_be_read_is_not_answered():
    scores, labels = torch.eye(3), torch.tensor([0, 1, 0])
    right = right_answers(scores, labels, torch.tensor([0, 2, 4]), 5)
    assert np.unpackbits(np.frombuffer(base64.b64decode(right), np.uint8)).tolist()[:5] == [
        1, 0, 1, 0, 0
    ]  # fmt: skip
