"""Squeeze-and-excitation: factors of the channels that a small network makes of their means."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def channel_means(x: Tensor) -> Tensor:
    """Return the means over all pixels, (batch, channels), in float32 or better."""
    return x.mean(dim=(2, 3), dtype=torch.promote_types(x.dtype, torch.float32))


class ChannelGate(nn.Module):
    """Maps the means of channels to factors in (0, 1): sigmoid(Linear(ReLU(Linear(means)))).

    Between the two layers there are an eighth of the output channels, or one.
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        hidden = max(1, out_channels // 8)
        self.squeeze = nn.Linear(in_channels, hidden, bias=bias)
        self.excite = nn.Linear(hidden, out_channels, bias=bias)

    def forward(self, means: Tensor) -> Tensor:
        """Map `channel_means` to factors of a map, (batch, out_channels, 1, 1)."""
        factors = torch.sigmoid(self.excite(torch.relu(self.squeeze(means))))
        return factors[:, :, None, None]
