"""Backbones and teachers from checkpoints of burn's and from files of other frameworks.

Nothing in a file is executed: pickles are opened with `weights_only=True`.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BACKBONES
from burn.backbones.fit import problems
from burn.backbones.late import LateBackbone
from burn.backbones.registry import build_backbone, describe_backbone
from burn.checkpoints.foreign import lite0
from burn.checkpoints.foreign.heads import classifier_from, head_from
from burn.checkpoints.foreign.layouts import (
    CLASSIFIERS,
    SortedTensors,
    below,
    held_in,
    places_in,
    rank,
    sort,
)
from burn.checkpoints.foreign.named import own_file, split_name
from burn.checkpoints.foreign.naming import namings
from burn.checkpoints.foreign.pickled import STAND_INS
from burn.checkpoints.foreign.torch_file import check_tensors, check_torch_file, code_in, damaged
from burn.checkpoints.native import labels_behind, load_checkpoint, take
from burn.checkpoints.pretrained import names_checkpoint
from burn.core.errors import UserError, listed, printable, shortened
from burn.core.inputs import require_safetensors, sha256_of
from burn.core.paths import expand
from burn.core.plugins import require_plugins
from burn.core.settings import from_plain
from burn.core.types import Checkpoint, Precision
from burn.runtime.random_state import seeded

# A file of weights may hold a network several times (its momentum copy, an optimizer's two
# averages), and heads and queues beside it. A larger file does not belong to the network.
_COPIES = 16
_ALLOWANCE = 2 * 2**30  # bytes
_LARGEST = 16 * 2**30  # bytes, where the network is not known in advance
_MOCO3_HEADS = 12  # heads of attention, where timm's transformers of the same shapes have others


def backbone_from(checkpoint: Checkpoint, *, fresh: bool = False, seed: int = 0) -> Backbone:
    """Return the backbone of a checkpoint, at its precision, in eval mode.

    A `fresh` one gets new weights, of the random seed, instead of the checkpoint's. Raises
    UserError if the description is damaged, needs a plugin that is not loaded, or the weights do
    not fit it.
    """
    with seeded(seed):
        return _late_backbone_from(checkpoint, fresh=fresh).make()


def _late_backbone_from(checkpoint: Checkpoint, *, fresh: bool = False) -> LateBackbone:
    """Return a checkpoint's backbone, to be built later from torch's global random state."""
    origin, weights = checkpoint.origin, take(checkpoint.weights, "backbone.")
    require_plugins(checkpoint.meta.get("plugins"), "backbone", BACKBONES, origin)
    try:
        config = from_plain(BackboneConfig, checkpoint.meta["backbone"])
        precision = Precision(checkpoint.meta["precision"])
        described = describe_backbone(config, precision)
    except (KeyError, TypeError, ValueError) as error:
        reason = printable(str(error))
        raise UserError(f"{origin}: its description is damaged: {reason}") from error
    # The description decides how much memory the network takes: it is compared with the weights
    # before that memory is allocated.
    expected = described.state_dict()
    unknown = [name for name in weights if name not in expected]
    if misfit := _problems(weights, unknown, expected):
        raise UserError(f"{origin} does not fit the architecture: it {misfit}")
    if not fresh:
        _check_numbers(weights, expected, origin)

    def make() -> Backbone:
        backbone = build_backbone(config, precision)
        if not fresh:
            backbone.load_state_dict(weights, strict=False)
        return backbone.eval()

    return LateBackbone(described.eval(), make)


@dataclass(frozen=True)
class Teacher:
    """Float network to learn from, in eval mode.

    Attributes:
        network: The backbone, which a `LateBackbone` builds when it is first needed.
        head: Projection head, features (batch, d) -> embedding, or None.
        classifier: Linear layer to the class logits of a network trained with labels, or None.
        origin: Where the network came from, as plain JSON values; `labels` in it names the data
            whose labels are behind it, where that is known.
    """

    network: Backbone | LateBackbone
    head: nn.Module | None
    classifier: nn.Linear | None
    origin: dict[str, Any]

    @property
    def backbone(self) -> Backbone:
        """The network, built."""
        return self.network if isinstance(self.network, Backbone) else self.network.build()


def load_teacher(spec: str) -> Teacher:
    """Load a pretrained network with the heads that its file holds.

    Every weight of the architecture must be in the file with its shape, and no others but those
    that are known to lie beside it.

    Args:
        spec: PATH, ARCHITECTURE:FILE, hub:NAME or lite0, as `layouts.TEACHER_SYNTAX` explains.

    Raises:
        UserError: There is no such network, or its file does not fit; the message names the first
            weight that does not, and the nearest place.
    """
    source = _read(spec)
    width = source.network.num_features
    try:
        head = head_from(source.head, width) if source.head else None
    except UserError as error:
        raise UserError(f"{source.file}: its projection head cannot be read: {error}") from error
    classifier = classifier_from(source.classifier, _classifiers(source.network.described), width)
    return Teacher(source.network, head, classifier, source.origin)


def load_backbone(spec: str) -> tuple[Backbone, dict[str, Any]]:
    """Load a pretrained network in eval mode as `load_teacher` does, but without heads.

    Its origin comes with it, as plain JSON values. Raises UserError as `load_teacher`.
    """
    source = _read(spec)
    return source.network.build(), source.origin


@dataclass(frozen=True)
class _Source:
    """Backbone whose weights were read, and the state dicts of its heads."""

    network: LateBackbone
    head: Mapping[str, Tensor]
    classifier: Mapping[str, Tensor]
    file: Path
    origin: dict[str, Any]


def _read(spec: str) -> _Source:
    if names_checkpoint(spec):
        return _read_ours(str(expand(spec)))
    if spec == lite0.NAME:
        source = _read_theirs(spec, lite0.CONFIG, lite0.lite0_file())
        return replace(source, origin={**source.origin, "labels": lite0.LABELS})
    name, rest = split_name(spec)
    if name == "hub":
        return _read_theirs(spec, *_download(rest))
    config = BackboneConfig(name) if name in BACKBONES or "." not in name else _tagged(name)
    return _read_theirs(spec, config, expand(rest))


def _read_ours(spec: str) -> _Source:
    file = own_file(spec)
    checkpoint = load_checkpoint(file)
    network = _late_backbone_from(checkpoint)
    head = take(checkpoint.weights, "head.")
    classifier = {k: v for k, v in checkpoint.weights.items() if k.startswith("classifier.")}
    _check_numbers({**head, **classifier}, {}, checkpoint.origin)
    origin = _origin(spec, network.config.name, "backbone.", file)
    if labels := labels_behind(checkpoint.meta):
        origin["labels"] = labels
    return _Source(network, head, classifier, file, origin)


def _read_theirs(spec: str, config: BackboneConfig, file: Path) -> _Source:
    described = describe_backbone(config, Precision.FLOAT).eval()
    model = _weights_of(described)
    network = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    content = read_weights(file, network)
    if not isinstance(content, Mapping):
        raise UserError(f"{file} holds a {type(content).__name__}, not a dict of weights")
    fitted = _fit(content, file, model, described)
    expected = model.state_dict()
    _check_numbers({**fitted.backbone, **fitted.head, **fitted.classifier}, expected, str(file))

    def make() -> Backbone:
        backbone = build_backbone(config, Precision.FLOAT).eval()
        _weights_of(backbone).load_state_dict(fitted.backbone, strict=False)
        return backbone

    origin = _origin(spec, config.name, fitted.place, file)
    late = LateBackbone(described, make)
    return _Source(late, fitted.head, fitted.classifier, file, origin)


def _weights_of(backbone: Backbone) -> nn.Module:
    """Return the module that holds the weights by the names of the architecture's authors."""
    model = backbone if backbone.config.name in BACKBONES else backbone.model
    assert isinstance(model, nn.Module)
    return model


