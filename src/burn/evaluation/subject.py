"""From a command line's words to something that can be judged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from burn.backbones import Backbone
from burn.checkpoint import find_checkpoint, load_checkpoint
from burn.data.sources import Source
from burn.data.views import ViewConfig
from burn.errors import UserError
from burn.settings import from_plain
from burn.targets.weights import backbone_from, load_backbone


@dataclass(frozen=True)
class Subject:
    """What is judged, and on what.

    model: short name for tables. checkpoint: where its weights came from.
    """

    model: str
    checkpoint: str
    backbone: Backbone
    views: ViewConfig
    train: Source
    test: Source
    seed: int
    workers: int


def load_model(spec: str, *, fresh: bool, seed: int) -> tuple[str, Backbone, ViewConfig]:
    """Short name, backbone in eval mode, and the views it is used to.

    spec: as for a teacher (`burn.targets.weights.load_backbone`). fresh: the same network with new
    weights drawn from `seed`, the floor that a checkpoint is compared with.
    """
    if not Path(spec).exists():
        backbone, origin = load_backbone(spec)
        if fresh:
            raise UserError("random weights need a checkpoint of burn's to copy the network from")
        return str(origin["architecture"]), backbone, ViewConfig()
    checkpoint = load_checkpoint(find_checkpoint(Path(spec)))
    backbone = backbone_from(checkpoint, fresh=fresh, seed=seed)
    meta = checkpoint.meta
    try:
        views = from_plain(ViewConfig, meta["views"])
        views.check()
        name = f"{meta['recipe']['name']}, stage {meta['stage']}"
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"{checkpoint.origin}: its description is damaged: {error}") from error
    if fresh:
        name = f"random {backbone.config.name}, {meta['precision']}"
    return name, backbone, views
