"""Weights from elsewhere: a file of another framework, or a checkpoint of ours, to a backbone.

Nothing in a file is executed: pickles open with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from burn.backbones import Backbone, BackboneConfig, build_backbone
from burn.checkpoint import find_checkpoint, load_checkpoint, take
from burn.errors import UserError
from burn.files import expand
from burn.settings import from_plain
from burn.types import Checkpoint, Precision


@dataclass(frozen=True)
class _Layout:
    """How a framework wraps a backbone: the dict that holds it, its prefix, its head's names."""

    name: str
    container: str | None
    prefix: str
    heads: tuple[str, ...] = ("fc.", "head.", "classifier.")


# Tried in order; the first whose container and prefix are there is taken.
_LAYOUTS = (
    _Layout("MoCo v2", "state_dict", "module.encoder_q."),
    _Layout("DINO", "teacher", "module.backbone."),
    _Layout("DINO", "teacher", "backbone."),
    _Layout("wrapped", "state_dict", "module.backbone."),
    _Layout("wrapped", "state_dict", "backbone."),
    _Layout("wrapped", "state_dict", "module."),
    _Layout("wrapped", "state_dict", ""),
    _Layout("wrapped", "model", "module."),
    _Layout("wrapped", "model", ""),
    _Layout("plain", None, "module."),
    _Layout("plain", None, "backbone."),
    _Layout("torchvision, timm or plain", None, ""),
)


def backbone_from(checkpoint: Checkpoint, *, fresh: bool = False, seed: int = 0) -> Backbone:
    """The backbone of a checkpoint, in its precision, in eval mode.

    fresh: the same network with new weights drawn from `seed` instead.
    """
    try:
        config = from_plain(BackboneConfig, checkpoint.meta["backbone"])
        precision = Precision(checkpoint.meta["precision"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{checkpoint.origin}: its description is damaged: {error}") from error
    torch.manual_seed(seed)
    backbone = build_backbone(config, precision)
    if not fresh:
        _load_strictly(backbone, take(checkpoint.weights, "backbone."), checkpoint.origin)
    return backbone.eval()


def load_backbone(spec: str) -> tuple[Backbone, dict[str, Any]]:
    """A pretrained backbone in eval mode, and where it came from (plain JSON values).

    spec: a checkpoint of ours (file or run folder), or ARCHITECTURE:FILE with a timm name and a
    file of weights (MoCo v2, DINO, torchvision, timm, or a plain state dict; .pth, .pt or
    .safetensors). Every weight of the architecture must be in the file with its shape, and no
    others but the classifier's. Raises UserError otherwise.
    """
    if Path(spec).exists():
        file = find_checkpoint(Path(spec))
        backbone = backbone_from(load_checkpoint(file))
        origin = {"spec": spec, "architecture": backbone.config.name}
        return backbone, {**origin, "sha256": _sha256(file)}
    name, separator, file_name = spec.partition(":")
    if not separator:
        raise UserError(
            f"no checkpoint at {spec}: give a run folder or checkpoint of burn's, or "
            "ARCHITECTURE:FILE"
        )
    backbone = build_backbone(BackboneConfig(name=name), Precision.FLOAT).eval()
    file = expand(file_name)
    if not file.is_file():
        raise UserError(f"no weights file at {file_name}")
    model = backbone.model if name != "reactnet_a" else backbone
    assert isinstance(model, torch.nn.Module)
    layout, weights = _unwrap(_read_weights(file), file, model.state_dict().keys())
    _load_strictly(model, weights, f"{file} (read as {layout})")
    return backbone, {"spec": spec, "architecture": name, "sha256": _sha256(file)}


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read_weights(file: Path) -> Any:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks about odd pickles, before it refuses
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if any(
            words in str(error).lower() for words in ("unsupported global", "unsupported class")
        ):
            raise UserError(
                f"{file} holds pickled objects other than weights; they could run code and are "
                "refused: save its state_dict alone"
            ) from error
        raise UserError(f"{file} is not a weights file, or it is damaged or truncated") from error
    except (RuntimeError, EOFError, SafetensorError, zipfile.BadZipFile, OSError, ValueError,
            KeyError, IndexError, AttributeError, UnicodeDecodeError) as error:  # fmt: skip
        raise UserError(f"{file} is not a weights file, or it is damaged or truncated") from error


def _unwrap(content: Any, file: Path, expected: Collection[str]) -> tuple[str, dict[str, Tensor]]:
    """The layout's name, and the backbone's weights without prefix and head.

    expected: the architecture's names; those below a head's name, as of ConvNeXt's last norm, stay.
    """
    if not isinstance(content, Mapping):
        raise UserError(f"{file} holds a {type(content).__name__}, not a dict of weights")
    for layout in _LAYOUTS:
        held = content if layout.container is None else content.get(layout.container)
        if not isinstance(held, Mapping):
            continue
        tensors = {k: v for k, v in held.items() if isinstance(k, str) and isinstance(v, Tensor)}
        below = take(tensors, layout.prefix)
        if below:
            return layout.name, {
                name: tensor
                for name, tensor in below.items()
                if name in expected or not name.startswith(layout.heads)
            }
    raise UserError(
        f"{file} holds no weights; its entries: {', '.join(map(str, list(content)[:5]))}"
    )


def _load_strictly(model: torch.nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    expected = model.state_dict()
    missing = [name for name in expected if name not in weights]
    unknown = [name for name in weights if name not in expected]
    shapes = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    # BN counters appear in newer files only and are not used.
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    for problem, names in (("lacks", missing), ("has unknown", unknown), ("has", shapes)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UserError(
                f"{origin} does not fit the architecture: it {problem} {', '.join(names[:3])}{more}"
            )
    broken = [name for name, tensor in weights.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise UserError(f"{origin} holds numbers that are not finite, first in {broken[0]}")
    model.load_state_dict(dict(weights), strict=False)
