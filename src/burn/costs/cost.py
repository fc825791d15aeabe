"""What a network costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Counts for one image.

    Attributes:
        binary_parameters: Weights that deploy as one bit.
        float_parameters: All other parameters.
        binary_macs: Multiply-accumulates of binary convolutions, which the paper calls BOPs.
        flops: Multiply-accumulates of float convolutions and linear layers, as the paper counts
            them.
        float_bytes: The parameters in float32, as `burn pack` counts them.
        packed_bytes: Size of the file that `burn pack` writes once the weights are binary, within
            some 150 bytes, or None if it cannot pack the network.
    """

    binary_parameters: int
    float_parameters: int
    binary_macs: int
    flops: int
    float_bytes: int
    packed_bytes: int | None

    @property
    def ops(self) -> float:
        """BOPs / 64 + FLOPs (paper, section 4, after ReActNet)."""
        return self.binary_macs / 64 + self.flops
