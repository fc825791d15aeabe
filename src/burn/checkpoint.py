"""Our checkpoints: a safetensors file with its description inside, and beside it as JSON to read.

The description (`meta`) holds: format (version of this layout), burn and torch (versions), recipe
(name and every field), backbone, views, precision, stage, num_stages, steps, seed, teacher, data
(name, number of images, fingerprint), monitor (the stage's exit summary). An imported one has
source (format, name and SHA-256 of the file) instead of data and monitor.

Lightning's own file serves only to resume an interrupted stage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from burn.errors import UserError
from burn.files import write_beside, write_text
from burn.types import Checkpoint

FORMAT = 1


def save_checkpoint(path: Path, weights: Mapping[str, torch.Tensor], meta: dict[str, Any]) -> None:
    """Write `path` (.safetensors) and the same meta beside it as .json, each atomically."""
    versions = {"burn": version("burn-ssl"), "torch": torch.__version__}
    text = _text({"format": FORMAT, **versions, **meta})
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    try:
        write_beside(path, lambda beside: save_file(contiguous, beside, metadata={"burn": text}))
    except SafetensorError as error:
        raise UserError(f"{path} cannot be written: {error}") from error
    write_text(path.with_suffix(".json"), text + "\n")


def complete_checkpoint(path: Path, meta: Mapping[str, Any]) -> None:
    """Write the .json beside a checkpoint whose process was killed before it could."""
    if not path.with_suffix(".json").is_file():
        write_text(path.with_suffix(".json"), _text(meta) + "\n")


def _text(meta: Mapping[str, Any]) -> str:
    return json.dumps(meta, indent=2)


def find_checkpoint(path: Path) -> Path:
    """A checkpoint file itself, or the last stage's in the folder of a run.

    Raises UserError where there is none.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"no checkpoint at {path}")
    stages = {
        int(match[1]): file
        for file in path.glob("stage*.safetensors")
        if (match := re.fullmatch(r"stage(\d+)\.safetensors", file.name))
    }
    if not stages:
        raise UserError(f"{path} holds no finished stage (stage1.safetensors)")
    return stages[max(stages)]


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of ours. Raises UserError where it is not one, or of another version."""
    file = find_checkpoint(path)
    try:
        with safe_open(file, framework="pt") as opened:
            text = (opened.metadata() or {}).get("burn")
            names = list(opened.keys())
            weights = {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is not a readable safetensors file: {error}") from error
    if text is None:
        raise UserError(f"{file} holds weights but is no checkpoint of burn's (no metadata)")
    try:
        meta = json.loads(text)
        found = meta["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file}: its metadata cannot be read") from error
    if found != FORMAT:
        raise UserError(
            f"{file} has checkpoint format {found}, this burn ({version('burn-ssl')}) reads "
            f"{FORMAT}: use the version that wrote it ({meta.get('burn', 'unknown')})"
        )
    return Checkpoint(weights, meta, str(file))


def take(weights: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The entries below `prefix`, without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in weights.items()
        if name.startswith(prefix)
    }
