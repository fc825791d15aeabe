"""Linear classifiers of backbones: those of checkpoints, and a file of one on a frozen backbone.

The file, which names its backbone, is safetensors: `weight` float32 (classes, features) and `bias`
(classes,). Its metadata entry "classifier" is JSON: format (version of this layout), burn
(version), classes (their names), backbone (its `fingerprint`) and settings (how the classifier was
trained).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.checkpoints.foreign.heads import classifier_from
from burn.checkpoints.native import read_safetensors
from burn.core.errors import UserError, printable
from burn.core.files import write_beside, write_failures_named
from burn.core.inputs import parse_json
from burn.core.types import Checkpoint

FORMAT = 1


@dataclass(frozen=True)
class Classifier:
    """Linear classifier on the features of one backbone.

    Attributes:
        weight: float32 (classes, features).
        bias: float32 (classes,).
        classes: Names of the outputs.
        backbone: `fingerprint` of the backbone.
    """

    weight: Tensor
    bias: Tensor
    classes: tuple[str, ...]
    backbone: str


def fingerprint(backbone: Backbone) -> str:
    """Return a hash that changes with the weights and settings of a backbone."""
    digest = hashlib.sha256(repr(asdict(backbone.config)).encode())
    for name, tensor in backbone.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def linear_classifier(checkpoint: Checkpoint, num_features: int) -> nn.Linear | None:
    """Return the linear classifier that a checkpoint holds beside its backbone, or None."""
    weights = {n: t for n, t in checkpoint.weights.items() if n.startswith("classifier.")}
    return classifier_from(weights, ["classifier"], num_features)


def own_classifier(checkpoint: Checkpoint, backbone: Backbone) -> Classifier | None:
    """Return the linear classifier that a checkpoint holds, or None.

    Its classes are numbers where the checkpoint does not name just as many.
    """
    linear = linear_classifier(checkpoint, backbone.num_features)
    if linear is None:
        return None
    classes = tuple(str(number) for number in range(linear.out_features))
    names = checkpoint.meta.get("classes")
    if isinstance(names, list) and len(names) == len(classes):
        classes = tuple(names) if all(isinstance(name, str) for name in names) else classes
    weight, bias = linear.weight.detach(), linear.bias.detach()
    return Classifier(weight, bias, classes, fingerprint(backbone))


def save_classifier(path: Path, classifier: Classifier, settings: Mapping[str, Any]) -> None:
    """Write a classifier atomically, replacing an older file.

    The settings are how it was trained, as plain JSON values. Raises UserError if the file cannot
    be written.
    """
    about = {
        "format": FORMAT,
        "burn": version("burn-ssl"),
        "classes": classifier.classes,
        "backbone": classifier.backbone,
        "settings": dict(settings),
    }
    tensors = {"weight": classifier.weight, "bias": classifier.bias}
    tensors = {n: t.detach().to("cpu", torch.float32).contiguous() for n, t in tensors.items()}
    metadata = {"classifier": json.dumps(about)}
    with write_failures_named(path):
        write_beside(path, lambda beside: save_file(tensors, beside, metadata=metadata))


def load_classifier(path: Path) -> Classifier | None:
    """Read a file of `save_classifier`; return None for a safetensors file of something else.

    Raises UserError for one that is damaged or of another version.
    """
    text, tensors = read_safetensors(path, "classifier")
    if text is None:
        return None
    about = parse_json(text, f"{path}: its description")
    try:
        file_format, classes, backbone = about["format"], about["classes"], about["backbone"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: its description cannot be read") from error
    if lacking := {"weight", "bias"} - tensors.keys():
        raise UserError(f"{path} is not a classifier: it holds no {min(lacking)}")
    weight, bias = tensors["weight"], tensors["bias"]
    if file_format != FORMAT:
        raise UserError(
            f"{path} has classifier format {printable(str(file_format)[:40])}, this burn "
            f"({version('burn-ssl')}) reads {FORMAT}"
        )
    if problem := _problem(weight, bias, classes):
        raise UserError(f"{path} is not a classifier: {problem}")
    return Classifier(weight, bias, tuple(classes), str(backbone))


def _problem(weight: Tensor, bias: Tensor, classes: Any) -> str | None:
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        return "its classes are not a list of names"
    shapes = weight.ndim == 2 and bias.shape == weight.shape[:1] == (len(classes),)
    if not shapes or not weight.numel():
        return f"weight {tuple(weight.shape)}, bias {tuple(bias.shape)}, {len(classes)} classes"
    if weight.dtype != torch.float32 or bias.dtype != torch.float32:
        return f"it holds {weight.dtype} and {bias.dtype}, not float32"
    if not bool(torch.isfinite(weight).all() and torch.isfinite(bias).all()):
        return "it holds numbers that are not finite"
    return None
