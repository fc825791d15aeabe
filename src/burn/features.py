"""Features of a source's images, from a backbone in eval mode."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burn.backbones import Backbone
from burn.data.loader import plain_batches
from burn.data.sources import Source
from burn.data.views import ViewConfig
from burn.errors import UserError
from burn.types import Features


def extract_features(
    backbone: Backbone,
    source: Source,
    views: ViewConfig,
    *,
    batch_size: int = 256,
    workers: int = 0,
    indices: Sequence[int] | None = None,
    unreadable: list[int] | None = None,
) -> Features:
    """Pooled features of plain views, float32, on the CPU; unreadable images are left out.

    indices: positions to take (default: all). unreadable: list to which the positions of images
    that cannot be decoded are added. The backbone is left in the mode it was in.
    Raises UserError where not one image can be read.
    """
    device = next(backbone.parameters()).device
    training = backbone.training
    backbone.eval()
    values, kept = [], []
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for batch in plain_batches(source, views, batch_size, workers, indices):
            if unreadable is not None:
                unreadable.extend(batch.unreadable)
            if batch.views:
                values.append(backbone(batch.views[0].to(device)).float().cpu())
                kept.append(batch.indices)
    backbone.train(training)
    if not values:
        raise UserError(f"{source.name}: none of its images can be read")
    positions = torch.cat(kept)
    labels = None if source.labels is None else torch.from_numpy(source.labels)[positions]
    return Features(torch.cat(values), labels, source.classes)
