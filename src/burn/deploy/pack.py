"""`burn pack`: a trained binary network as one file of bits, docs/project/pack-format.md."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from burn.backbones.base import Backbone
from burn.checkpoints.classifier import Classifier, fingerprint, load_classifier, own_classifier
from burn.checkpoints.foreign.weights import backbone_from
from burn.checkpoints.native import find_checkpoint, load_checkpoint
from burn.core.errors import UserError
from burn.core.files import write_beside, write_failures_named
from burn.core.inputs import sha256_of
from burn.core.types import Checkpoint, Precision
from burn.deploy.fold import fold, linear_layer
from burn.deploy.fold_gated import features_rounded_and_unrounded, fold_gated, gated_precision
from burn.deploy.layout import MOST_CHANNELS, MOST_NAMES, Array, names_length, program_of, stored
from burn.deploy.named import check_packing, head_file, require_packed_name
from burn.deploy.shared import (
    LARGEST_CHECKED,
    LEAST_COSINE,
    agree,
    cosines,
    sample_images,
    survives_rounding,
    views_of,
)
from burn.layers.chain import Chain
from burn_engine.format import Layer

_CLOSE_SCORES = 0.01  # share of the range of an image's scores


@dataclass(frozen=True)
class Packed:
    """Summary of a packed file.

    Attributes:
        bytes: Size of the file.
        float32_bytes: Size of the network's parameters, with the classifier, at 4 bytes each.
        ratio: `float32_bytes` divided by `bytes`.
        cosine: Smallest cosine between the file's features and the network's, with gates that are
            rounded as in the file if it has gates.
        unrounded: Smallest cosine to the features of the network as it is.
        images: Number of images that were compared.
        same_class: Number of these images whose top class is the same in both.
        layers: Number of layers.
        classes: Number of classes, 0 without a classifier.
    """

    bytes: int
    float32_bytes: int
    ratio: float
    cosine: float
    unrounded: float
    images: int
    same_class: int
    layers: int
    classes: int


def pack(checkpoint: Path, out: Path, head: Path | None = None) -> Packed:
    """Write the network of a checkpoint as a packed file, as `pack_network` does.

    Args:
        checkpoint: The checkpoint, or the folder of a run.
        out: The file (.bnn), which must not exist yet.
        head: A classifier that `burn evaluate linear --out DIR` kept (the file or DIR), or a
            checkpoint or run of burn's with a linear classifier, for the same backbone; None for
            the checkpoint's own if it names its classes, as a fine-tuned one does, and otherwise
            for features alone.

    Raises:
        UserError: The checkpoint or the classifier cannot be read, or the network cannot be packed.
            Nothing is written then.
    """
    check_packing(checkpoint, out, head)
    file = find_checkpoint(checkpoint)
    held = load_checkpoint(file)
    backbone = backbone_from(held)
    if problem := unpackable(backbone):
        raise UserError(f"{held.origin} cannot be packed: {problem}")
    classifier = read_head(head, backbone) if head else named_classifier(held, backbone)
    return pack_network(backbone, held, out, classifier, {"sha256": sha256_of(file)})


def pack_network(
    backbone: Backbone,
    checkpoint: Checkpoint,
    out: Path,
    classifier: Classifier | None,
    about: Mapping[str, Any],
) -> Packed:
    """Write a network, with the weights that it has, as a packed file (.bnn).

    The file is run and compared with the network before it gets its name, which must be free. The
    checkpoint says what the network's views are and by which recipe it was trained. Besides that,
    the file keeps the remarks `about`, for people.

    Raises:
        UserError: The network's weights are not binary, the format has no place for something, or
            file and network disagree. Nothing is written then.
    """
    require_packed_name(out)
    if problem := unpackable(backbone):
        raise UserError(f"{checkpoint.origin} cannot be packed: {problem}")
    views = views_of(checkpoint)
    if classifier:
        _check_head(classifier, backbone, "the classifier")
    layers = folded(backbone)
    features = layers[-1].name
    parameters = sum(p.numel() for p in backbone.parameters())
    if classifier:
        layers.append(linear_layer("head", classifier.weight, classifier.bias, relu=False))
        parameters += classifier.weight.numel() + classifier.bias.numel()
    classes = classifier.classes if classifier else ()
    image = (views.short_side, views.size)
    program = program_of(layers, features, classes, image, {**_origin(checkpoint), **about})
    tensors = encode(layers, checkpoint.origin)
    images = sample_images(min(views.size, LARGEST_CHECKED))

    def write(beside: Path) -> tuple[float, float, int]:
        save_file(tensors, beside, metadata={"bnn": json.dumps(program)})
        return _verify(beside, backbone, classifier, images, checkpoint.origin)

    with write_failures_named(out):
        cosine, unrounded, same_class = write_beside(out, write, new=True)
    size = out.stat().st_size
    return Packed(
        bytes=size,
        float32_bytes=4 * parameters,
        ratio=round(4 * parameters / size, 2),
        cosine=round(cosine, 6),
        unrounded=round(unrounded, 6),
        images=len(images),
        same_class=same_class,
        layers=len(layers),
        classes=len(classes),
    )


def folded(backbone: Backbone) -> list[Layer]:
    """Return the layers of a network that is not `unpackable`, without a classifier."""
    is_chain = gated_precision(backbone) is None
    return list(fold(backbone) if is_chain else fold_gated(backbone))


def unpackable(backbone: Backbone) -> str | None:
    """Return why a packed file has no place for a network, or None if it has."""
    chain = backbone.chain()
    precision = gated_precision(backbone) if chain is None else chain.precision
    if precision is None:
        return (
            f"it is a {backbone.config.name}, which is not a chain of binary layers as the "
            "reactnets are; burn export writes it as ONNX"
        )
    if chain is not None and (problem := _unfoldable(chain)):
        return problem
    if precision == Precision.BINARY_ACTIVATIONS:
        return (
            "its weights are not binary: finish stage 2, or import it with --stage 2 if they are "
            "trained to be"
        )
    if precision == Precision.FLOAT:
        return "its precision is float, without binary layers; burn export writes it as ONNX"
    if backbone.num_features > MOST_CHANNELS:
        return f"it has {backbone.num_features} channels; the format has {MOST_CHANNELS} at most"
    return None


def _unfoldable(chain: Chain) -> str | None:
    """Return why the format has no place for the chain of a plugin's backbone, or None."""
    stem = chain.stem
    side = stem.kernel_size[0]
    plain = stem.groups == 1 and set(stem.dilation) == {1} and stem.padding_mode == "zeros"
    pads = stem.padding in ("same", (side // 2, side // 2))
    if not plain or stem.bias is not None or not pads:
        return "its stem is not a plain convolution without bias that pads by half its kernel"
    if chain.stem_norm.running_mean is None:
        return "the batch normalization of its stem has no running statistics"
    channels = stem.out_channels
    for name, half in chain.layers:
        if half.norm.running_mean is None:
            return f"the batch normalization of layer {name} has no running statistics"
        weight = half.convolution.weight
        if weight.shape[2] not in (1, 3):
            return f"layer {name} has a kernel of {weight.shape[2]} pixels; the format has 1 and 3"
        if weight.shape[1] != channels or len(weight) % channels:
            return (
                f"layer {name} has {weight.shape[1]} input and {len(weight)} output channels after "
                f"a layer of {channels}, so its shortcut does not fit"
            )
        channels = len(weight)
    return None


def encode(layers: Sequence[Layer], origin: str) -> dict[str, Array]:
    """Return the tensors of a packed file by name.

    Raises UserError, about `origin`, if a constant is too large for float32.
    """
    tensors: dict[str, Array] = {}
    for layer in layers:
        for name, tensor, values in stored(layer):
            tensors[name] = np.ascontiguousarray(values)
            if tensor.dtype == "U8":
                tensors[name] = np.packbits(values > 0, axis=-1, bitorder="little")
            elif tensor.dtype == "F32":
                with np.errstate(over="ignore"):
                    tensors[name] = np.ascontiguousarray(values, np.float32)
                if not np.isfinite(tensors[name]).all():
                    raise UserError(
                        f"{origin} cannot be packed: {name} is too large for float32: the batch "
                        "normalization there has diverged"
                    )
    return tensors


def _origin(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the checkpoint's recipe and stage for people; its texts may come from a stranger."""
    meta: Mapping[str, Any] = checkpoint.meta
    recipe = meta.get("recipe")
    name = recipe.get("name") if isinstance(recipe, Mapping) else None
    about = {
        "burn": version("burn-ssl"),
        "recipe": "".join(c for c in name if c.isprintable())[:80] if isinstance(name, str) else "",
    }
    numbers = {key: meta.get(key) for key in ("stage", "steps")}
    return about | {key: n for key, n in numbers.items() if isinstance(n, int)}


def read_head(head: Path, backbone: Backbone) -> Classifier:
    """Read the classifier that `--head` names (see `head_file`), and check it against the backbone.

    Raises UserError if there is no linear classifier, or it does not belong to the backbone.
    """
    file = head_file(head)
    classifier = load_classifier(file) if file.suffix == ".safetensors" else None
    origin = str(file)
    if classifier is None:
        held = load_checkpoint(find_checkpoint(head))
        origin = held.origin
        classifier = own_classifier(held, backbone_from(held))
        if classifier is None:
            raise UserError(
                f"{origin} has no linear classifier on {backbone.num_features} features: give what "
                "burn evaluate linear --out DIR keeps"
            )
    _check_head(classifier, backbone, origin)
    return classifier


def named_classifier(checkpoint: Checkpoint, backbone: Backbone) -> Classifier | None:
    """Return the classifier of a checkpoint that names its classes, or None."""
    return own_classifier(checkpoint, backbone) if "classes" in checkpoint.meta else None


def _check_head(classifier: Classifier, backbone: Backbone, origin: str) -> None:
    """Raise UserError for a classifier of another backbone, or that the format has no place for."""
    if classifier.backbone != fingerprint(backbone):
        raise UserError(
            f"{origin} was trained on another backbone than the one to pack: give what `burn "
            "evaluate linear` kept for this one"
        )
    if classifier.weight.shape[1] != backbone.num_features:
        raise UserError(
            f"{origin} takes {classifier.weight.shape[1]} features, the backbone has "
            f"{backbone.num_features}"
        )
    _check_names(classifier.classes, origin)
    if not bool(torch.isfinite(classifier.weight).all() and torch.isfinite(classifier.bias).all()):
        raise UserError(f"{origin}: its classifier holds numbers that are not finite")


def _check_names(classes: Sequence[str], origin: str) -> None:
    if names_length(classes) > MOST_NAMES:
        raise UserError(f"{origin}: {len(classes)} names of classes are too long for the format")
    if len(set(classes)) < len(classes) or not all(classes):
        raise UserError(f"{origin}: names of classes must be distinct and not empty")
    for name in classes:
        if any(ord(c) < 32 or ord(c) == 127 for c in name):
            raise UserError(f"{origin}: the class {name!r} has a name with control characters")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{origin}: the class {name!r} has a name that is not UTF-8") from error


def open_packed(packed: Path, origin: str) -> Any:
    """Open a packed file as a `burn_engine.Model` on one thread; `origin` is what was packed.

    Raises UserError if burn-engine refuses the file, or BURN_ENGINE_ISA names an instruction set
    that this processor does not have.
    """
    import burn_engine

    with warnings.catch_warnings():
        # Without its compiled core it warns that the NumPy reference is slow, which is fine.
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return burn_engine.load(packed, threads=1)
        except burn_engine.ModelError as error:
            reason = str(error).removeprefix(f"{packed}: ")
            raise UserError(f"{origin} cannot be packed: {reason}") from error
        except ValueError as error:  # BURN_ENGINE_ISA in the environment is not usable
            raise UserError(f"{error}: unset it, or give one of these") from error


def _verify(
    packed: Path, backbone: Backbone, classifier: Classifier | None, images: Tensor, origin: str
) -> tuple[float, float, int]:
    """Run the file and the network, and compare their features and classes.

    Returns the least cosine between features to the network whose gates are rounded as in the file,
    see `with_rounded_gates`; that to the network as it is; and on how many images the top class is
    the same, 0 without a classifier. Raises UserError if they are not the same function.
    """
    model = open_packed(packed, origin)
    pixels = np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
    with np.errstate(all="ignore"):  # features that overflow fail the comparison
        packed_features = np.asarray(model.features(pixels))
    expected, unrounded = features_rounded_and_unrounded(backbone, images)
    cosines_rounded = cosines(packed_features, expected.numpy())
    cosines_unrounded = cosines(packed_features, unrounded.numpy())
    cosine = float(cosines_rounded.min())
    if not agree(cosines_rounded):
        raise UserError(
            f"{origin} cannot be packed: the packed network's features agree with its own only to "
            f"cosine {cosine:.6f} (needed: {LEAST_COSINE}); nothing was written"
        )
    if not survives_rounding(cosines_unrounded):
        raise UserError(
            f"{origin} cannot be packed: its gates' weights are too unlike to be rounded to 16 "
            f"bits (cosine {np.median(cosines_unrounded):.6f} to its own features); "
            "nothing was written"
        )
    same_class = 0
    if classifier:
        with torch.inference_mode():
            scores = (expected @ classifier.weight.T + classifier.bias).numpy()
        with np.errstate(all="ignore"):
            packed_scores = np.asarray(model(pixels))
        if not (np.isfinite(scores).all() and np.isfinite(packed_scores).all()):
            raise UserError(f"{origin} cannot be packed: its scores overflow float32")
        same_class = int((scores.argmax(axis=1) == packed_scores.argmax(axis=1)).sum())
        same = _same_top(scores, packed_scores)
        if not same[cosines_rounded > LEAST_COSINE].all():
            raise UserError(
                f"{origin} cannot be packed: the packed network's top class is its own on only "
                f"{same.sum()} of {len(images)} images (cosine {cosine:.6f}); nothing was written"
            )
    return cosine, float(cosines_unrounded.min()), same_class


def _same_top(expected: Array, packed: Array) -> Array:
    """Return for each image whether the top class is the same, or its two best scores are close."""
    rows = np.arange(len(expected))
    lost = expected.max(axis=1) - expected[rows, packed.argmax(axis=1)]
    spread = expected.max(axis=1) - expected.min(axis=1)
    return lost <= _CLOSE_SCORES * spread
