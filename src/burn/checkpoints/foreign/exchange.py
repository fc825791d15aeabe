"""Import of published checkpoints of binary networks, and export to ReActNet's format.

BNext and the expert network are read by `families.py`. All others are ReActNet-A under other names.
Where a block doubles the width, they have two 1×1
convolutions with a BN each and concatenate the outputs; burn has one convolution with the channels
of both. The functions differ only where the argument of a sign is exactly 0: the published networks
have 0 there, burn +1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.entries import REACTNET
from burn.backbones.plan import REACTNETS, STEM_CHANNELS
from burn.backbones.reactnet import ReActNet
from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.entries import Shapes, check_entries, misfit, sort_entries
from burn.checkpoints.foreign.families import FAMILIES, Family, read_family
from burn.checkpoints.foreign.named import FORMATS, check_export, check_import
from burn.checkpoints.foreign.weights import backbone_from, read_weights
from burn.checkpoints.native import load_checkpoint, save_checkpoint, take
from burn.core.errors import UserError
from burn.core.files import write_beside
from burn.core.inputs import sha256_of
from burn.core.types import Precision
from burn.data.view_config import ViewConfig

_PRECISIONS = {1: Precision.BINARY_ACTIVATIONS, 2: Precision.BINARY}  # by stage

# Prefixes of names in a file (without the words `state_dict` and `module`), and what replaces them
# here; None drops the entry. The first prefix that fits counts. One without a dot at its end is a
# whole name.
_NECK = {"fc0.": "0.", "bn0.": "1.", "fc1.": "3.", "bn1.": "4.", "": ""}  # NonLinearNeckSimCLR
_PARTS: dict[str, dict[str, str | None]] = {
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
}
# Layers of the parts beside the backbone, with True for BN. The names in a file tell which of the
# alternatives it has.
_LINEAR = {"": False}
_PROJECTION = {"0.": False, "2.": False}
_MLP = {"0.": False, "1.": True, "3.": False}
_MLP_NORM = {**_MLP, "4.": True}  # the class's default, with_last_bn
_HEADS = {
    "reactnet": {"classifier.": (_LINEAR,)},
    "burn-release": {
        "classifier.": (_MLP, _MLP_NORM, _LINEAR),
        "teacher_classifier.": (_MLP, _MLP_NORM),
    },
    "s2bnn": {  # without its option --mlp, the projection is one layer
        "head.": (_PROJECTION, _LINEAR),
        "classifier.": (_LINEAR,),
    },
}

_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_NAMES = {  # ours -> theirs
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
_STEM = "feature.0.conv1.weight"


@dataclass(frozen=True)
class Imported:
    """Summary of an import.

    Attributes:
        format: Format of the file.
        backbone: Name of the network in burn.
        stage: 1 (binary activations) or 2 (binary weights too).
        precision: Precision of that stage.
        width: Factor of the number of channels.
        parameters: Number of parameters of the backbone.
        heads: Parts that were kept beside the backbone, with their numbers of parameters.
        dropped: Parts that were dropped, with their numbers of entries.
        notes: Remarks for the user.
    """

    format: str
    backbone: str
    stage: int
    precision: Precision
    width: float
    parameters: int
    heads: Mapping[str, int]
    dropped: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Exported:
    """Summary of an export.

    Attributes:
        format: Format of the file.
        precision: Precision of the network.
        entries: Number of entries in the file.
        parameters: Number of parameters of the network, with its `fc` if any.
        left_out: Parts of the checkpoint that the format has no place for.
        notes: Remarks for the user.
    """

    format: str
    precision: Precision
    entries: int
    parameters: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def import_checkpoint(file: Path, format: str, out: Path, stage: int | None = None) -> Imported:
    """Write a published checkpoint as a checkpoint of burn's.

    Args:
        file: The published checkpoint.
        format: One of `FORMATS`.
        out: The new checkpoint (.safetensors), which must not exist yet.
        stage: 1 (binary activations) or 2 (binary weights too). None where the file tells it: flat
            weights belong to stage 2, and 4-D weights to stage 1 in ReActNet's files, which have a
            classifier; files of BNext and of the expert network are of stage 2. Otherwise the
            function of the network depends on it, and it must be given.

    Raises:
        UserError: An entry of the file has neither a place nor a reason to be dropped, one is
            lacking, or the stage is unknown or contradicts the file. Nothing is written then.
    """
    check_import(file, format, out, stage)
    content = read_weights(file)
    if not isinstance(content, Mapping):
        raise UserError(f"{file} holds a {type(content).__name__}, not a dict of weights")
    try:
        read = _read_any(content, format)
    except UserError as error:
        fitting = [other for other in FORMATS if _fits(content, other)]
        if not fitting:
            raise UserError(f"{file} cannot be imported as {format}: {error}") from error
        raise UserError(
            f"{file} is of format {' or '.join(fitting)}, not {format}: give --format {fitting[0]}"
        ) from error
    try:
        if isinstance(read, Family):
            weights, imported = _of_family(read, stage)
        else:
            weights, imported = _translate(read, _stage(read, stage))
    except UserError as error:
        raise UserError(f"{file} cannot be imported as {format}: {error}") from error
    meta = {
        "stage": imported.stage,
        "num_stages": len(_PRECISIONS),
        "precision": imported.precision.value,
        "steps": 0,
        "seed": None,
        "backbone": asdict(read.config),
        "views": asdict(ViewConfig()),
        "recipe": {"name": f"imported {format}"},
        "source": {"format": format, "file": file.name, "sha256": sha256_of(file)},
    }
    save_checkpoint(out, weights, meta, new=True)
    return imported


def export_checkpoint(checkpoint: Path, out: Path, format: str) -> Exported:
    """Write a checkpoint of burn's as a torch file for ReActNet's code.

    A linear classifier becomes `fc`.

    Args:
        checkpoint: The checkpoint, or the folder of a run.
        out: The torch file, which must not exist yet.
        format: reactnet, the only format.

    Raises:
        UserError: ReActNet's code cannot build the network, or the file cannot be written. Nothing
            is written then.
    """
    check_export(checkpoint, out, format)
    held = load_checkpoint(checkpoint)
    backbone = backbone_from(held)
    if problem := _unpublished(backbone):
        raise UserError(f"{held.origin} cannot be exported to {format}: {problem}")
    precision = Precision(held.meta["precision"])
    config, ours = backbone.config, backbone.state_dict()
    theirs: dict[str, Tensor] = {}
    for name, shapes in _published(ours, flat=precision == Precision.BINARY).items():
        whole = ours[name].flatten().repeat(1 if ours[name].ndim else len(shapes))
        for (their, shape), piece in zip(shapes.items(), whole.chunk(len(shapes)), strict=True):
            theirs[their] = piece.reshape(shape).clone()
    parameters = sum(p.numel() for p in backbone.parameters())
    left_out = {name.partition(".")[0] for name in held.weights} - {"backbone"}
    head = take(held.weights, "classifier.")
    notes = []
    if {n: t.shape for n, t in head.items()} == _head_shapes(_LINEAR, head, backbone.num_features):
        theirs |= {f"fc.{name}": tensor for name, tensor in head.items()}
        parameters += sum(tensor.numel() for tensor in head.values())
        left_out.remove("classifier")
    else:
        notes.append("the checkpoint has no linear classifier, so the file has no fc")
    if (config.mean, config.std) != (BackboneConfig.mean, BackboneConfig.std):
        notes.append(f"images must be normalized by mean {config.mean} and std {config.std}")
    state = {f"module.{name}": tensor for name, tensor in theirs.items()}
    try:
        write_beside(out, lambda beside: torch.save({"state_dict": state}, beside), new=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from error
    left = tuple(sorted(left_out))
    return Exported(format, precision, len(state), parameters, left, tuple(notes))


def _unpublished(backbone: Backbone) -> str | None:
    """Return why ReActNet's code cannot build this network, or None if it can."""
    config = backbone.config
    if not isinstance(backbone, ReActNet):
        return f"it is a {config.name}, not a reactnet_a"
    if backbone.precision == Precision.FLOAT:
        return "its precision is float; both steps of ReActNet have binary activations"
    if config.feature_layer:
        return "it has a feature layer (Linear and ReLU after pooling)"
    if config.feature_norm:
        return "its features are normalized (feature_norm)"
    strides = (config.stem_stride or 2, *config.stage_strides)
    if strides != (2,) * 5:
        return f"its strides (stem, then stages) are {list(strides)}, and not all 2"
    depths, theirs = config.depths or REACTNETS[config.name].depths, REACTNETS[REACTNET].depths
    if depths != theirs:
        return f"its stages have {list(depths)} blocks, and not reactnet_a's {list(theirs)}"
    published = _described(_config_of(backbone.stem.weight)).state_dict()
    if any(published[name].shape != t.shape for name, t in backbone.state_dict().items()):
        return f"width {config.width} is too small for the stem's channels to double"
    return None


