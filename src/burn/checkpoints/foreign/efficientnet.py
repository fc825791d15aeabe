"""Names that EfficientNet-PyTorch and its relatives give to the layers of EfficientNets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

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
