"""Training of a linear layer on frozen features (paper, appendix A)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.core.errors import UserError
from burn.core.types import Features
from burn.data.base import Source
from burn.data.loader import EpochSampler, TrainLoader, light_views
from burn.evaluation.accuracy import top_k
from burn.evaluation.configs import LINEAR_RATES, LinearConfig
from burn.evaluation.features import Forward


def new_head(num_features: int, num_classes: int, seed: int) -> nn.Linear:
    """Return a linear layer with weights from N(0, 0.01²) and bias 0."""
    layer = nn.Linear(num_features, num_classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight.copy_(0.01 * torch.randn(layer.weight.shape, generator=generator))
        layer.bias.zero_()
    return layer


# Features (batch, dimension), labels, and positions of the images in their source.
Rows = tuple[Tensor, Tensor, Tensor]
Batches = Callable[[int], Iterator[Rows]]  # from an epoch to its batches


def train_linear(
    batches: Batches,
    dimension: int,
    num_classes: int,
    config: LinearConfig,
    seed: int,
    on_epoch: Callable[[int], None] = lambda _: None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Train a probe with cross-entropy, at a learning rate that is not auto.

    A hidden layer is initialized uniformly in ±1/√dimension. The probe is returned on the CPU.

    Raises:
        UserError: Training diverged.
    """
    rate = config.first_rate
    assert rate is not None
    layer = probe = new_head(dimension, num_classes, seed)
    if config.probe == "mlp":
        hidden = nn.Linear(dimension, dimension)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in hidden.parameters():
                parameter.uniform_(-(dimension**-0.5), dimension**-0.5, generator=generator)
        probe = nn.Sequential(hidden, nn.ReLU(), layer)
    probe.to(device)
    optimizer = torch.optim.SGD(
        probe.parameters(), lr=rate, momentum=0.9, weight_decay=config.weight_decay
    )
    for epoch in range(config.epochs):
        optimizer.param_groups[0]["lr"] = rate * config.factor(epoch)
        for features, labels, _ in batches(epoch):
            optimizer.zero_grad()
            # To wait for the copies would be to wait for all that a GPU has been given.
            given, answers = (t.to(device, non_blocking=True) for t in (features, labels))
            F.cross_entropy(probe(given), answers).backward()
            optimizer.step()
        on_epoch(epoch)
    if not bool(torch.isfinite(layer.weight).all()):
        raise UserError(f"linear diverged at lr {rate:g}: lower --lr")
    return probe.cpu()


@dataclass(frozen=True)
class ChosenLinear:
    """A linear layer and the learning rate that it was trained with.

    `held_out` has the top-1 in percent on the held-out images for each learning rate that was
    tried; `temperature` is the layer's `calibrating_temperature` on them.
    """

    layer: nn.Linear
    lr: float
    held_out: dict[float, float]
    temperature: float


def train_linear_at_best_rate(
    batches: Batches,
    held_out: Features,
    num_classes: int,
    config: LinearConfig,
    seed: int,
    on_epoch: Callable[[int], None] = lambda _: None,
    device: torch.device | str = "cpu",
) -> ChosenLinear:
    """Train a linear layer with the learning rate of LINEAR_RATES that is best on held-out images.

    Two layers for each learning rate are trained at once on the same batches, so that features are
    computed once: one on all but the held-out images, which is evaluated on these, and one on all,
    which equals that of `train_linear` up to rounding and is returned on the CPU. Of equal
    accuracies the least cross-entropy decides. The learning rate of `config` is ignored; `held_out`
    are plain features.

    Raises:
        UserError: Training diverged.
    """
    assert held_out.labels is not None
    assert len(held_out.values)
    rates = torch.tensor(LINEAR_RATES, device=device)
    dimension = held_out.values.shape[1]
    first = new_head(dimension, num_classes, seed).to(device)
    evaluated, complete = (_Layers(first, rates, config.weight_decay) for _ in range(2))
    for epoch in range(config.epochs):
        factor = config.factor(epoch)
        for rows, classes, positions in batches(epoch):
            # The positions stay on the CPU: to read from a GPU which rows are left would wait.
            kept = (~torch.isin(positions, held_out.positions)).nonzero()[:, 0]
            kept, features, labels = (
                tensor.to(device, non_blocking=True) for tensor in (kept, rows, classes)
            )
            complete.step(features, labels, factor)
            if len(kept):
                evaluated.step(features[kept], labels[kept], factor)
        on_epoch(epoch)
    scores = evaluated.scores(held_out.values.to(device)).transpose(0, 1).cpu()
    qualities: list[tuple[float, float]] = []  # of each rate: accuracy and negative cross-entropy
    for rate_scores in scores:
        quality = 0.0, -math.inf
        if bool(rate_scores.isfinite().all()):
            accuracy = 100 * top_k(rate_scores, held_out.labels, 1)
            quality = accuracy, -float(F.cross_entropy(rate_scores, held_out.labels))
        qualities.append(quality)
    best = max(range(len(qualities)), key=qualities.__getitem__)
    complete.copy(best, first)
    first.cpu()
    if not bool(torch.isfinite(first.weight).all()):
        raise UserError(f"linear diverged at lr {LINEAR_RATES[best]:g}: give a lower --lr")
    tried = {r: round(top1, 4) for r, (top1, _) in zip(LINEAR_RATES, qualities, strict=True)}
    temperature = calibrating_temperature(scores[best], held_out.labels)
    return ChosenLinear(first, LINEAR_RATES[best], tried, temperature)


