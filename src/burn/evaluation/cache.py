"""Features that are extracted once: kept in memory, and in the folder that results go to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from burn.data.sources import Source
from burn.errors import UserError
from burn.evaluation.progress import progress_bar
from burn.evaluation.subject import Subject
from burn.features import extract_features
from burn.files import write_beside
from burn.types import Features

Split = Literal["train", "test"]


def plain_features(subject: Subject, split: Split, console: Console) -> Features:
    """The backbone's own features of plain views."""
    return _features(subject, split, console, "plain", 1, None, None)


def custom_features(
    subject: Subject, split: Split, console: Console, kind: str, cells: int,
    view: Callable[[Tensor], Tensor], pool: Callable[[Tensor], Tensor],
) -> Features:  # fmt: skip
    """Features of `view(image)` by `pool(last feature map)`, `cells` for every channel.

    `kind` names the pair of functions, and no other.
    """
    return _features(subject, split, console, kind, cells, view, pool)


def _features(
    subject: Subject, split: Split, console: Console, kind: str, cells: int,
    view: Callable[[Tensor], Tensor] | None, pool: Callable[[Tensor], Tensor] | None,
) -> Features:  # fmt: skip
    source = subject.train if split == "train" else subject.test
    parts = (
        subject.fingerprint, source.fingerprint, source.name, len(source), kind,
        sorted(asdict(subject.views).items()), subject.bfloat16,
    )  # fmt: skip
    key = hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest()[:16]
    if key in subject.kept:
        return subject.kept[key]
    path = subject.out / "features" / f"{key}.safetensors" if subject.out else None
    features = _read(path, source, cells * subject.backbone.num_features) if path else None
    if features is None:
        with progress_bar(console) as progress:
            bar = progress.add_task(f"features of {source.name}", total=len(source))
            features = extract_features(
                subject.backbone, source, subject.views, workers=subject.workers,
                bfloat16=subject.bfloat16, view=view, pool=pool,
                advance=lambda number: progress.advance(bar, number),
            )  # fmt: skip
        if not bool(torch.isfinite(features.values).all()):
            raise UserError(f"features of {source.name} are not finite: the network diverged")
        if path:
            _write(path, features)
    subject.note_unreadable(source, set(range(len(source))) - set(features.positions.tolist()))
    subject.kept[key] = features
    return features


def _read(path: Path, source: Source, dimension: int) -> Features | None:
    """None where there is no file, or a damaged one, or one that lacks images: those are tried
    again, for what kept them from being read may have passed."""
    try:
        tensors = load_file(path) if path.is_file() else {}
        values, positions = tensors["values"], tensors["positions"]
    except (SafetensorError, OSError, KeyError, RuntimeError):
        return None
    whole = (
        values.shape == (len(source), dimension)
        and values.dtype == torch.float32
        and positions.dtype == torch.int64
        and torch.equal(positions, torch.arange(len(source)))
    )
    labels = None if source.labels is None else torch.from_numpy(source.labels)
    return Features(values, labels, source.classes, positions) if whole else None


def _write(path: Path, features: Features) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"values": features.values, "positions": features.positions}
    write_beside(path, lambda beside: save_file(tensors, beside))
