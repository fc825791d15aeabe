"""The float teacher: it gives features or projections and never changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.late import LateBackbone
from burn.core.types import Batch, TeacherBatchNorm

# Epoch, view, positions of images, float16 (images, dimension).
Keep = Callable[[int, int, list[int], NDArray[np.float16]], None]
_LARGEST = torch.finfo(torch.float16).max


class FrozenTarget(nn.Module):
    """A backbone in eval mode without gradients; nothing in it moves, its BN statistics included.

    backbone: a late one is built when features are needed that no cache knows.
    batch_norm: normalise by the running statistics, or by each batch's own as BURN's release does
    (which leaves the running statistics untouched here).
    head: what follows the backbone, (batch, num_features) -> (batch, dimension); as frozen as it.

    Features that depend on their image alone are rounded to float16, with a cache and without, so
    that both give the same. A ResNet that normalises by running statistics runs as a copy of which
    BN is folded into its convolutions, in bfloat16 under such an autocast: the same up to rounding,
    and faster.
    """

    backbone: Backbone | None

    def __init__(
        self, backbone: Backbone | LateBackbone, batch_norm: TeacherBatchNorm = "running",
        head: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head = head
        self.num_features = backbone.num_features
        self.keep: Keep | None = None  # is told of features that the cache did not know
        self.asked = self.made = 0  # features: how many were asked for, how many the network made
        self._batch_norm = batch_norm
        self._folded: tuple[object, Callable[[Tensor], Tensor] | None] = (None, None)
        self._late = None if isinstance(backbone, Backbone) else backbone
        self.backbone = None
        if isinstance(backbone, Backbone):
            self._take(backbone)
        self.requires_grad_(False)
        self.train(False)

    def _take(self, backbone: Backbone) -> None:
        self.backbone = backbone
        if self._batch_norm == "batch":
            for module in self.modules():  # the head, too
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.track_running_stats = False
                    module.running_mean = module.running_var = None
        self.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> FrozenTarget:  # a teacher does not train
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor, *, with_head: bool = True) -> Tensor:
        """images (batch, 3, height, width) -> features, float32 (batch, num_features).

        With a head, what it makes of them: (batch, dimension).
        """
        if self.backbone is None:
            assert self._late is not None
            self._take(self._late.build().to(images.device))
        features = (self._fast(images.device) or cast(Backbone, self.backbone))(images)
        if self._batch_norm == "running":
            features = _rounded(features).float()
        return features if self.head is None or not with_head else self.head(features)

    @torch.no_grad()
    def of_view(self, batch: Batch, view: int) -> Tensor:
        """What `forward` gives of a batch's view, which the teacher may see at its own size.

        Features that the batch's cache does not know are made, and told to `keep`.
        """
        own = batch.teacher_views
        known = batch.known
        self.asked += len(batch.indices)
        self.made += len(batch.indices if known is None else known.unknown)
        if known is None:
            return self(own[view] if own else batch.views[view])
        values, unknown = known.values[view], known.unknown
        if len(unknown):
            images = own[view] if own else batch.views[view]
            if not own and len(unknown) < len(images):
                images = images[unknown]
            fresh = _rounded(self(images, with_head=False))
            values = values.clone()
            values[unknown] = fresh
            if self.keep is not None:
                indices = batch.indices[unknown.cpu()].tolist()
                self.keep(batch.epoch, view, indices, fresh.cpu().numpy())
        features = values.float()
        return features if self.head is None else self.head(features)

    def _fast(self, device: torch.device) -> Callable[[Tensor], Tensor] | None:
        """The folded copy for the arithmetic of here and now; None where there is none."""
        assert self.backbone is not None
        if torch.compiler.is_compiling():
            return None  # the caller's compiled code is fast
        tensors = list(chain(self.backbone.parameters(), self.backbone.buffers()))
        dtype = tensors[0].dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        # Made anew where somebody loads other weights or moves them.
        state = (dtype, *((tensor.data_ptr(), tensor._version) for tensor in tensors))
        if self._folded[0] != state:
            self._folded = state, self.backbone.folded(dtype)
        return self._folded[1]

    def __getstate__(self) -> dict[str, Any]:
        """Copies make their own folded copy: oneDNN's weights cannot be copied."""
        return {**self.__dict__, "_folded": (None, None)}


def _rounded(features: Tensor) -> Tensor:
    """In float16; what is too large for it becomes its largest number."""
    return features.clamp(-_LARGEST, _LARGEST).half()
