"""Published checkpoints of binary networks become ours, and ours go back to ReActNet's format.

All are ReActNet-A under other names. Where a block doubles the width they have two 1×1 convolutions
with a BN each and concatenate the outputs; ours has one with the channels of both. The function is
theirs but where the argument of a sign is exactly 0: they have 0 there, we +1.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from burn.backbones import Backbone, BackboneConfig, build_backbone
from burn.backbones.reactnet import ReActNet
from burn.checkpoint import load_checkpoint, save_checkpoint, take
from burn.data.views import ViewConfig
from burn.errors import UserError, printable
from burn.files import require_free, write_beside
from burn.targets.weights import backbone_from, read_weights
from burn.types import Precision

Format = Literal["reactnet", "burn-release", "s2bnn"]
FORMATS: tuple[str, ...] = get_args(Format)

Shapes = dict[str, tuple[int, ...]]

_PRECISIONS = {1: Precision.BINARY_ACTIVATIONS, 2: Precision.BINARY}  # by stage
_STEM_CHANNELS = 32

# How a file's names begin, without the words `state_dict` and `module`, and how they do below;
# None: dropped. What ends in no dot is a whole name.
_PARTS: dict[str, dict[str, str | None]] = {
    "reactnet": {"feature.": "feature.", "fc.": "classifier."},
    "burn-release": {
        **{w + p: p for w in ("", "backbone.", "online_net.0.") for p in ("feature.", "fc.")},
        **dict.fromkeys(("classifier.", "online_net.1."), "classifier."),
        **dict.fromkeys(("teacher_classifier.", "diff_branch_net.1."), "teacher_classifier."),
        "diff_branch_net.0.": None,  # the float teacher
    },
    "s2bnn": {
        "encoder_q.feature.": "feature.",
        "encoder_q.fc.": "head.",
        **dict.fromkeys(("encoder_k.", "queue", "queue_ptr"), None),
    },
}

# Layers of the parts beside the backbone, with True for BN. Of several heads, the one found is it.
_LINEAR = {"": False}
_PROJECTION = {"0.": False, "2.": False}
_MLP = {"0.": False, "1.": True, "3.": False}
_HEADS = {
    "reactnet": {"classifier.": (_LINEAR,)},
    "burn-release": {"classifier.": (_MLP,), "teacher_classifier.": (_MLP,)},
    "s2bnn": {"head.": (_PROJECTION, _LINEAR)},  # the latter without its option --mlp
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
# S2-BNN's blocks carry both kinds of 1×1 convolutions and use one.
_EITHER_KIND = re.compile(
    r"feature\.([1-9]|1[0-3])\."
    rf"(binary_pw(_down[12])?\.weights?|bn2(_[12])?\.({'|'.join(_NORM)}))"
)


@dataclass(frozen=True)
class Imported:
    """What an import read.

    parameters: of the backbone. heads: what was kept beside it, with its number of parameters.
    dropped: what the file holds besides, with its number of entries. notes: what else to know.
    """

    format: str
    stage: int
    precision: Precision
    width: float
    parameters: int
    heads: Mapping[str, int]
    dropped: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    entries: in the file. parameters: of the network, with its `fc` if any. left_out: parts of the
    checkpoint that the format has no place for. notes: what else to know.
    """

    format: str
    precision: Precision
    entries: int
    parameters: int
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def import_checkpoint(file: Path, format: str, out: Path, stage: int | None = None) -> Imported:
    """Write the published checkpoint `file` as one of ours, `out` (.safetensors, not there yet).

    stage: 1 (binary activations) or 2 (binary weights too). Flat weights are of stage 2; 4-D ones
    are of stage 1 in ReActNet's files, and of either in the others': there 2 is the default.
    Raises UserError, and writes nothing, unless every entry of the file has its place or a reason
    to be dropped, and none is lacking.
    """
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}: {', '.join(FORMATS)}")
    if stage not in (None, *_PRECISIONS):
        raise UserError(f"stage {stage}: 1 (binary activations) or 2 (binary weights too)")
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: a checkpoint's name ends in .safetensors")
    require_free(out, out.with_suffix(".json"))
    if not file.is_file():
        raise UserError(f"no file at {file}")
    content = read_weights(file)
    if not isinstance(content, Mapping):
        raise UserError(f"{file} holds a {type(content).__name__}, not a dict of weights")
    try:
        weights, config, imported = _translate(content, format, stage)
    except UserError as error:
        message = f"{file} cannot be imported as {format}: {error}"
        for other in (f for f in FORMATS if f != format):
            with suppress(UserError):
                _translate(content, other, None)
                message = f"{file} is of format {other}, not {format}: give --format {other}"
        raise UserError(message) from error
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    meta = {
        "stage": imported.stage,
        "num_stages": len(_PRECISIONS),
        "precision": imported.precision.value,
        "steps": 0,
        "seed": None,
        "backbone": asdict(config),
        "views": asdict(ViewConfig()),
        "recipe": {"name": f"imported {format}"},
        "source": {"format": format, "file": file.name, "sha256": digest},
    }
    save_checkpoint(out, weights, meta)
    return imported


