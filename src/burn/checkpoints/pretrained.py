"""The pretrained networks that come with burn, as checkpoints: what training and evaluation need.

burn-engine comes with the same networks packed. Of the latent weights of a binary layer the network
computes with the signs and with the mean absolute value of each output channel, its size. Both are
kept exactly. What is rounded, to the two bits of float8_e5m2 behind the leading one, is how far
each weight is from changing its sign, which matters where training goes on.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from burn.core.errors import UserError
from burn.core.inputs import sha256_of
from burn.core.paths import expand, is_file_or_run, nearest_path

if TYPE_CHECKING:
    from torch import Tensor

_FOLDER = Path(__file__).with_name("pretrained")

# SHA-256 of each network's file, by its name.
PRETRAINED = {
    "photos": "46a72c42d55bb67aa9ec667daa269e15247dfdc6940f29065b1ca40b4239c799",
    "small": "8fbc7f4492601b398f4fab55fe94e38ce6d7d583f549336e6e45378ccfdb8fcf",
}

_SIZE = ".size"  # behind the name of a weight: float32 (out,), mean |W| of each output channel
_SMALLEST = 2.0**-16  # of float8_e5m2; a smaller weight would become 0, and 0 has no sign


def pretrained_file(spec: str | os.PathLike[str]) -> Path | None:
    """Return the file of the pretrained network that a name means, or None if it means none.

    A file or run of that name comes first. Another folder does not, since it is no network:
    `photos` means the network beside a folder of photos. Raises UserError if the network's file is
    missing, or is not the one that burn was made with.
    """
    name = os.fspath(spec)
    if name not in PRETRAINED or is_file_or_run(expand(name)):
        return None
    file = _FOLDER / f"{name}.safetensors"
    digest = sha256_of(file) if file.is_file() else None
    if digest != PRETRAINED[name]:
        state = "missing" if digest is None else "damaged"
        raise UserError(f"{name}: the network's file in the package is {state}: install burn again")
    return file


def names_checkpoint(spec: str | os.PathLike[str]) -> bool:
    """Return whether a name stands for a checkpoint of burn's: a path, or a pretrained network.

    Raises UserError as `pretrained_file`.
    """
    return pretrained_file(spec) is not None or expand(os.fspath(spec)).exists()


def nearest_network(spec: str, *others: str) -> str | None:
    """Return the network or the path whose name is nearest to one that means nothing.

    Networks are the pretrained ones and `others`.
    """
    near = difflib.get_close_matches(spec, (*PRETRAINED, *others), n=1)
    path = nearest_path(expand(spec))
    return near[0] if near else path and str(path)


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
