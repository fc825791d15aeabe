"""Import of published checkpoints of binary networks, and export to ReActNet's format.

BNext and the expert network convolve with sign(W), burn with sign(W) · mean|W|. The weights of each
output channel are therefore divided by their mean|W|, which changes no sign. The functions of all
published networks differ from burn's only where the argument of a sign is exactly 0: they have 0
there, burn +1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from burn.backbones.registry import describe_backbone
from burn.checkpoints.foreign.entries import Shapes, check_entries, sort_entries
from burn.checkpoints.foreign.families import (
    NORM,
    PARTS,
    bnext_notes,
    config_of,
    layout_of,
    reactnet_pieces,
)
from burn.checkpoints.foreign.named import FORMATS, check_export, check_import
from burn.checkpoints.foreign.weights import backbone_from, read_weights
from burn.checkpoints.native import load_checkpoint, save_checkpoint, take
from burn.core.errors import UserError
from burn.core.files import write_beside, write_failures_named
from burn.core.inputs import sha256_of
from burn.core.types import Precision
from burn.data.view_config import ViewConfig

_PRECISIONS = {1: Precision.BINARY_ACTIVATIONS, 2: Precision.BINARY}  # by stage

_SIGNED = ("convolution.weight", "spatial.weight", "pointwise.weight")  # of binary layers

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
    "bnext": {"classifier.": (_LINEAR,)},
    "expert": {"classifier.": (_LINEAR,)},
}


@dataclass(frozen=True)
class Imported:
    """Published network, every entry of which was checked; its weights have burn's names.

    `kind` is what the weights in binary layers are in the file: flat, 4-D or, in those formats that
    hold networks of stage 2 alone, binary; `zeros` of them are exactly 0. `heads` are parts beside
    the backbone, with their numbers of parameters, and `dropped` others, with those of entries.
    """

    format: str
    config: BackboneConfig
    weights: dict[str, Tensor]
    kind: str
    zeros: int
    parameters: int
    heads: Mapping[str, int]
    dropped: Mapping[str, int]
    notes: tuple[str, ...]
    stage: int = 2  # 1: binary activations, 2: binary weights too

    @property
    def backbone(self) -> str:
        return self.config.name

    @property
    def precision(self) -> Precision:
        return _PRECISIONS[self.stage]


@dataclass(frozen=True)
class Exported:
    """Parts of a checkpoint that the format has no place for, and remarks for the user."""

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
        read = _read(content, format)
    except UserError as error:
        fitting = [other for other in FORMATS if _fits(content, other)]
        if not fitting:
            raise UserError(f"{file} cannot be imported as {format}: {error}") from error
        raise UserError(
            f"{file} is of format {' or '.join(fitting)}, not {format}: give --format {fitting[0]}"
        ) from error
    try:
        read = replace(read, stage=_stage(read, stage))
    except UserError as error:
        raise UserError(f"{file} cannot be imported as {format}: {error}") from error
    if read.stage == 2 and read.zeros:
        zeros = f"{read.zeros} binary weights are exactly 0, whose sign is 0 there and +1 in burn"
        read = replace(read, notes=(*read.notes, zeros))
    meta = {
        "stage": read.stage,
        "num_stages": len(_PRECISIONS),
        "precision": read.precision.value,
        "steps": 0,
        "seed": None,
        "backbone": asdict(read.config),
        "views": asdict(ViewConfig()),
        "recipe": {"name": f"imported {format}"},
        "source": {"format": format, "file": file.name, "sha256": sha256_of(file)},
    }
    save_checkpoint(out, read.weights, meta, new=True)
    return read


def export_checkpoint(checkpoint: Path, out: Path, format: str) -> Exported:
    """Write a checkpoint of burn's, or a run's, as a torch file for ReActNet's code.

    A linear classifier becomes `fc`. The format is reactnet, the only one. Raises UserError, and
    writes nothing, where ReActNet's code cannot build the network, or the file cannot be written.
    """
    check_export(checkpoint, out, format)
    held = load_checkpoint(checkpoint)
    backbone = backbone_from(held)
    if problem := _unpublished(backbone):
        raise UserError(f"{held.origin} cannot be exported to {format}: {problem}")
    config, ours = backbone.config, backbone.state_dict()
    flat = Precision(held.meta["precision"]) == Precision.BINARY
    theirs: dict[str, Tensor] = {}
    for name, shapes in reactnet_pieces(ours, flat=flat).items():
        whole = ours[name].flatten().repeat(1 if ours[name].ndim else len(shapes))
        for (their, shape), piece in zip(shapes.items(), whole.chunk(len(shapes)), strict=True):
            theirs[their] = piece.reshape(shape).clone()
    left_out = {name.partition(".")[0] for name in held.weights} - {"backbone"}
    head = take(held.weights, "classifier.")
    notes = []
    expected = _head_shapes((_LINEAR,), head, backbone.num_features)
    if {name: tensor.shape for name, tensor in head.items()} == expected:
        theirs |= {f"fc.{name}": tensor for name, tensor in head.items()}
        left_out.remove("classifier")
    else:
        notes.append("the checkpoint has no linear classifier, so the file has no fc")
    if (config.mean, config.std) != (BackboneConfig.mean, BackboneConfig.std):
        notes.append(f"images must be normalized by mean {config.mean} and std {config.std}")
    state = {f"module.{name}": tensor for name, tensor in theirs.items()}
    with write_failures_named(out):
        write_beside(out, lambda beside: torch.save({"state_dict": state}, beside), new=True)
    return Exported(tuple(sorted(left_out)), tuple(notes))


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
    config = BackboneConfig(width=backbone.stem.out_channels / STEM_CHANNELS)
    published = describe_backbone(config, Precision.BINARY).state_dict()
    if any(published[name].shape != t.shape for name, t in backbone.state_dict().items()):
        return f"width {backbone.config.width} is too small for the stem's channels to double"
    return None


def _head_shapes(
    alternatives: Sequence[Mapping[str, bool]], held: Mapping[str, Tensor], features: int | None
) -> Shapes:
    """Return the shapes of a head whose linear layers are as wide as those in the file.

    An MLP may have linear layers without bias, if all have none. Of the alternatives, whose layers
    are True for BN, it is the one of which most layers are in the file, of several the smallest.
    `features` is the head's input width, or None if it is unknown.
    """
    layers = max(alternatives, key=lambda a: (sum(f"{n}weight" in held for n in a), -len(a)))
    linear = [layer for layer, norm in layers.items() if not norm]
    biased = len(layers) == 1 or any(f"{layer}bias" in held for layer in linear)
    shapes: Shapes = {}
    width = features
    for layer, norm in layers.items():
        if norm:
            shapes |= {f"{layer}{n}": () if n == NORM[-1] else (width or 0,) for n in NORM}
        else:
            weight = held.get(f"{layer}weight")
            out, given = (0, 0) if weight is None or weight.ndim != 2 else weight.shape
            shapes[f"{layer}weight"] = (out, given if width is None else width)
            if biased:
                shapes[f"{layer}bias"] = (out,)
            width = out
    return shapes


def _read(content: Mapping[Any, Any], format: str) -> Imported:
    """Read a published network.

    Raises UserError for content that is anything more or less, and for a BNext whose weights are
    not binary yet.
    """
    entries = sort_entries(content, PARTS[format])
    config = config_of(entries, format)
    backbone = describe_backbone(config, Precision.BINARY)
    ours = backbone.state_dict()
    layout = layout_of(entries, format, ours)
    tensors = entries.tensors
    shapes: Shapes = {}
    for some in (*layout.pieces.values(), *layout.unused.values()):
        shapes |= some
    heads: dict[str, int] = {}
    of_heads: Shapes = {}
    for part, alternatives in _HEADS[format].items():
        if held := take(tensors, part):
            features = None if part == "teacher_classifier." else backbone.num_features
            head = _head_shapes(alternatives, held, features)
            of_heads |= {part + name: shape for name, shape in head.items()}
            learned = (s for n, s in head.items() if n.endswith(("weight", "bias")))
            heads[part.removesuffix(".")] = sum(map(math.prod, learned))
    check_entries(tensors, shapes | of_heads, entries)
    notes = entries.notes + (bnext_notes(tensors, config) if format == "bnext" else ())
    weights, zeros = {name: _real(tensors[name]) for name in of_heads}, 0
    for name, like in ours.items():
        pieces = [_real(tensors[theirs]) for theirs in layout.pieces[name]]
        if name.endswith(_SIGNED):
            zeros += sum(int((piece == 0).sum()) for piece in pieces)
        weights[f"backbone.{name}"] = _made_of(pieces, name, like)
    kind = "flat" if any(name.endswith(".weights") for name in shapes) else "4-D"
    return Imported(
        format=format,
        config=config,
        weights={name: tensor.clone() for name, tensor in weights.items()},
        kind="binary" if format in ("bnext", "expert") else kind,
        zeros=zeros,
        parameters=sum(p.numel() for p in backbone.parameters()),
        heads=heads,
        dropped={**entries.dropped, **{what: len(held) for what, held in layout.unused.items()}},
        notes=notes,
    )


def _real(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _made_of(pieces: Sequence[Tensor], name: str, like: Tensor) -> Tensor:
    """Return one of burn's entries, in the shape of `like`, made of its pieces in a file."""
    first = pieces[0]
    if name.endswith("convolution.weight"):  # of BNext and the expert network
        # Of an output channel's weights, or those of all experts.
        axes = (1, 2, 3) if first.ndim == 4 else (0, 2, 3, 4)
        size = first.abs().mean(dim=axes, keepdim=True)
        return (first / torch.where(size > 0, size, torch.ones_like(size))).reshape(like.shape)
    if first.ndim == 5:  # the expert network's float convolution, and a factor of each output
        return first[0] * pieces[1].view(-1, 1, 1, 1)
    # Of the equal num_batches_tracked of two BNs, the first one counts.
    return torch.cat([piece.flatten() for piece in pieces])[: like.numel()].reshape(like.shape)


