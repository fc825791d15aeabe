"""Reading of the published checkpoints of BNext and of the expert network.

Both projects convolve with sign(W), burn with sign(W) · mean|W|. The weights of each output channel
are therefore divided by their mean|W|, which changes no sign. The functions differ only where the
argument of a sign is exactly 0: the published networks have 0 there, burn +1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from burn.backbones.bnext import num_blocks, stem_channels
from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BNEXT, EXPERT
from burn.backbones.expert import STEM_CHANNELS
from burn.backbones.registry import describe_backbone
from burn.checkpoints.foreign.entries import Entries, Shapes, check_entries, misfit, sort_entries
from burn.core.errors import UserError
from burn.core.types import Precision

FAMILIES = ("bnext", "expert")

_PARTS: dict[str, dict[str, str | None]] = {
    "bnext": {"feature.": "feature.", "prelu.": "prelu.", "fc.": "classifier."},
    "expert": {
        **{part: part for part in ("conv1.", "conv2_1.", "conv2_2.", "conv3.")},
        **{f"layer{i}.": f"layer{i}." for i in range(1, 5)},
        "fc.": "classifier.",
    },
}

_BNEXT_ENDS = {"stem": "feature.0.conv1", "stem_norm": "feature.0.bn1", "activation": "prelu"}
# Names of the parts of a layer of BNext: ours -> theirs.
_BNEXT_LAYER = {
    "convolution.sign.shift": "move.bias",
    "convolution": "binary_conv",
    "norm": "norm1",
    "activation": "activation2",
    "mix.share": "scale",
    "gate.squeeze": "se.se.1",
    "gate.excite": "se.se.3",
    "second_norm": "norm2",
    "shortcut_activation": "activation1",
}
_IMAGENET_CLASSES = 1000
# The code takes clamp(W / T, -1, 1) for a weight, and its sign where T is below this.
_COLD = 1e-7
_MOST_SOFT = 0.01

# Names of the parts of a layer of the expert network, with {} for the layer's number, from 1.
_EXPERT_LAYER = {
    "norm": "bn{}",
    "convolution.choice": "conv{}.fc",
    "convolution.scale": "conv{}.alpha2",
    "convolution": "conv{}",
    "gate.squeeze": "conv{}.se_fc.0",
    "gate.excite": "conv{}.se_fc.2",
    "activation": "activation{}",
}
_EXPERT_STEM = {"first": "conv1", "narrow": "conv2_1", "widen": "conv2_2", "last": "conv3"}


@dataclass(frozen=True)
class Family:
    """A published network, every entry of which was checked.

    Attributes:
        format: Format of the file.
        config: Settings of the backbone.
        weights: The weights by burn's names, as in a checkpoint.
        parameters: Number of parameters of the backbone.
        heads: Parts beside the backbone, with their numbers of parameters.
        dropped: Parts that are dropped, with their numbers of entries.
        notes: Remarks for the user.
    """

    format: str
    config: BackboneConfig
    weights: Mapping[str, Tensor]
    parameters: int
    heads: Mapping[str, int]
    dropped: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Layout:
    """Places of a network's entries in a file.

    Attributes:
        names: Names in the file, by burn's.
        shapes: Shapes in the file, by its names.
        factors: Names in the file of factors of the output channels, by the name of the float
            weight that they multiply.
        unused: Entries of the file that nothing is made of, by what they are.
    """

    names: dict[str, str] = field(default_factory=dict)
    shapes: Shapes = field(default_factory=dict)
    factors: dict[str, str] = field(default_factory=dict)
    unused: dict[str, Shapes] = field(default_factory=dict)

    def put(self, ours: str, theirs: str, shape: tuple[int, ...]) -> None:
        self.names[ours], self.shapes[theirs] = theirs, shape

    def leave(self, what: str, theirs: str, shape: tuple[int, ...]) -> None:
        self.unused.setdefault(what, {})[theirs] = shape


def read_family(content: Mapping[Any, Any], format: str) -> Family:
    """Read a published network.

    Args:
        content: The file's content.
        format: One of `FAMILIES`.

    Raises:
        UserError: An entry has neither a place nor a reason to be dropped, one is lacking, or the
            network is not trained to its end.
    """
    entries = sort_entries(content, _PARTS[format])
    found = entries.found
    config = _bnext_config(entries) if format == "bnext" else _expert_config(entries)
    backbone = describe_backbone(config, Precision.BINARY)
    ours = backbone.state_dict()
    layout = _bnext_layout(ours) if format == "bnext" else _expert_layout(ours, config.experts)
    unused = {name: shape for held in layout.unused.values() for name, shape in held.items()}
    head = _head_shapes(found, backbone.num_features)
    check_entries(found, layout.shapes | unused | head, entries)
    notes = entries.notes + (_bnext_notes(found, config) if format == "bnext" else ())
    weights = {name: found[name].float() for name in head}
    zeros = 0
    for name, tensor in ours.items():
        theirs = layout.names[name]
        value = found[theirs]
        value = value.float() if value.is_floating_point() else value
        if name.endswith("convolution.weight"):
            zeros += int((value == 0).sum())
            # Of an output channel's weights, or those of all experts.
            axes = (1, 2, 3) if value.ndim == 4 else (0, 2, 3, 4)
            value = _of_unit_mean(value, axes)
        elif theirs in layout.factors:
            # A float convolution is written as an expert convolution that takes the first expert.
            value = value[0] * found[layout.factors[theirs]].float().view(-1, 1, 1, 1)
        weights[f"backbone.{name}"] = value.reshape(tensor.shape)
    if zeros:
        notes += (f"{zeros} binary weights are exactly 0, whose sign is 0 there and +1 in burn",)
    return Family(
        format=format,
        config=config,
        weights={name: tensor.clone() for name, tensor in weights.items()},
        parameters=sum(p.numel() for p in backbone.parameters()),
        heads={"classifier": sum(weights[name].numel() for name in head)} if head else {},
        dropped={**entries.dropped, **{what: len(held) for what, held in layout.unused.items()}},
        notes=notes,
    )


def _of_unit_mean(weight: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Divide weights by their mean|W| over these axes, where that is not 0."""
    scale = weight.abs().mean(dim=axes, keepdim=True)
    return weight / torch.where(scale > 0, scale, torch.ones_like(scale))


