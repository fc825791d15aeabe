"""Features that are extracted once: kept in memory, and in the folder that results go to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from burn.core.errors import UserError
from burn.core.files import write_beside
from burn.core.inputs import require_regular, status_of
from burn.core.types import Features
from burn.data.base import Source
from burn.evaluation.context import EvaluationContext
from burn.evaluation.features import extract_features
from burn.evaluation.progress import progress_bar

Split = Literal["train", "test"]

_CHECKSUM = "sha256"  # in the file's metadata: of the values and then the positions
_HEADER = 2**16  # bytes, at most, that a file has beside its tensors


def plain_features(context: EvaluationContext, split: Split, console: Console) -> Features:
    """The backbone's own features of plain views."""
    return _features(context, split, console, "plain", 1, None, None)


def custom_features(
    context: EvaluationContext, split: Split, console: Console, kind: str, cells: int,
    view: Callable[[Tensor], Tensor], pool: Callable[[Tensor], Tensor],
) -> Features:  # fmt: skip
    """Features of `view(image)` by `pool(last feature map)`, `cells` for every channel.

    `kind` names the pair of functions, and no other.
    """
    return _features(context, split, console, kind, cells, view, pool)


def _features(
    context: EvaluationContext, split: Split, console: Console, kind: str, cells: int,
    view: Callable[[Tensor], Tensor] | None, pool: Callable[[Tensor], Tensor] | None,
) -> Features:  # fmt: skip
    source = context.train if split == "train" else context.test
    parts = (
        context.fingerprint, source.fingerprint, source.name, len(source), kind,
        sorted(asdict(context.views).items()), context.bfloat16,
    )  # fmt: skip
    key = hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest()[:16]
    if key in context.kept:
        return context.kept[key]
    path = context.out / "features" / f"{key}.safetensors" if context.out else None
    features = read_features(path, source, cells * context.backbone.num_features) if path else None
    if features is None:
        with progress_bar(console) as progress:
            bar = progress.add_task(f"features of {source.name}", total=len(source))
            features = extract_features(
                context.backbone, source, context.views, workers=context.workers,
                bfloat16=context.bfloat16, view=view, pool=pool,
                advance=lambda number: progress.advance(bar, number),
            )  # fmt: skip
        if not bool(torch.isfinite(features.values).all()):
            raise UserError(f"features of {source.name} are not finite: the network diverged")
        if path:
            context.keep(lambda: _write(path, features))
    context.note_unreadable(source, set(range(len(source))) - set(features.positions.tolist()))
    context.kept[key] = features
    return features


def read_features(path: Path, source: Source, dimension: int) -> Features | None:
    """Features of all images of `source` that `_write` kept, float32 (images, dimension).

    None where there is no file, one of an earlier version, without a checksum, or one that lacks
    images: those are tried again, for what kept them from being read may have passed.
    Raises UserError for a file that does not hold what was written.
    """
    if status_of(path) is None:
        return None
    largest = len(source) * (4 * dimension + 8) + _HEADER
    try:
        size = require_regular(path)
    except UserError as error:
        raise UserError(f"{error}; it does not hold the features of images: remove it") from error
    if size > largest:
        raise _damaged(path)
    try:
        with safe_open(path, framework="pt") as file:
            written = (file.metadata() or {}).get(_CHECKSUM)
            values, positions = (file.get_tensor(name) for name in ("values", "positions"))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _damaged(path) from error
    if written is None:
        return None
    if (
        values.dtype != torch.float32
        or positions.dtype != torch.int64
        or values.shape != (len(positions), dimension)
        or written != _checksum(values, positions)
    ):
        raise _damaged(path)
    if not torch.equal(positions, torch.arange(len(source))):
        return None
    labels = None if source.labels is None else torch.from_numpy(source.labels)
    return Features(values, labels, source.classes, positions)


def _damaged(path: Path) -> UserError:
    return UserError(
        f"{path} does not hold the features that were written to it: remove it, and they are "
        "extracted again"
    )


def _checksum(values: Tensor, positions: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in (values, positions):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _write(path: Path, features: Features) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"values": features.values, "positions": features.positions}
    about = {_CHECKSUM: _checksum(features.values, features.positions)}
    write_beside(path, lambda beside: save_file(tensors, beside, about))