def _fits(content: Mapping[Any, Any], format: str) -> bool:
    try:
        _read(content, format)
    except UserError:
        return False
    return True


def _stage(read: Imported, given: int | None) -> int:
    """Return the stage that the file tells, or the given one where it tells none.

    In ReActNet's format 4-D weights belong to stage 1. But a file without a classifier may be one
    of BURN's with the class's default use_mlp=False, of either stage, which has the same names and
    shapes: such a file does not tell the stage. Raises UserError where the two stages differ, and
    where there is neither.
    """
    stated = 2 if read.kind != "4-D" else 1 if read.format == "reactnet" else None
    if stated is not None and given not in (None, stated):
        hint = (
            "" if stated == 2 or read.heads else "; for a file of BURN give --format burn-release"
        )
        raise UserError(f"its weights are {read.kind}, which is stage {stated}, not {given}{hint}")
    if stated == 2 or (stated == 1 and read.heads):
        return stated
    if given is not None:
        return given
    if read.format == "reactnet":
        raise UserError(
            "without a classifier it may be of ReActNet's step 1 (give --stage 1), or of BURN "
            "(give --format burn-release and the stage)"
        )
    raise UserError(
        "the file does not tell its stage: give --stage 1 (only activations are binary) or "
        "--stage 2 (weights too)"
    )
