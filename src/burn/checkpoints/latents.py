"""Latent weights in 8 bits, as the pretrained networks are kept in the package.

Of the latent weights of a binary layer the network computes with the signs and with the mean
absolute value of each output channel, its size. Both are kept exactly. What is rounded, to the two
bits of float8_e5m2 behind the leading one, is how far each weight is from changing its sign, which
matters where training goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from burn.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_SIZE = ".size"  # behind the name of a weight: float32 (out,), mean |W| of each output channel
_SMALLEST = 2.0**-16  # of float8_e5m2; a smaller weight would become 0, and 0 has no sign


def in_eight_bits(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights of which those of binary convolutions are kept in 8 bits.

    Binary convolutions of a backbone are those of more than three input channels.
    """
    import torch

    converted = {}
    for name, weight in weights.items():
        if weight.ndim != 4 or weight.shape[1] <= 3:
            converted[name] = weight
            continue
        magnitude = weight.float().abs()
        shown = torch.copysign(magnitude.clamp(min=_SMALLEST), weight.float())
        converted[name] = shown.to(torch.float8_e5m2)
        converted[name + _SIZE] = magnitude.double().mean(dim=(1, 2, 3)).float()
    return converted


def in_full(weights: dict[str, Tensor], origin: str) -> dict[str, Tensor]:
    """Undo `in_eight_bits`; what is not in 8 bits stays as it is.

    Raises UserError if weights in 8 bits are not those of a convolution, or lack their sizes.
    """
    import torch

    full = dict(weights)
    for name, weight in weights.items():
        if weight.dtype != torch.float8_e5m2:
            continue
        size = full.pop(name + _SIZE, torch.empty(0))
        fits = weight.ndim == 4 and (size.dtype, size.shape) == (torch.float32, weight.shape[:1])
        if not (fits and bool((size.isfinite() & (size >= 0)).all())):
            raise UserError(f"{origin} is damaged: {name} has 8 bits and no size of each channel")
        exact = weight.double()
        means = exact.abs().mean(dim=(1, 2, 3), keepdim=True)
        scaled = exact * (size.double().view_as(means) / means)
        full[name] = torch.copysign(scaled, exact).float()
    return full


def without_sizes(types: Mapping[str, str]) -> list[str]:
    """Return the names of the tensors that `in_full` returns of a file.

    Their types are given by name, as safetensors writes them.
    """
    sizes = {name + _SIZE for name, kind in types.items() if kind == "F8_E5M2"}
    return [name for name in types if name not in sizes]