def _config_of(stem: Tensor) -> BackboneConfig:
    return BackboneConfig(width=stem.shape[0] / STEM_CHANNELS)


def _described(config: BackboneConfig) -> Backbone:
    """Build a network without memory, so that a false claim of a file costs nothing."""
    with torch.device("meta"):
        return build_backbone(config, Precision.BINARY)


def _published(ours: Mapping[str, Tensor], *, flat: bool) -> dict[str, Shapes]:
    """Map each of burn's entries to the published one with its shape, or to its two halves."""
    published: dict[str, Shapes] = {}
    for name, tensor in ours.items():
        block, rest, prefix = "", name, "feature.0."
        if name.startswith("blocks."):
            _, block, rest = name.split(".", 2)
            prefix = f"feature.{int(block) + 1}."
        module, _, leaf = _NAMES.get(rest, rest).rpartition(".")
        module = _NAMES.get(module, module)
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
    leaves = {"binary_pw": ["weights" if flat else "weight"], "bn2": _NORM}
    for block in range(1, 14):
        for module, halves in _HALVES.items():
            for kind in (module, *halves):
                yield from (f"feature.{block}.{kind}.{leaf}" for leaf in leaves[module])


def _head_shapes(
    layers: Mapping[str, bool], held: Mapping[str, Tensor], features: int | None
) -> Shapes:
    """Return the shapes of a head whose linear layers are as wide as those in the file.

    An MLP may have linear layers without bias, if all have none.

    Args:
        layers: True for BN, by name of the layer.
        held: The head's tensors in the file.
        features: Input width of the head, or None if it is unknown.
    """
    linear = [layer for layer, norm in layers.items() if not norm]
    biased = len(layers) == 1 or any(f"{layer}bias" in held for layer in linear)
    shapes: Shapes = {}
    width = features
    for layer, norm in layers.items():
        if norm:
            shapes |= {f"{layer}{n}": () if n == _NORM[-1] else (width or 0,) for n in _NORM}
        else:
            weight = held.get(f"{layer}weight")
            out, given = (0, 0) if weight is None or weight.ndim != 2 else weight.shape
            shapes[f"{layer}weight"] = (out, given if width is None else width)
            if biased:
                shapes[f"{layer}bias"] = (out,)
            width = out
    return shapes


