"""From a command line's words to something that can be judged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from burn.backbones import Backbone
from burn.checkpoint import find_checkpoint, load_checkpoint
from burn.classifier_file import fingerprint
from burn.data.sources import Source
from burn.data.views import ViewConfig
from burn.errors import UserError
from burn.results import Result
from burn.settings import from_plain
from burn.targets.weights import backbone_from, load_backbone
from burn.types import Features


@dataclass(frozen=True)
class Subject:
    """What is judged, on what, and how.

    model: short name for tables. checkpoint: where its weights came from. out: folder for what a
    protocol keeps, if anything. bfloat16: whether the backbone runs under autocast. notes: what
    the user should hear of afterwards, such as images that were left out. kept: features by key.
    """

    model: str
    checkpoint: str
    backbone: Backbone
    views: ViewConfig
    train: Source
    test: Source
    seed: int
    workers: int
    out: Path | None = None
    bfloat16: bool = False
    notes: list[str] = field(default_factory=list)
    kept: dict[str, Features] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the backbone is."""
        return next(self.backbone.parameters()).device

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the network's weights and settings."""
        return fingerprint(self.backbone)

    def about(self) -> dict[str, str]:
        """Which network is judged on what, in the words of its results."""
        return {
            "model": self.model,
            "checkpoint": self.checkpoint,
            "train": self.train.name,
            "test": self.test.name,
        }

    def note_unreadable(self, source: Source, positions: Iterable[int]) -> None:
        """Have the user hear, once, of images of `source` that could not be read."""
        missing = sorted(set(positions))
        if missing:
            names = ", ".join(source.describe(index) for index in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            note = f"unreadable images, left out: {len(missing)}: {names}{more}"
            if note not in self.notes:
                self.notes.append(note)

    def results(
        self, protocol: str, numbers: Mapping[str, float], settings: Mapping[str, Any],
        began: float, spread: Mapping[str, float] | None = None,
    ) -> list[Result]:  # fmt: skip
        """A Result for each number; `began` is when its work did, by `time.perf_counter`."""
        seconds = round(time.perf_counter() - began, 3)
        compute = "bfloat16" if self.bfloat16 else "float32"
        return [
            Result(
                protocol=protocol,
                metric=metric,
                value=round(value, 4),
                seed=self.seed,
                seconds=seconds,
                settings={**settings, "compute": compute},
                spread=round(spread[metric], 4) if spread and metric in spread else None,
                **self.about(),
            )
            for metric, value in numbers.items()
        ]


def load_model(spec: str, *, fresh: bool, seed: int) -> tuple[str, Backbone, ViewConfig]:
    """Short name, backbone in eval mode, and the views it is used to.

    spec: as for a teacher (`burn.targets.weights.load_backbone`). fresh: the same network with new
    weights drawn from `seed`, the floor that a checkpoint is compared with.
    """
    if not Path(spec).exists():
        backbone, origin = load_backbone(spec)
        if fresh:
            raise UserError("random weights need a checkpoint of burn's to copy the network from")
        return str(origin["architecture"]), backbone, ViewConfig(size=backbone.fixed_size or 224)
    checkpoint = load_checkpoint(find_checkpoint(Path(spec)))
    backbone = backbone_from(checkpoint, fresh=fresh, seed=seed)
    meta = checkpoint.meta
    try:
        views = from_plain(ViewConfig, meta["views"])
        views.check()
        name = f"{meta['recipe']['name']}, stage {meta['stage']}"
        name = "".join(c for c in name if c.isprintable())[:80]
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"{checkpoint.origin}: its description is damaged: {error}") from error
    if fresh:
        name = f"random {backbone.config.name}, {meta['precision']}"
    return name, backbone, views
