"""Features that are extracted once and then kept in memory and in the folder of the results."""

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

_CHECKSUM = "sha256"  # key in the file's metadata: the hash of the values and then the positions
_HEADER = 2**16  # greatest number of bytes that a file has besides its tensors


def plain_features(context: EvaluationContext, split: Split, console: Console) -> Features:
    """Return the backbone's own features of plain views, extracting them if necessary.

    Args:
        context: The backbone and the images.
        split: The images to use.
        console: Where progress is shown.

    Raises:
        UserError: No image can be read, a class lost all of its images, the features are not
            finite, or a file of features is damaged.
    """
    return custom_features(context, split, console, "plain", 1, None, None)


def custom_features(
    context: EvaluationContext,
    split: Split,
    console: Console,
    kind: str,
    cells: int,
    view: Callable[[Tensor], Tensor] | None,
    pool: Callable[[Tensor], Tensor] | None,
) -> Features:
    """Return features of other views or with another pooling, extracting them if necessary.

    `kind` is a name that no other combination of `view` and `pool` has; these are as for
    `extract_features`. `pool` returns `cells` features for every channel.
    """
    source = context.train if split == "train" else context.test
    parts = (
        context.fingerprint, source.fingerprint, len(source), kind,
        sorted(asdict(context.views).items()), context.compute,
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
                context.backbone,
                source,
                context.views,
                workers=context.workers,
                bfloat16=context.bfloat16,
                packed=context.packed,
                view=view,
                pool=pool,
                advance=lambda number: progress.advance(bar, number),
            )
        if not bool(torch.isfinite(features.values).all()):
            raise UserError(f"features of {source.name} are not finite: the network diverged")
        if path:
            context.keep(lambda: _write(path, features))
    context.note_unreadable(source, set(range(len(source))) - set(features.positions.tolist()))
    context.kept[key] = features
    return features


def read_features(path: Path, source: Source, dimension: int) -> Features | None:
    """Read features that an earlier evaluation wrote, `dimension` of each image.

    None is returned if there is no file, if it is one of an earlier version without a checksum, or
    if it lacks images: the cause that made them unreadable may be gone. UserError is raised if it
    does not hold what was written to it.
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