def _layers(
    alternatives: Sequence[Mapping[str, bool]], held: Mapping[str, Tensor]
) -> Mapping[str, bool]:
    """Return the head of which most layers are in the file; of several, the smallest."""
    return max(alternatives, key=lambda a: (sum(f"{n}weight" in held for n in a), -len(a)))


@dataclass(frozen=True)
class _Read:
    """Published network by the names of this module, every entry of which was checked.

    Attributes:
        found: Tensors by name.
        published: For each of burn's entries, its pieces in `found`.
        ours: burn's entries, without memory.
        flat: Whether binary weights are flat.
    """

    format: str
    config: BackboneConfig
    found: Mapping[str, Tensor]
    published: Mapping[str, Shapes]
    ours: Mapping[str, Tensor]
    flat: bool
    heads: Mapping[str, int]
    dropped: Mapping[str, int]
    notes: tuple[str, ...]
    parameters: int


def _read(content: Mapping[Any, Any], format: str) -> _Read:
    """Read a published network. Raises UserError for content that is anything more or less."""
    entries = sort_entries(content, _PARTS[format])
    found, dropped = entries.found, entries.dropped
    stem = found.get(_STEM)
    if stem is None or stem.ndim != 4:
        raise misfit({"lacks": [_STEM], "has unknown": entries.unknown})
    flat = any(name.endswith(".weights") for name in found)
    config = _config_of(stem)
    if format == "burn-release":
        config = replace(
            config,
            feature_layer="fc.0.weight" in found,  # the option use_mlp
            activation_gradient="clip",
            weight_gradient="identity",
        )
    backbone = _described(config)
    ours = backbone.state_dict()
    published = _published(ours, flat=flat)
    shapes = {name: shape for pieces in published.values() for name, shape in pieces.items()}
    if format == "s2bnn":
        # Each of its blocks holds both kinds of 1×1 convolutions and uses one.
        unused = {name for name in _both_kinds(flat=flat) if name not in shapes}
        if lacking := sorted(unused - found.keys()):
            raise misfit({"lacks": [entries.theirs(name) for name in lacking]})
        dropped["1×1 convolutions and BN that are not used"] = len(unused)
        found = {name: tensor for name, tensor in found.items() if name not in unused}
    heads: dict[str, int] = {}
    for part, alternatives in _HEADS[format].items():
        if held := take(found, part):
            features = None if part == "teacher_classifier." else backbone.num_features
            head = _head_shapes(_layers(alternatives, held), held, features)
            shapes |= {part + name: shape for name, shape in head.items()}
            learned = (s for n, s in head.items() if n.endswith(("weight", "bias")))
            heads[part.removesuffix(".")] = sum(map(math.prod, learned))
    check_entries(found, shapes, entries)
    parameters = sum(p.numel() for p in backbone.parameters())
    return _Read(
        format, config, found, published, ours, flat, heads, dropped, entries.notes, parameters
    )