def _origin(spec: str, name: str, place: str, file: Path) -> dict[str, Any]:
    return {"spec": spec, "architecture": name, "place": place, "sha256": sha256_of(file)}


def _tagged(name: str) -> BackboneConfig:
    """Return the config of a timm name, with the normalization that belongs to its tag."""
    from burn.backbones.float import published  # timm is slow to import

    about = published(name)
    mean, std = cast(Any, (tuple(about.mean), tuple(about.std)))
    return BackboneConfig(name, mean=mean, std=std)


def _download(name: str) -> tuple[BackboneConfig, Path]:
    """Fetch the weights that timm publishes under a name, from the hub or its cache.

    `timm.create_model(pretrained=True)` is not used, because it loads what fits and does not report
    the rest.
    """
    import huggingface_hub

    from burn.backbones.float import published

    about = published(name)
    if not about.hf_hub_id:
        raise UserError(f"timm publishes no weights of {name}: give {name}:FILE")
    if "." not in name and about.tag:
        name = f"{name}.{about.tag}"  # timm may change its default tag
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every retry
    files = ("model.safetensors", "pytorch_model.bin")
    if about.hf_hub_filename:
        safe = Path(about.hf_hub_filename).with_suffix(".safetensors").name
        files = (safe.replace("_pytorch_", "_"), about.hf_hub_filename)
    reason = ""
    for file in files:
        try:
            fetched = Path(huggingface_hub.hf_hub_download(about.hf_hub_id, file, etag_timeout=3))
        except Exception as error:  # network, hub and disk raise many kinds
            reason = type(error).__name__
            if reason not in ("EntryNotFoundError", "RemoteEntryNotFoundError"):
                break  # the other file cannot be fetched either
        else:
            return _tagged(name), fetched
    raise UserError(
        f"hub:{name} cannot be fetched ({reason}; offline, or {about.hf_hub_id} holds neither "
        f"{files[0]} nor {files[1]}): give {name}:FILE, or a checkpoint of burn's"
    )


