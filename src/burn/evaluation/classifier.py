"""Linear evaluation: one linear layer on frozen features (paper, appendix A)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones import Backbone
from burn.data.loader import EpochSampler, TrainLoader, light_views
from burn.data.sources import Source
from burn.data.views import ViewConfig
from burn.errors import UserError
from burn.evaluation.configs import LinearConfig
from burn.types import Features


def new_head(num_features: int, num_classes: int, seed: int) -> nn.Linear:
    """A linear layer with weights from N(0, 0.01²) and bias 0."""
    layer = nn.Linear(num_features, num_classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight.copy_(0.01 * torch.randn(layer.weight.shape, generator=generator))
        layer.bias.zero_()
    return layer


def train_linear(
    batches: Callable[[int], Iterator[tuple[Tensor, Tensor]]], dimension: int, num_classes: int,
    config: LinearConfig, seed: int, on_epoch: Callable[[int], None] = lambda _: None,
) -> nn.Module:  # fmt: skip
    """Fit the probe with cross-entropy: features (batch, dimension) -> scores.

    `batches(epoch)` gives features and labels. A hidden layer starts uniform in ±1/√dimension.
    Raises UserError where it diverges.
    """
    layer = probe = new_head(dimension, num_classes, seed)
    if config.probe == "mlp":
        hidden = nn.Linear(dimension, dimension)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in hidden.parameters():
                parameter.uniform_(-(dimension**-0.5), dimension**-0.5, generator=generator)
        probe = nn.Sequential(hidden, nn.ReLU(), layer)
    optimizer = torch.optim.SGD(
        probe.parameters(), lr=config.lr, momentum=0.9, weight_decay=config.weight_decay
    )
    for epoch in range(config.epochs):
        optimizer.param_groups[0]["lr"] = config.learning_rate(epoch)
        for features, labels in batches(epoch):
            optimizer.zero_grad()
            F.cross_entropy(probe(features), labels).backward()
            optimizer.step()
        on_epoch(epoch)
    if not bool(torch.isfinite(layer.weight).all()):
        raise UserError(f"linear diverged at lr {config.lr}: lower --lr")
    return probe


def cached_batches(
    features: Features, batch_size: int, seed: int
) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    """Batches of features that were extracted once, in a seeded order for each epoch."""
    values, labels = features.values, features.labels
    assert labels is not None

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(values)))
        for chosen in order.split(batch_size):
            yield values[chosen], labels[chosen]

    return batches


def augmented_batches(
    backbone: Backbone, source: Source, views: ViewConfig, batch_size: int, seed: int, workers: int,
    unreadable: set[int], *, bfloat16: bool = False,
) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:  # fmt: skip
    """Batches of features of augmented views, through the backbone in eval mode every time.

    unreadable: to which the positions of images that cannot be decoded are added.
    """
    assert source.labels is not None
    labels = torch.from_numpy(source.labels)
    device = next(backbone.parameters()).device
    sampler = EpochSampler(len(source), batch_size, seed, drop_last=False)
    loader = TrainLoader(source, light_views(views, seed), sampler, workers)
    backbone.eval()

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:  # the loader counts
        if len(unreadable) == len(source):
            raise UserError(f"{source.name}: none of its images can be read")
        for batch in loader:
            unreadable.update(batch.unreadable)
            if batch.views:
                autocast = torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)
                with torch.no_grad(), autocast:
                    features = backbone(batch.views[0].to(device)).float().cpu()
                yield features, labels[batch.indices]

    return batches


def top_k(scores: Tensor, labels: Tensor, k: int) -> float:
    """Share of rows, in [0, 1], whose label is among the k best scores (k cut to the classes)."""
    best = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return float((best == labels[:, None]).any(dim=1).float().mean())