def calibrating_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the temperature T for which softmax(scores / T) has the least cross-entropy.

    This is temperature scaling (Guo et al., "On Calibration of Modern Neural Networks", 2017). With
    n images, a label counts as 1 - 1 / (n + 2) of an answer and the other classes share the rest
    (after Platt, 1999), so that T is not 0 where every label has the highest score. T is 1 if the
    scores, (images, classes), say nothing about the labels. They must be finite, and of images that
    they were not learned from.
    """
    scores = scores.double()
    number, classes = scores.shape
    if classes == 1:
        return 1.0
    others = 1 / (number + 2) / (classes - 1)
    answers = torch.full_like(scores, others)
    answers[torch.arange(number), labels] = 1 - 1 / (number + 2)
    target = (answers * scores).sum(dim=1).mean()

    def slope(log_inverse: float) -> float:
        """Return the cross-entropy's derivative by 1 / T, which rises with 1 / T."""
        expected = (scores * math.exp(log_inverse)).softmax(dim=1) * scores
        return float(expected.sum(dim=1).mean() - target)

    low, high = -30.0, 30.0
    if not slope(low) < 0 < slope(high):
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return math.exp(-high)


class _Layers:
    """Linear layers with several learning rates, trained together by SGD with momentum 0.9.

    Their weights are one matrix, (dimension, rates · classes): a step is two matrix products.
    """

    def __init__(self, first: nn.Linear, rates: Tensor, weight_decay: float) -> None:
        self._count, self._decay = len(rates), weight_decay
        self._weight = first.weight.detach().T.repeat(1, len(rates))
        self._bias = first.bias.detach().repeat(len(rates))
        self._rates = rates.repeat_interleave(first.out_features)
        self._speed = torch.zeros_like(self._weight), torch.zeros_like(self._bias)

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of features (batch, dimension): (batch, rates, classes)."""
        scores = torch.addmm(self._bias, features, self._weight)
        return scores.view(len(features), self._count, -1)

    def copy(self, number: int, to: nn.Linear) -> None:
        columns = slice(number * to.out_features, (number + 1) * to.out_features)
        with torch.no_grad():
            to.weight.copy_(self._weight[:, columns].T)
            to.bias.copy_(self._bias[columns])

    def step(self, features: Tensor, labels: Tensor, factor: float) -> None:
        """Train each layer for one step on a batch, at `factor` times its learning rate."""
        scores = self.scores(features)
        # e^-60 is practically 0 but not a denormal number; those make a step four times as slow.
        error = (scores - scores.amax(dim=2, keepdim=True)).clamp_min_(-60).softmax(dim=2)
        error[torch.arange(len(labels), device=labels.device), :, labels] -= 1
        error = error.view(len(features), -1) / len(labels)
        gradients = features.T @ error, error.sum(dim=0)
        parameters = (self._weight, self._bias)
        for parameter, speed, gradient in zip(parameters, self._speed, gradients, strict=True):
            speed.mul_(0.9).add_(gradient).add_(parameter, alpha=self._decay)
            parameter.addcmul_(speed, self._rates, value=-factor)


def cached_batches(features: Features, batch_size: int, seed: int) -> Batches:
    """Return batches of features that were extracted once, in a seeded order for each epoch."""
    values, labels, positions = features.values, features.labels, features.positions
    assert labels is not None

    def batches(epoch: int) -> Iterator[Rows]:
        order = torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(len(values)))
        for chosen in order.split(batch_size):
            yield values[chosen], labels[chosen], positions[chosen]

    return batches


def augmented_batches(
    forward: Forward,
    source: Source,
    size: int,
    batch_size: int,
    seed: int,
    workers: int,
    unreadable: set[int],
) -> Batches:
    """Return batches of features of augmented views, which the backbone computes in eval mode.

    Epochs must be taken in order. `size` is the side of a view in pixels; positions of unreadable
    images are added to `unreadable`.
    """
    assert source.labels is not None
    labels = torch.from_numpy(source.labels)
    device = next(forward.backbone.eval().parameters()).device
    sampler = EpochSampler(len(source), batch_size, seed, drop_last=False)
    views = light_views(size, seed)
    loader = TrainLoader(source, views, sampler, workers, pin=device.type == "cuda")

    def batches(epoch: int) -> Iterator[Rows]:  # the loader counts epochs itself
        if len(unreadable) == len(source):
            raise UserError(f"{source.name}: none of its images can be read")
        for batch in loader:
            unreadable.update(batch.unreadable)
            if batch.views:
                yield forward(batch.views[0]), labels[batch.indices], batch.indices

    return batches
