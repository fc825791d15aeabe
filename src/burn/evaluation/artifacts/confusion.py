"""The confusion matrix that kNN and linear evaluation write besides their results."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from burn.core.files import write_text
from burn.evaluation.context import EvaluationContext

NAME = "confusion.json"
MOST_CLASSES = 200  # as in CUB; the matrix of a thousand classes would have a million counts


def confusion(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the confusion matrix.

    The diagonal's share of all counts is the top-1 accuracy, also if best scores are equal. The
    counts, int64 (classes, classes), have a row for each true class.
    """
    num_classes = scores.shape[1]
    predicted = scores.topk(1, dim=1).indices[:, 0]  # argmax may choose another of equal scores
    pairs = labels * num_classes + predicted
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def keep_confusion(
    context: EvaluationContext, protocol: str, metric: str, scores: Tensor, labels: Tensor
) -> None:
    """Write confusion.json to `context.out`, if there is one, replacing an older one.

    Nothing is written for more than `MOST_CLASSES` classes, and a note is added instead. `metric`
    is the result that the matrix's diagonal gives.
    """
    if context.out is None:
        return
    classes = context.class_names
    if len(classes) > MOST_CLASSES:
        context.notes.append(
            f"{NAME} is not kept: {len(classes)} classes, more than {MOST_CLASSES}"
        )
        return
    content = {
        "protocol": protocol,
        "metric": metric,
        **context.about_in(context.out),
        "classes": list(classes),
        "counts": confusion(scores, labels).tolist(),
    }
    path = context.out / NAME
    context.keep(lambda: write_text(path, json.dumps(content) + "\n"))
