"""Standardization of a teacher's features by running statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from burn.methods.shared.contrast import gather


class Standardize(nn.Module):
    """Standardization of features by the mean and standard deviation of all batches so far.

    Input and output have shape (batch, dimension). The statistics change less and less as batches
    are added in training mode, and have the images of all processes. A feature that is the same for
    all images stays 0.

    >>> Standardize(2)(torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """

    count: Tensor
    mean: Tensor
    square: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(dimension))
        # The sum of squared distances from the mean.
        self.register_buffer("square", torch.zeros(dimension))

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        features = features.float()
        if self.training:
            self._add(features)
        variance = self.square / self.count.clamp_min(1)
        scale = torch.where(variance > 0, variance, 1.0).rsqrt()
        return (features - self.mean) * scale

    def _add(self, features: Tensor) -> None:
        """Update the statistics with a batch, as Chan, Golub and LeVeque describe."""
        mean = features.mean(dim=0)
        square = (features - mean).square().sum(dim=0)
        here = torch.cat([features.new_full((1,), len(features)), mean, square])
        for there in gather(here[None]):
            number, (mean, square) = there[0, 0], there[0, 1:].chunk(2)
            total = self.count + number
            shift = mean - self.mean
            self.square += square
            self.square += shift.square() * (self.count * number / total)
            self.mean += shift * (number / total)
            self.count.copy_(total)
