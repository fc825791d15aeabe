"""Which classes are taken for which: what kNN and linear evaluation keep beside their numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from burn.core.files import write_text
from burn.evaluation.context import EvaluationContext

NAME = "confusion.json"
MOST_CLASSES = 200  # CUB has as many; a thousand classes are a million counts that nobody looks at


def confusion(scores: Tensor, labels: Tensor) -> Tensor:
    """How often each class is predicted for each: int64 (classes, classes), a row a true class.

    scores (images, classes), the best of which is the prediction; labels int64 (images,). The
    diagonal's share of all is top-1, equal best scores included.
    """
    num_classes = scores.shape[1]
    predicted = scores.topk(1, dim=1).indices[:, 0]  # as top_k, which argmax is not among equals
    pairs = labels * num_classes + predicted
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def keep_confusion(
    context: EvaluationContext, protocol: str, metric: str, scores: Tensor, labels: Tensor,
    classes: Sequence[str],
) -> None:  # fmt: skip
    """Write confusion.json in `context.out`, if there is one, in the place of an older one.

    metric: name of the result that its diagonal adds up to. classes: names of the scores' columns;
    of more than `MOST_CLASSES` nothing is written, which is noted.
    """
    if context.out is None:
        return
    if len(classes) > MOST_CLASSES:
        context.notes.append(
            f"{NAME} is not kept: {len(classes)} classes, more than {MOST_CLASSES}"
        )
        return
    kept = {
        "protocol": protocol,
        "metric": metric,
        **context.about(),
        "classes": list(classes),
        "counts": confusion(scores, labels).tolist(),
    }
    path = context.out / NAME
    context.keep(lambda: write_text(path, json.dumps(kept) + "\n"))