def _head_shapes(found: Mapping[str, Tensor], features: int) -> Shapes:
    """Return the shapes of the classifier, which has as many outputs as in the file, if any."""
    if not any(name.startswith("classifier.") for name in found):
        return {}
    weight = found.get("classifier.weight")
    classes = len(weight) if weight is not None and weight.ndim == 2 else 0
    return {"classifier.weight": (classes, features), "classifier.bias": (classes,)}


def _part(rest: str, table: Mapping[str, str]) -> str:
    """Return the published name of a part of a layer, whose table has the longer names first."""
    own = next(own for own in table if rest == own or rest.startswith(f"{own}."))
    return table[own] + rest.removeprefix(own)


# --- BNext. ---


def _bnext_config(entries: Entries) -> BackboneConfig:
    """Return the settings of the network, by the stem's channels and the number of blocks."""
    found, name = entries.found, "feature.0.conv1.weight"
    stem = found.get(name)
    if stem is None or stem.ndim != 4:
        raise misfit({"lacks": [name], "has unknown": entries.unknown})
    blocks = len({n.split(".")[1] for n in found if n.startswith("feature.")}) - 1
    fitting = [one for one in BNEXT if num_blocks(one) == blocks]
    if not fitting:
        raise UserError(f"it has {blocks} blocks, which no BNext has")
    # bnext_s is a bnext_t of width 1.5; a network is given the name at which its width is 1.
    exact = [one for one in fitting if stem_channels(one) == len(stem)]
    chosen = (exact or fitting)[0]
    head = found.get("classifier.weight")
    other_classes = head is not None and head.ndim == 2 and len(head) != _IMAGENET_CLASSES
    return BackboneConfig(
        name=chosen,
        width=len(stem) / stem_channels(chosen),
        # The code takes stride 1 for small images, which it knows by their number of classes.
        stem_stride=1 if other_classes else None,
        activation_gradient="clip",
        weight_gradient="identity",
    )


