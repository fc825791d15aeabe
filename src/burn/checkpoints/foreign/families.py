"""Networks of published checkpoints: which one a file holds, and where its entries are.

BNext and the expert network are networks of their own. All others are ReActNet-A under other names.
Where a block doubles the width, these have two 1×1 convolutions with a BN each and concatenate the
outputs; burn has one convolution with the channels of both.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from burn.backbones.bnext import num_blocks, stem_channels
from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BNEXT, EXPERT
from burn.backbones.expert import STEM_CHANNELS as EXPERT_STEM_CHANNELS
from burn.backbones.plan import STEM_CHANNELS
from burn.checkpoints.foreign.entries import Entries, Shapes, misfit
from burn.core.errors import UserError

# Prefixes of names in a file (without the words `state_dict` and `module`), and what replaces them
# here; None drops the entry. The first prefix that fits counts. One without a dot at its end is a
# whole name.
_NECK = {"fc0.": "0.", "bn0.": "1.", "fc1.": "3.", "bn1.": "4.", "": ""}  # NonLinearNeckSimCLR
PARTS: dict[str, dict[str, str | None]] = {
    "reactnet": {"feature.": "feature.", "fc.": "classifier."},
    "burn-release": {
        **{w + p: p for w in ("", "backbone.", "online_net.0.") for p in ("feature.", "fc.")},
        **{
            part + theirs: head + ours
            for part, head in (
                ("classifier.", "classifier."),
                ("online_net.1.", "classifier."),
                ("teacher_classifier.", "teacher_classifier."),
                ("diff_branch_net.1.", "teacher_classifier."),
            )
            for theirs, ours in _NECK.items()
        },
        "head.fc_cls.": "classifier.",  # in files of linear evaluation
        "diff_branch_net.0.": None,  # the float teacher
    },
    "s2bnn": {
        "encoder_q.feature.": "feature.",
        "encoder_q.fc.": "head.",
        "feature.": "feature.",  # in files of linear evaluation
        "fc.": "classifier.",
        **dict.fromkeys(("encoder_k.", "queue", "queue_ptr"), None),
    },
    "bnext": {"feature.": "feature.", "prelu.": "prelu.", "fc.": "classifier."},
    "expert": {
        **{part: part for part in ("conv1.", "conv2_1.", "conv2_2.", "conv3.")},
        **{f"layer{i}.": f"layer{i}." for i in range(1, 5)},
        "fc.": "classifier.",
    },
}

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
# Names of ReActNet's layers and of a block's: ours -> theirs.
_REACTNET = {
    "stem": "conv1",
    "stem_norm": "bn1",
    "feature_layer.0": "fc.0",
    "spatial.sign.shift": "move11.bias",
    "spatial": "binary_3x3",
    "spatial_norm": "bn1",
    "spatial_activation.before": "move12.bias",
    "spatial_activation.slope": "prelu1.weight",
    "spatial_activation.after": "move13.bias",
    "pointwise.sign.shift": "move21.bias",
    "pointwise": "binary_pw",
    "pointwise_norm": "bn2",
    "pointwise_activation.before": "move22.bias",
    "pointwise_activation.slope": "prelu2.weight",
    "pointwise_activation.after": "move23.bias",
}
_HALVES = {"binary_pw": ("binary_pw_down1", "binary_pw_down2"), "bn2": ("bn2_1", "bn2_2")}

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
_UNUSED = "PReLUs that are not used"
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
class Layout:
    """Places of a network's entries in a file.

    Attributes:
        pieces: For each of burn's entries, the names and shapes in the file of what makes it.
        unused: Entries of the file that nothing is made of, by what they are.
    """

    pieces: dict[str, Shapes] = field(default_factory=dict)
    unused: defaultdict[str, Shapes] = field(default_factory=lambda: defaultdict(dict))


def config_of(entries: Entries, format: str) -> BackboneConfig:
    """Return the settings of the backbone in a file.

    Raises UserError if the entries that tell them are lacking, or no network of this format has
    them.
    """
    if format == "bnext":
        return _bnext_config(entries)
    if format == "expert":
        return _expert_config(entries)
    config = BackboneConfig(width=len(_stem(entries)) / STEM_CHANNELS)
    if format != "burn-release":
        return config
    return replace(
        config,
        feature_layer="fc.0.weight" in entries.tensors,  # the option use_mlp
        activation_gradient="clip",
        weight_gradient="identity",
    )


def layout_of(entries: Entries, format: str, ours: Mapping[str, Tensor]) -> Layout:
    """Return where the entries of a backbone are in a file; `ours` are burn's, without memory.

    Of S2-BNN's entries those that are not used are dropped; UserError where one of them is lacking.
    """
    if format == "bnext":
        return _bnext_layout(ours)
    if format == "expert":
        return _expert_layout(ours)
    flat = any(name.endswith(".weights") for name in entries.tensors)
    layout = Layout(reactnet_pieces(ours, flat=flat))
    if format == "s2bnn":
        # Each of its blocks holds both kinds of 1×1 convolutions and uses one.
        used = {name for shapes in layout.pieces.values() for name in shapes}
        unused = {name for name in _both_kinds(flat=flat) if name not in used}
        if lacking := sorted(unused - entries.tensors.keys()):
            raise misfit({"lacks": [entries.theirs(name) for name in lacking]})
        entries.dropped["1×1 convolutions and BN that are not used"] = len(unused)
        for name in unused:
            del entries.tensors[name]
    return layout


def _stem(entries: Entries) -> Tensor:
    """Return the stem's weight in a file of ReActNet or BNext. Raises UserError without one."""
    name = "feature.0.conv1.weight"
    stem = entries.tensors.get(name)
    if stem is None or stem.ndim != 4:
        raise misfit({"lacks": [name], "has unknown": entries.unknown})
    return stem


