"""What a network costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Counts for one image.

    `packed_bytes` is the size of the file that `burn pack` writes once the weights are binary,
    within some 150 bytes, or None if it cannot pack the network.
    """

    binary_parameters: int  # weights that deploy as one bit
    float_parameters: int  # all others
    binary_macs: int  # multiply-accumulates of binary convolutions, which the paper calls BOPs
    flops: int  # those of float convolutions and linear layers, as the paper counts them
    float_bytes: int  # the parameters in float32, as `burn pack` counts them
    packed_bytes: int | None

    @property
    def ops(self) -> float:
        """BOPs / 64 + FLOPs (paper, section 4, after ReActNet)."""
        return self.binary_macs / 64 + self.flops