def export_checkpoint(checkpoint: Path, out: Path, format: str) -> Exported:
    """Write a checkpoint of ours as the torch file `out` (not there yet), for ReActNet's code.

    A linear classifier becomes `fc`. Raises UserError, and writes nothing, for a network that
    ReActNet's code cannot build.
    """
    if format != "reactnet":
        raise UserError(f"cannot export to {format!r}: reactnet is the only format")
    if out.suffix == ".safetensors":
        raise UserError(f"{out}: the format is a torch file, name it .pth or .pth.tar")
    require_free(out)
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
        notes.append("the checkpoint has no linear classifier, the file no fc")
    if (config.mean, config.std) != (BackboneConfig.mean, BackboneConfig.std):
        notes.append(f"images are to be normalised by mean {config.mean} and std {config.std}")
    state = {f"module.{name}": tensor for name, tensor in theirs.items()}
    try:
        write_beside(out, lambda beside: torch.save({"state_dict": state}, beside))
    except (OSError, RuntimeError) as error:  # torch has its own words for a full disk
        raise UserError(f"{out} cannot be written: {error}") from error
    left = tuple(sorted(left_out))
    return Exported(format, precision, len(state), parameters, left, tuple(notes))


def _unpublished(backbone: Backbone) -> str | None:
    """Why ReActNet's code cannot build this network, if it cannot."""
    config = backbone.config
    if not isinstance(backbone, ReActNet):
        return f"it is a {config.name}, not a reactnet_a"
    if backbone.precision == Precision.FLOAT:
        return "its precision is float; both steps of ReActNet have binary activations"
    if config.feature_layer:
        return "it has a feature layer (Linear and ReLU after pooling)"
    strides = (config.stem_stride or 2, *config.stage_strides)
    if strides != (2,) * 5:
        return f"its strides (stem, then stages) are {list(strides)}, and not all 2"
    published = _described(_config_of(backbone.stem.weight)).state_dict()
    if any(published[name].shape != t.shape for name, t in backbone.state_dict().items()):
        return f"width {config.width} is too small for the stem's channels to double"
    return None


def _config_of(stem: Tensor) -> BackboneConfig:
    return BackboneConfig(width=stem.shape[0] / _STEM_CHANNELS)


def _described(config: BackboneConfig) -> Backbone:
    """Shapes without memory: what a file claims of itself costs nothing until it is checked."""
    with torch.device("meta"):
        return build_backbone(config, Precision.BINARY)


def _published(ours: Mapping[str, Tensor], *, flat: bool) -> dict[str, Shapes]:
    """For each of our entries the published one with its shape, or the two that it is cut into."""
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


def _head_shapes(
    layers: Mapping[str, bool], held: Mapping[str, Tensor], features: int | None
) -> Shapes:
    """Shapes of a head with linear layers as wide as those held, on `features` if these are known.

    layers: by name, True for BN.
    """
    shapes: Shapes = {}
    width = features
    for layer, norm in layers.items():
        if norm:
            shapes |= {f"{layer}{n}": () if n == _NORM[-1] else (width or 0,) for n in _NORM}
        else:
            weight = held.get(f"{layer}weight")
            out, given = (0, 0) if weight is None or weight.ndim != 2 else weight.shape
            shapes[f"{layer}weight"] = (out, given if width is None else width)
            shapes[f"{layer}bias"] = (out,)
            width = out
    return shapes