def _part(rest: str, table: Mapping[str, str]) -> str:
    """Return the published name of a part of a layer, whose table has the longer names first."""
    prefix = next(prefix for prefix in table if rest == prefix or rest.startswith(f"{prefix}."))
    return table[prefix] + rest.removeprefix(prefix)


# --- ReActNet-A. ---


def reactnet_pieces(ours: Mapping[str, Tensor], *, flat: bool) -> dict[str, Shapes]:
    """Map each of burn's entries to the published one with its shape, or to its two halves."""
    published: dict[str, Shapes] = {}
    for name, tensor in ours.items():
        block, rest, prefix = "", name, "feature.0."
        if name.startswith("blocks."):
            _, block, rest = name.split(".", 2)
            prefix = f"feature.{int(block) + 1}."
        module, _, leaf = _REACTNET.get(rest, rest).rpartition(".")
        module = _REACTNET.get(module, module)
        prefix = "" if module == "fc.0" else prefix
        modules: tuple[str, ...] = (module,)
        if module in _HALVES:
            out_channels, in_channels = ours[f"blocks.{block}.pointwise.weight"].shape[:2]
            modules = _HALVES[module] if out_channels > in_channels else modules
        shape = (len(tensor) // len(modules), *tensor.shape[1:]) if tensor.ndim else ()
        if module.startswith("move"):
            shape = (1, *shape, 1, 1)
        elif flat and module.startswith("binary"):
            leaf, shape = "weights", (math.prod(shape), 1)
        published[name] = {f"{prefix}{m}.{leaf}": shape for m in modules}
    return published


def _both_kinds(*, flat: bool) -> Iterator[str]:
    """Yield the names of all 1×1 convolutions and their BN in S2-BNN's files, used or not.

    Each of its blocks has one 1×1 convolution of full width and two halves.
    """
    leaves = {"binary_pw": ["weights" if flat else "weight"], "bn2": NORM}
    for block in range(1, 14):
        for module, halves in _HALVES.items():
            for kind in (module, *halves):
                yield from (f"feature.{block}.{kind}.{leaf}" for leaf in leaves[module])


# --- BNext. ---


def _bnext_config(entries: Entries) -> BackboneConfig:
    """Return the settings of the network, by the stem's channels and the number of blocks."""
    tensors, stem = entries.tensors, _stem(entries)
    blocks = len({n.split(".")[1] for n in tensors if n.startswith("feature.")}) - 1
    fitting = [name for name in BNEXT if num_blocks(name) == blocks]
    if not fitting:
        raise UserError(f"it has {blocks} blocks, which no BNext has")
    # bnext_s is a bnext_t of width 1.5; a network is given the name at which its width is 1.
    exact = [name for name in fitting if stem_channels(name) == len(stem)]
    chosen = (exact or fitting)[0]
    head = tensors.get("classifier.weight")
    other_classes = head is not None and head.ndim == 2 and len(head) != _IMAGENET_CLASSES
    return BackboneConfig(
        name=chosen,
        width=len(stem) / stem_channels(chosen),
        # The code takes stride 1 for small images, which it knows by their number of classes.
        stem_stride=1 if other_classes else None,
        activation_gradient="clip",
        weight_gradient="identity",
    )


def _bnext_layout(ours: Mapping[str, Tensor]) -> Layout:
    layout = Layout()
    stem = len(ours["stem.weight"])
    layout.unused[_UNUSED]["feature.0.prelu.weight"] = (stem,)
    for name, tensor in ours.items():
        shape = tuple(tensor.shape)
        if not name.startswith("blocks."):
            part, leaf = name.rsplit(".", 1)
            layout.pieces[name] = {f"{_BNEXT_ENDS[part]}.{leaf}": shape}
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
        layout.pieces[name] = {prefix + part: shape}
        if rest == "norm.weight":
            # Once for each layer; its shape is that of the channels.
            for module_name in ("binary_activation", "binary_conv"):
                layout.unused["temperatures"][f"{prefix}{module_name}.temperature"] = (1,)
            if f"{name.removesuffix(rest)}shortcut_activation.weight" not in ours:
                layout.unused[_UNUSED][f"{prefix}activation1.weight"] = shape
    return layout


def bnext_notes(tensors: Mapping[str, Tensor], config: BackboneConfig) -> tuple[str, ...]:
    """Return remarks on a network of BNext. Raises UserError if its weights are not binary yet."""
    notes: list[str] = []
    if config.stem_stride == 1:
        notes.append("the stem has stride 1, as its code takes it for other than 1000 classes")
    outside = sum(
        int(((tensor < 0) | (tensor > 1)).sum())
        for name, tensor in tensors.items()
        if name.endswith(".scale")
    )
    if outside:
        notes.append(f"{outside} shares of mixtures outside [0, 1] are cut off there, as it trains")
    soft = weights = 0
    for name, temperature in tensors.items():
        if name.endswith(".binary_conv.temperature"):
            weight = tensors[name.replace("temperature", "weight")]
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
    tensors, names = entries.tensors, ("conv3.0.weight", "layer1.0.conv1.weight")
    stem, experts = (tensors.get(name) for name in names)
    if stem is None or stem.ndim != 4 or experts is None or experts.ndim != 5:
        raise misfit({"lacks": list(names), "has unknown": entries.unknown})
    return BackboneConfig(
        name=EXPERT,
        width=len(stem) / EXPERT_STEM_CHANNELS,
        experts=len(experts),
        activation_gradient="clip",
    )


def _expert_layout(ours: Mapping[str, Tensor]) -> Layout:
    layout = Layout()
    experts = len(ours["stages.0.0.layers.0.convolution.weight"])
    for name, tensor in ours.items():
        shape = tuple(tensor.shape)
        if name.startswith("stem."):
            _, part, rest = name.split(".", 2)
            layout.pieces[name] = {f"{_EXPERT_STEM[part]}.{rest}": shape}
            continue
        _, stage, block, kind, rest = name.split(".", 4)
        prefix = f"layer{int(stage) + 1}.{block}."
        if kind == "layers":
            number, rest = rest.split(".", 1)
            part = _part(rest, _EXPERT_LAYER).format(int(number) + 1)
            shape = (1, *shape, 1, 1) if rest.endswith("scale") else shape
            layout.pieces[name] = {prefix + part: shape}
            continue
        theirs = f"{prefix}downsample.{rest}"
        if tensor.ndim != 4:
            layout.pieces[name] = {theirs: shape}
            continue
        # A float convolution is written as an expert convolution that takes the first expert.
        module = theirs.removesuffix(".weight")
        factor = (1, shape[0], 1, 1)
        layout.pieces[name] = {theirs: (experts, *shape), f"{module}.alpha2": factor}
        what = "choices of experts in float convolutions, which take the first"
        layout.unused[what][f"{module}.fc.weight"] = (experts, shape[1])
        layout.unused[what][f"{module}.fc.bias"] = (experts,)
    return layout