def _bnext_layout(ours: Mapping[str, Tensor]) -> _Layout:
    layout = _Layout()
    stem = len(ours["stem.weight"])
    layout.leave("PReLUs that are not used", "feature.0.prelu.weight", (stem,))
    for name, tensor in ours.items():
        shape = tuple(tensor.shape)
        if not name.startswith("blocks."):
            part, leaf = name.rsplit(".", 1)
            layout.put(name, f"{_BNEXT_ENDS[part]}.{leaf}", shape)
            continue
        _, block, kind, rest = name.split(".", 3)
        module = "Attention"
        if kind == "pointwise":
            number, rest = rest.split(".", 1)
            doubles = f"blocks.{block}.pointwise.1.norm.weight" in ours
            module = f"FFN_{int(number) + 1}" if doubles else "FFN"
        prefix = f"feature.{int(block) + 1}.{module}."
        part = _part(rest, _BNEXT_LAYER)
        if part in ("move.bias", "scale"):
            shape = (1, *shape, 1, 1)
        elif rest.startswith("gate.") and tensor.ndim == 2:
            shape = (*shape, 1, 1)  # 1×1 convolutions
        layout.put(name, prefix + part, shape)
        if rest == "norm.weight":
            # Once for each layer; its shape is that of the channels.
            for one in ("binary_activation", "binary_conv"):
                layout.leave("temperatures", f"{prefix}{one}.temperature", (1,))
            if f"{name.removesuffix(rest)}shortcut_activation.weight" not in ours:
                layout.leave("PReLUs that are not used", f"{prefix}activation1.weight", shape)
    return layout


def _bnext_notes(found: Mapping[str, Tensor], config: BackboneConfig) -> tuple[str, ...]:
    """Return remarks on a network of BNext. Raises UserError if its weights are not binary yet."""
    notes: list[str] = []
    if config.stem_stride == 1:
        notes.append("the stem has stride 1, as its code takes it for other than 1000 classes")
    outside = sum(
        int(((tensor < 0) | (tensor > 1)).sum())
        for name, tensor in found.items()
        if name.endswith(".scale")
    )
    if outside:
        notes.append(f"{outside} shares of mixtures outside [0, 1] are cut off there, as it trains")
    soft = weights = 0
    for name, temperature in found.items():
        if name.endswith(".binary_conv.temperature"):
            weight = found[name.replace("temperature", "weight")]
            weights += weight.numel()
            if float(temperature) >= _COLD:
                soft += int((weight.abs() < float(temperature)).sum())
    if soft > _MOST_SOFT * weights:
        raise UserError(
            f"{soft:,} of {weights:,} weights are below their temperature, so they are not binary "
            "yet: give a file of the end of training"
        )
    if soft:
        notes.append(f"{soft} weights are below their temperature; burn takes their signs")
    return tuple(notes)


# --- The expert network. ---


def _expert_config(entries: Entries) -> BackboneConfig:
    """Return the settings of the network, by the stem's channels and the first experts."""
    found, names = entries.found, ("conv3.0.weight", "layer1.0.conv1.weight")
    stem, experts = (found.get(name) for name in names)
    if stem is None or stem.ndim != 4 or experts is None or experts.ndim != 5:
        raise misfit({"lacks": list(names), "has unknown": entries.unknown})
    return BackboneConfig(
        name=EXPERT,
        width=len(stem) / STEM_CHANNELS,
        experts=len(experts),
        activation_gradient="clip",
    )


def _expert_layout(ours: Mapping[str, Tensor], experts: int) -> _Layout:
    layout = _Layout()
    for name, tensor in ours.items():
        shape = tuple(tensor.shape)
        if name.startswith("stem."):
            _, part, rest = name.split(".", 2)
            layout.put(name, f"{_EXPERT_STEM[part]}.{rest}", shape)
            continue
        _, stage, block, kind, rest = name.split(".", 4)
        prefix = f"layer{int(stage) + 1}.{block}."
        if kind == "layers":
            number, rest = rest.split(".", 1)
            part = _part(rest, _EXPERT_LAYER).format(int(number) + 1)
            layout.put(name, prefix + part, (1, *shape, 1, 1) if rest.endswith("scale") else shape)
            continue
        theirs = f"{prefix}downsample.{rest}"
        if tensor.ndim != 4:
            layout.put(name, theirs, shape)
            continue
        layout.put(name, theirs, (experts, *shape))
        module = theirs.removesuffix(".weight")
        layout.factors[theirs] = f"{module}.alpha2"
        layout.shapes[f"{module}.alpha2"] = (1, shape[0], 1, 1)
        what = "choices of experts in float convolutions, which take the first"
        layout.leave(what, f"{module}.fc.weight", (experts, shape[1]))
        layout.leave(what, f"{module}.fc.bias", (experts,))
    return layout