def _read_any(content: Mapping[Any, Any], format: str) -> _Read | Family:
    """Read a network of any format. Raises UserError as `_read` does."""
    return read_family(content, format) if format in FAMILIES else _read(content, format)


def _of_family(read: Family, stage: int | None) -> tuple[dict[str, Tensor], Imported]:
    """Return a network's weights and the summary. Raises UserError for another stage than 2."""
    if stage not in (None, 2):
        raise UserError(f"its weights are binary, which is stage 2, not {stage}")
    return dict(read.weights), _summary(read, 2, read.notes)


def _summary(read: _Read | Family, stage: int, notes: tuple[str, ...]) -> Imported:
    return Imported(
        format=read.format,
        backbone=read.config.name,
        stage=stage,
        precision=_PRECISIONS[stage],
        width=read.config.width,
        parameters=read.parameters,
        heads=read.heads,
        dropped=read.dropped,
        notes=notes,
    )


def _fits(content: Mapping[Any, Any], format: str) -> bool:
    try:
        _read_any(content, format)
    except UserError:
        return False
    return True


def _stage(read: _Read, given: int | None) -> int:
    """Return the stage that the file tells, or the given one where it tells none.

    In ReActNet's format 4-D weights belong to stage 1. But a file without a classifier may be one
    of BURN's with the class's default use_mlp=False, of either stage, which has the same names and
    shapes: such a file does not tell the stage. Raises UserError where the two stages differ, and
    where there is neither.
    """
    if read.flat:
        told, shape = 2, "flat"
    elif read.format == "reactnet":
        told, shape = 1, "4-D"
    else:
        told, shape = None, ""
    if told is not None and given not in (None, told):
        hint = "" if read.flat or read.heads else "; for a file of BURN give --format burn-release"
        raise UserError(f"its weights are {shape}, which is stage {told}, not {given}{hint}")
    certain = told is not None and (read.flat or bool(read.heads))
    if certain or given is not None:
        return told or given or 0
    if read.format == "reactnet":
        raise UserError(
            "without a classifier it may be of ReActNet's step 1 (give --stage 1), or of BURN "
            "(give --format burn-release and the stage)"
        )
    raise UserError(
        "the file does not tell its stage: give --stage 1 (only activations are binary) or "
        "--stage 2 (weights too)"
    )


def _translate(read: _Read, stage: int) -> tuple[dict[str, Tensor], Imported]:
    """Return the weights by burn's names, and the summary."""
    heads = tuple(_HEADS[read.format])
    weights = {n: t.clone() for n, t in read.found.items() if n.startswith(heads)}
    for name, pieces in read.published.items():
        joined = torch.cat([read.found[n].flatten() for n in pieces])
        like = read.ours[name]  # of the equal num_batches_tracked of two BNs, it takes the first
        weights[f"backbone.{name}"] = joined[: like.numel()].reshape(like.shape)
    weights = {n: t.float() if t.is_floating_point() else t for n, t in weights.items()}
    signed = [t for n, t in weights.items() if n.endswith(("spatial.weight", "pointwise.weight"))]
    notes = read.notes
    if stage == 2 and (zeros := sum(int((weight == 0).sum()) for weight in signed)):
        notes += (f"{zeros} binary weights are exactly 0, whose sign is 0 there and +1 in burn",)
    return weights, _summary(read, stage, notes)
