"""An evaluation protocol of your own in one file: the nearest class mean of frozen features.

    burn evaluate class_means runs/student --import examples/own_protocol.py \\
        --train digits --test digits
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from torch.nn import functional as F

import burn
from burn.core.results import Result


@dataclass(frozen=True)
class ClassMeansConfig:
    """Settings of the protocol.

    Attributes:
        normalize: divide features by their length first.
    """

    normalize: bool = True


@burn.register_protocol("class_means", config=ClassMeansConfig)
def class_means(
    context: burn.EvaluationContext, config: ClassMeansConfig, console: Console
) -> list[Result]:
    """Measure top-1, the share of test images whose nearest class mean is their own."""
    began = time.perf_counter()
    bank, queries = (burn.plain_features(context, part, console) for part in ("train", "test"))
    values = [bank.values, queries.values]
    if config.normalize:
        values = [F.normalize(features, dim=1) for features in values]
    means = torch.stack([values[0][bank.labels == c].mean(dim=0) for c in range(len(bank.classes))])
    distances = torch.cdist(values[1], means).nan_to_num(float("inf"))  # a class without images
    nearest = distances.argmin(dim=1)
    top1 = 100 * float((nearest == queries.labels).float().mean())
    return context.results("class_means", {"top1": top1}, asdict(config), began)
