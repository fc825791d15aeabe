"""Extraction of the features of a source's images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from burn.backbones.base import Backbone, modes_kept
from burn.core.errors import UserError
from burn.core.types import Features
from burn.data.base import Source
from burn.data.loader import plain_batches
from burn.data.view_config import ViewConfig
from burn.deploy.running import PackedForward
from burn.evaluation.forward import Forward


def extract_features(
    backbone: Backbone,
    source: Source,
    views: ViewConfig,
    *,
    batch_size: int = 256,
    workers: int = 0,
    indices: Sequence[int] | None = None,
    bfloat16: bool = False,
    packed: PackedForward | None = None,
    view: Callable[[Tensor], Tensor] | None = None,
    pool: Callable[[Tensor], Tensor] | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Features:
    """Extract pooled features of plain views, float32 on the CPU, with a backbone in eval mode.

    Unreadable images are left out. The backbone is left in the mode that it was in; `packed`, the
    same network in burn-engine, runs instead of it.

    `indices` are the positions of the images, by default all; `view` makes the backbone's input of
    an image, by default the plain view; `pool` makes features of the last feature map, by default
    as the backbone does. `advance` is called after each batch with its number of images; it may
    raise an exception.

    Raises:
        UserError: None of the images can be read.
    """
    device = next(backbone.parameters()).device
    values, kept = [], []
    forward = Forward(backbone, bfloat16, packed)
    with modes_kept(backbone), torch.inference_mode():
        backbone.eval()
        pin = device.type == "cuda"
        for batch in plain_batches(source, views, batch_size, workers, indices, view, pin=pin):
            if batch.views:
                values.append(forward(batch.views[0], pool).cpu())
                kept.append(batch.indices)
            advance(len(batch.indices) + len(batch.unreadable))
    if not values:
        raise UserError(f"{source.name}: none of its images can be read")
    positions = torch.cat(kept)
    labels = None if source.labels is None else torch.from_numpy(source.labels)[positions]
    return Features(torch.cat(values), labels, source.classes, positions)