def read_weights(file: Path, network: int | None = None) -> Any:
    """Read a file of weights: .safetensors, or a pickle of tensors, of which nothing is executed.

    The size in bytes of the network that is expected in the file bounds the size of the file;
    without it 16 GiB are accepted. What was saved may be something else than a dict of tensors.
    Raises UserError if the file is damaged, is something else, is too large, or holds other
    objects.
    """
    limit = _LARGEST if network is None else _ALLOWANCE + _COPIES * network
    try:
        if file.suffix == ".safetensors":
            require_safetensors(file, limit)
            return load_file(file)
        check_torch_file(file, limit)
        # A Namespace holds values alone: DINO and timm keep their options in one.
        allowed = [argparse.Namespace, *((cls, name) for name, cls in STAND_INS.items())]
        with warnings.catch_warnings(), torch.serialization.safe_globals(allowed):
            warnings.simplefilter("ignore")  # torch warns of odd pickles before it refuses them
            content = torch.load(file, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        text = str(error).lower()
        if "unsupported global" in text or "unsupported class" in text:
            raise code_in(file) from error
        raise UserError(damaged(file)) from error
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise UserError(f"{file} does not fit into memory") from error
    except Exception as error:  # a damaged file may raise anything
        raise UserError(damaged(file)) from error
    check_tensors(content, file)
    return content


def _fit(
    content: Mapping[Any, Any], file: Path, model: nn.Module, backbone: Backbone
) -> SortedTensors:
    """Return the file's weights at the place where all names and shapes of the network are found.

    Names are tried as they are, then by the other names that the architecture's layers may have.
    """
    expected, classifiers, name = model.state_dict(), _classifiers(backbone), backbone.config.name
    held = held_in(content, file)
    if not held:
        raise UserError(f"{file} holds no weights; its entries: {listed(list(content)) or 'none'}")
    for one in held.values():
        if kind := _unread(one.tensor):
            key = shortened(printable(one.key), 80)
            raise UserError(f"{file} holds {kind} weights, first in {key}: save it as float32")
    places = places_in(held, sum(tensor.numel() for tensor in expected.values()))
    best = SortedTensors("", {}, {}, {}, [])
    of_places = [namings(below(held, place), model, classifiers) for place in places]
    for same_way in zip(*of_places, strict=True):
        candidates = [
            sort(held, place, named, expected, classifiers)
            for place, named in zip(places, same_way, strict=True)
            if named
        ]
        whole = [
            candidate for candidate in candidates if not _problems(candidate.backbone, (), expected)
        ]
        copies = {candidate.place + path for candidate in whole for path in expected}
        for candidate in candidates:
            candidate.unknown[:] = [path for path in candidate.unknown if path not in copies]
        best = max([best, *candidates], key=lambda candidate: len(candidate.backbone))
        if whole := [candidate for candidate in whole if not candidate.unknown]:
            _check_attention(whole[0].place, model, name)
            return _preferred(whole, file, name)
    if not best.backbone:
        raise UserError(
            f"{file} does not fit {name}: none of its weights is known, of "
            f"{listed([one.key for one in held.values()], 2)}"
        )
    keys = [held[path].key if path in held else path for path in best.unknown]
    misfit = _problems(best.backbone, keys, expected)
    place = shortened(printable(best.place), 80)
    raise UserError(
        f"{file} does not fit {name}: it {misfit}; nearest: {place}*, {len(best.backbone)} of "
        f"{len(expected)} names"
    )


def _unread(tensor: Tensor) -> str | None:
    """Return the kind of a tensor whose numbers cannot be converted to float32 by themselves."""
    if tensor.is_quantized or (tensor.dtype.itemsize == 1 and tensor.is_floating_point()):
        return str(tensor.dtype).removeprefix("torch.")
    return None if tensor.layout == torch.strided else str(tensor.layout).removeprefix("torch.")


def _preferred(candidates: Sequence[SortedTensors], file: Path, name: str) -> SortedTensors:
    """Return the first of several networks of a file.

    Raises UserError where another has other numbers, and the places do not tell which one is meant.
    """
    first = candidates[0]
    for other in candidates[1:]:
        equal = all(torch.equal(first.backbone[n], t) for n, t in other.backbone.items())
        if rank(other.place) == rank(first.place) and not equal:
            places = listed([f"{first.place}*", f"{other.place}*"], 2)
            raise UserError(
                f"{file} holds {name} more than once, with different numbers, at {places}: save "
                "the one that is meant alone"
            )
    return first


def _check_attention(place: str, model: nn.Module, name: str) -> None:
    """Raise UserError where the number of attention heads, which no shape shows, is another."""
    number = next((m.num_heads for m in model.modules() if hasattr(m, "num_heads")), None)
    if "base_encoder" in place.split(".") and number not in (None, _MOCO3_HEADS):
        raise UserError(
            f"MoCo v3's transformers have {_MOCO3_HEADS} attention heads, but {name} has {number}: "
            "with these weights it would compute another function"
        )


def _classifiers(backbone: Backbone) -> list[str]:
    """Return names that the classifier may have: timm's for the architecture, then common ones."""
    names: Any = ()
    if backbone.config.name not in BACKBONES:
        names = cast(Any, backbone).model.pretrained_cfg.get("classifier") or ()
    names = [names] if isinstance(names, str) else list(names)
    return list(dict.fromkeys([*names, *CLASSIFIERS]))


def _problems(
    weights: Mapping[str, Tensor], unknown: Collection[str], expected: Mapping[str, Tensor]
) -> str:
    """Describe what does not fit, at most two kinds of problems; empty where all fits."""
    shapes, wanted = (
        {n: tuple(t.shape) for n, t in tensors.items()} for tensors in (weights, expected)
    )
    return problems(shapes, wanted, unknown)


def _check_numbers(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], origin: str
) -> None:
    for name, tensor in weights.items():
        if name.endswith("num_batches_tracked"):
            continue
        real = name not in expected or expected[name].is_floating_point()
        if real != tensor.is_floating_point():
            raise UserError(f"{origin} holds {tensor.dtype} in {name}: give float weights")
        if not bool(torch.isfinite(tensor.float()).all()):
            raise UserError(f"{origin} holds numbers that are not finite, first in {name}")
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise UserError(f"{origin} holds negative variances, first in {name}")
