"""Names that the layers of an architecture have in files, and their own names for these."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

_CHUNK = re.compile(r"blocks\.\d+\.(\d+)\.")  # a block's number goes on in the next chunk
_BLOCK = re.compile(r"blocks\.(\d+)\.(\d+)\.(\w+)\.(.+)")
# timm's name of a layer -> their name, in a block that first widens, and in one that does not.
_WIDENING = {
    "conv_pw": "_expand_conv",
    "bn1": "_bn0",
    "conv_dw": "_depthwise_conv",
    "bn2": "_bn1",
    "conv_pwl": "_project_conv",
    "bn3": "_bn2",
}
_PLAIN = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
_SQUEEZE = {"conv_reduce": "_se_reduce", "conv_expand": "_se_expand"}
_OUTSIDE = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1"}


def namings(
    tensors: Mapping[str, Tensor], model: nn.Module, classifiers: Collection[str]
) -> Iterator[Mapping[str, Tensor]]:
    """Yield the tensors by the architecture's names, for each way in which a file may name layers.

    First they are as they are; then each step computes one way, empty where no name is of it.
    """
    yield tensors
    yield _numbered(tensors, model)
    yield _renamed(tensors, model, classifiers)
    yield _converted(tensors, model)


def _numbered(tensors: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """Names in an nn.Sequential of the children, of which those without weights may be left out."""
    numbers = {int(first) for name in tensors if (first := name.partition(".")[0]).isdecimal()}
    children = [name for name, child in model.named_children() if child.state_dict()]
    names = {str(n): child for n, child in zip(sorted(numbers), children, strict=False)}
    parted = ((name.partition("."), tensor) for name, tensor in tensors.items())
    return {names.get(n, n) + dot + rest: tensor for (n, dot, rest), tensor in parted if names}


def _renamed(
    tensors: Mapping[str, Tensor], model: nn.Module, classifiers: Collection[str]
) -> Mapping[str, Tensor]:
    """Names of EfficientNet-PyTorch, and of blocks in chunks, as DINOv2 trains them."""
    names = efficientnet_names(model.state_dict(), classifiers)
    names |= {n: _CHUNK.sub(r"blocks.\1.", n) for n in tensors if _CHUNK.match(n)}
    return {names.get(name, name): tensor for name, tensor in tensors.items()} if names else {}


def _converted(tensors: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """Names that timm converts for models of this kind."""
    function = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if function is None or _stems(tensors) - _stems(model.state_dict()):
        return {}  # timm would resample the kernels of a stem of another size: another network
    options: dict[str, Any] = {}
    if "adapt_layer_scale" in inspect.signature(function).parameters:
        options["adapt_layer_scale"] = True  # DeiT III's names
    try:
        with redirect_stdout(None):
            converted = function(dict(tensors), model, **options)
    except Exception:  # it may raise anything for files of other models
        return {}
    return {k: t for k, t in converted.items() if isinstance(k, str) and isinstance(t, Tensor)}


def _stems(weights: Mapping[str, Tensor]) -> set[torch.Size]:
    """Return the shapes of the kernels that look at images."""
    return {t.shape for t in weights.values() if t.ndim == 4 and t.shape[1] == 3}


def efficientnet_names(expected: Collection[str], classifiers: Collection[str]) -> dict[str, str]:
    """Return timm's name for each of their names; none if the network is no EfficientNet of timm's.

    Of the modules that may be the classifier, the likeliest comes first.
    """
    if "conv_head.weight" not in expected or "blocks.0.0.conv_dw.weight" not in expected:
        return {}
    names = dict(_of_blocks(expected))
    for name in expected:
        layer, _, rest = name.partition(".")
        if layer in _OUTSIDE:
            names[f"{_OUTSIDE[layer]}.{rest}"] = name
    for part in ("weight", "bias"):
        names[f"_fc.{part}"] = f"{next(iter(classifiers))}.{part}"
    return names


def _of_blocks(expected: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield their names and timm's inside blocks, which they number across all stages."""
    matches = [match for name in expected if (match := _BLOCK.fullmatch(name))]
    places = sorted({(int(m[1]), int(m[2])) for m in matches})
    widening = {(int(m[1]), int(m[2])) for m in matches if m[3] == "conv_pwl"}
    for match in matches:
        place, layer, rest = (int(match[1]), int(match[2])), match[3], match[4]
        names = _WIDENING if place in widening else _PLAIN
        if layer == "se":
            layer, _, rest = rest.partition(".")
            names = _SQUEEZE
        if layer in names:
            yield f"_blocks.{places.index(place)}.{names[layer]}.{rest}", match[0]
