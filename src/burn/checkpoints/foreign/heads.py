"""Projection heads and classifiers of teachers, rebuilt from their weights alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from burn.core.errors import UserError, printable

_NORM = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def head_from(weights: Mapping[str, Tensor], num_features: int) -> nn.Sequential:
    """Rebuild a projection head in eval mode, (batch, num_features) -> (batch, dimension).

    The weights are the state dict of one Linear, or of an nn.Sequential: an index with a 2-D weight
    is a Linear, one with running statistics is a BatchNorm1d, and a single missing index between
    two is a ReLU. lightly's heads hold their sequence below `layers.`. Raises UserError if the
    weights are not such a head, or the widths of its layers do not match.
    """
    weights = {name.removeprefix("layers."): tensor for name, tensor in weights.items()}
    if "weight" in weights:
        weights = {f"0.{name}": tensor for name, tensor in weights.items()}
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in weights.items():
        match = re.fullmatch(r"(\d{1,3})\.(\w+)", name)
        if match is None:
            raise UserError(f"{printable(name[:80])} does not belong to a sequence of layers")
        entries.setdefault(int(match[1]), {})[match[2]] = tensor
    indices = sorted(entries)
    if indices[:1] != [0]:
        raise UserError("its first layer has no weights")
    layers: list[nn.Module] = []
    width = num_features
    for index, after in pairwise([*indices, indices[-1] + 1]):
        layer = _layer(index, entries[index], width)
        if isinstance(layer, nn.Linear):
            width = layer.out_features
        layers.append(layer)
        if after - index > 2:
            raise UserError(f"its layers {index + 1} to {after - 1} are unknown")
        if after - index == 2:
            layers.append(nn.ReLU(inplace=True))
    if not any(isinstance(layer, nn.Linear) for layer in layers) or width < 2:
        raise UserError("it gives fewer than 2 numbers, or none of its layers is Linear")
    return nn.Sequential(*layers).eval()


def _layer(index: int, entries: Mapping[str, Tensor], width: int) -> nn.Module:
    weight, mean = entries.get("weight"), entries.get("running_mean")
    if mean is not None and entries.keys() <= _NORM:
        layer = nn.BatchNorm1d(width, affine=weight is not None)
    elif weight is not None and weight.ndim == 2 and entries.keys() <= {"weight", "bias"}:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in entries)
        if layer.in_features != width:
            raise UserError(f"its layer {index} takes {layer.in_features} features, not {width}")
    else:
        raise UserError(f"its layer {index} is neither Linear nor batch normalization")
    expected = layer.state_dict()
    lacking = expected.keys() - entries.keys() - {"num_batches_tracked"}
    if lacking or entries.keys() - expected.keys() - {"num_batches_tracked"}:
        raise UserError(f"its layer {index} is incomplete")
    for name, tensor in entries.items():
        if tensor.shape != expected[name].shape:
            raise UserError(
                f"its layer {index} has {name} {tuple(tensor.shape)}, which does not fit"
            )
    layer.load_state_dict(dict(entries), strict=False)
    return layer


def classifier_from(
    weights: Mapping[str, Tensor], names: Collection[str], num_features: int
) -> nn.Linear | None:
    """Rebuild a Linear (num_features -> classes) from weights that are just that, or return None.

    The weights' names begin with one of `names`.
    """
    for name in names:
        weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        if weight is None or bias is None or len(weights) > 2:
            continue
        fits = weight.ndim == 2 and weight.shape[1] == num_features and len(weight) > 1
        if fits and bias.shape == weight.shape[:1]:
            layer = nn.Linear(num_features, len(weight))
            with torch.no_grad():
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            return layer.eval()
    return None
