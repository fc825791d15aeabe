"""The features of images and of views, computed by PyTorch or by burn-engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from burn.backbones.base import Backbone, modes_kept
from burn.core.errors import UserError
from burn.core.types import Features
from burn.data.base import Source
from burn.data.loader import plain_batches
from burn.data.view_config import ViewConfig
from burn.deploy.running import PackedForward
from burn.evaluation.configs import EvaluationCompute


@dataclass(frozen=True)
class Forward:
    """A frozen backbone in eval mode that computes features of views.

    A float network that can be folded runs as its folded copy, with the weights that it has when
    the first features are computed. `packed`, the same network in burn-engine, runs instead of it.
    """

    backbone: Backbone
    bfloat16: bool = False
    packed: PackedForward | None = None

    @property
    def compute(self) -> Literal["packed", "bfloat16", "float32"]:
        """The arithmetic, as results name it."""
        if self.packed is not None:
            return "packed"
        return "bfloat16" if self.bfloat16 else "float32"

    def __call__(self, views: Tensor, pool: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Compute features, float32 (images, features), on the backbone's device.

        The views are uint8 (images, 3, height, width), on the CPU. `pool` makes features of the
        last feature map, by default as the backbone does.
        """
        if self.packed is not None:
            return pool(self.packed.feature_maps(views)) if pool else self.packed.features(views)
        device = next(self.backbone.parameters()).device
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16):
            images = views.to(device, non_blocking=True)
            features = (
                pool(self.backbone.forward_features(images)) if pool else self._fastest(images)
            )
            return features.float()

    @cached_property
    def _fastest(self) -> Callable[[Tensor], Tensor]:
        dtype = torch.bfloat16 if self.bfloat16 else torch.float32
        return self.backbone.folded(dtype) or self.backbone


def packed_forward(
    backbone: Backbone, size: int, compute: EvaluationCompute, device: torch.device
) -> PackedForward | None:
    """Return the backbone in burn-engine if `compute` and the device allow it, otherwise None.

    "auto" takes it for a binary network on a CPU; for "packed" UserError is raised if it cannot run
    the network here. `size` is the side of the views in pixels.
    """
    if compute not in ("auto", "packed"):
        return None
    if device.type != "cpu":
        if compute == "packed":
            raise UserError("--compute packed runs on the CPU: give --device cpu with it")
        return None
    try:
        return PackedForward(backbone, size, torch.get_num_threads())
    except UserError as error:
        if compute == "packed":
            raise UserError(f"--compute packed: {error}") from error
        return None


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