def _translate(
    content: Mapping[Any, Any], format: str, stage: int | None
) -> tuple[dict[str, Tensor], BackboneConfig, Imported]:
    """Weights by our names, the network they are of, and the summary."""
    found, dropped, unknown = _sort(content, _PARTS[format])
    stem = found.get(_STEM)
    if stem is None or stem.ndim != 4:
        raise _misfit({"lacks": [_STEM], "has unknown": unknown})
    flat = any(name.endswith(".weights") for name in found)
    if flat and stage == 1:
        raise UserError("its weights are flat, which is stage 2, not 1")
    notes = []
    if not flat and stage is None and format != "reactnet":
        notes.append("the file does not tell its stage: 2, fully binary, is assumed")
    stage = stage or (1 if format == "reactnet" and not flat else 2)
    config = _config_of(stem)
    if format == "burn-release":
        config = replace(
            config, feature_layer=True, activation_gradient="clip", weight_gradient="identity"
        )
    backbone = _described(config)
    ours = backbone.state_dict()
    published = _published(ours, flat=flat)
    shapes = {name: shape for pieces in published.values() for name, shape in pieces.items()}
    if format == "s2bnn":
        unused = {n for n in found if n not in shapes and _EITHER_KIND.fullmatch(n)}
        dropped["1×1 convolutions and BN that are not used"] = len(unused)
        found = {name: tensor for name, tensor in found.items() if name not in unused}
    heads: dict[str, int] = {}
    for part, alternatives in _HEADS[format].items():
        if held := take(found, part):
            layers = next((a for a in alternatives if f"{min(a)}weight" in held), alternatives[0])
            features = None if part == "teacher_classifier." else backbone.num_features
            head = _head_shapes(layers, held, features)
            shapes |= {part + name: shape for name, shape in head.items()}
            learned = (s for n, s in head.items() if n.endswith(("weight", "bias")))
            heads[part.removesuffix(".")] = sum(map(math.prod, learned))
    _check(found, shapes, unknown, _PARTS[format])
    weights = {n: t.clone() for n, t in found.items() if n.startswith(tuple(_HEADS[format]))}
    for name, pieces in published.items():
        joined = torch.cat([found[n].flatten() for n in pieces])
        like = ours[name]  # of a BN's two counts of batches, which agree, the first is taken
        weights[f"backbone.{name}"] = joined[: like.numel()].reshape(like.shape)
    weights = {n: t.float() if t.is_floating_point() else t for n, t in weights.items()}
    signed = [t for n, t in weights.items() if n.endswith(("spatial.weight", "pointwise.weight"))]
    if stage == 2 and (zeros := sum(int((weight == 0).sum()) for weight in signed)):
        notes.append(f"{zeros} binary weights are exactly 0, of sign 0 there and +1 here")
    parameters = sum(p.numel() for p in backbone.parameters())
    precision = _PRECISIONS[stage]
    imported = Imported(
        format, stage, precision, config.width, parameters, heads, dropped, tuple(notes)
    )
    return weights, config, imported


def _sort(
    content: Mapping[Any, Any], parts: Mapping[str, str | None]
) -> tuple[dict[str, Tensor], dict[str, int], list[str]]:
    """Tensors by the names of `parts`, the number dropped by reason, and the paths of the rest."""
    found: dict[str, Tensor] = {}
    dropped: Counter[str] = Counter()
    unknown = []
    for path, value in _flatten(content):
        if not isinstance(value, Tensor):  # an epoch, an optimizer's state
            dropped[printable(path.partition(".")[0])] += 1
            continue
        name = ".".join(word for word in path.split(".") if word not in ("state_dict", "module"))
        part = next((p for p in parts if name == p or (p[-1] == "." and name.startswith(p))), None)
        place = None if part is None else parts[part]
        if part is not None and place is None:
            dropped[part.removesuffix(".")] += 1
        elif part is None or place is None or place + name.removeprefix(part) in found:
            unknown.append(path)  # the last: a second one for the same place
        else:
            found[place + name.removeprefix(part)] = value
    return found, dict(dropped), unknown


def _flatten(content: Mapping[Any, Any], depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Entries by dotted path; no format has its weights more than three dicts deep."""
    for key, value in content.items():
        if isinstance(value, Mapping) and depth > 1:
            yield from ((f"{key}.{path}", leaf) for path, leaf in _flatten(value, depth - 1))
        else:
            yield str(key), value


def _check(
    found: Mapping[str, Tensor],
    shapes: Shapes,
    unknown: Sequence[str],
    parts: Mapping[str, str | None],
) -> None:
    """Raise UserError unless `found` are just these names, of these shapes, and finite."""

    def original(name: str) -> str:
        there, here = next((k, v) for k, v in parts.items() if v and name.startswith(v))
        return there + name.removeprefix(here)

    expected = {name: tensor for name, tensor in found.items() if name in shapes}
    shape = [
        f"{original(name)} {tuple(tensor.shape)} instead of {shapes[name]}"
        for name, tensor in expected.items()
        if tensor.shape != shapes[name]
    ]
    kind = [
        f"{original(name)} as {tensor.dtype}, {tensor.layout} on {tensor.device}"
        for name, tensor in expected.items()
        if tensor.layout != torch.strided
        or tensor.device.type != "cpu"
        or tensor.is_floating_point() == name.endswith(_NORM[-1])
        or tensor.is_complex()
        or tensor.is_quantized
    ]
    problems = {
        "lacks": [original(name) for name in shapes if name not in found],
        "has unknown": [*unknown, *(original(name) for name in found if name not in shapes)],
        "has": shape or kind,
    }
    if not any(problems.values()):
        problems["has numbers not finite in"] = [
            original(name)
            for name, tensor in expected.items()
            if not bool(tensor.float().isfinite().all())
        ]
        problems["has negative variances in"] = [
            original(name)
            for name, tensor in expected.items()
            if name.endswith("running_var") and bool((tensor < 0).any())
        ]
    if any(problems.values()):
        raise _misfit(problems)


def _misfit(problems: Mapping[str, Sequence[str]]) -> UserError:
    texts = []
    for words, names in problems.items():
        if names:
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            first = ", ".join(printable(name[:100]) for name in names[:10])
            texts.append(f"it {words} {first}{more}")
    return UserError("; ".join(texts))
