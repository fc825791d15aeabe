"""Float teacher that gives features or projections and never changes."""

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

# Arguments: epoch, view, positions of the images, features as float16 (images, dimension).
Keep = Callable[[int, int, list[int], NDArray[np.float16]], None]
_LARGEST = torch.finfo(torch.float16).max


class FrozenTarget(nn.Module):
    """Backbone in eval mode without gradients, of which nothing changes, BN statistics included.

    Features that depend on their image alone are rounded to float16, with a cache and without, so
    that both give the same. A network that normalizes by running statistics and can be folded
    (`burn.backbones.folded`) runs as a copy with BN in its convolutions, in bfloat16 under an
    autocast to bfloat16: the result is the same up to rounding, and faster.

    Args:
        backbone: The network. A `LateBackbone` is built when features are needed that are not in a
            cache.
        batch_norm: Whether BN normalizes by the running statistics, or by each batch's own as
            BURN's release does (which leaves the running statistics untouched here).
        head: Module after the backbone, (batch, num_features) -> (batch, dimension), which is
            frozen as well; None for the backbone's features.

    Attributes:
        keep: Function that receives features that the batch's cache did not hold, or None.
        num_given: Number of features that `of_view` has given.
        num_computed: Number of these that the network has computed, because no cache held them.
    """

    backbone: Backbone | None

    def __init__(
        self,
        backbone: Backbone | LateBackbone,
        batch_norm: TeacherBatchNorm = "running",
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.head = head
        self.num_features = backbone.num_features
        self.keep: Keep | None = None
        self.num_given = self.num_computed = 0
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
            for module in self.modules():  # including the head's
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.track_running_stats = False
                    module.running_mean = module.running_var = None
        self.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> FrozenTarget:  # a teacher does not train
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor, *, with_head: bool = True) -> Tensor:
        """Return features of images (batch, 3, height, width), as float32 (batch, num_features).

        Args:
            images: Images as a backbone takes them.
            with_head: Whether to return the head's output (batch, dimension) where there is a head.
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
        """Return what `forward` gives for a view, which the teacher may see at its own size.

        Features that the batch's cache does not hold are computed and passed to `keep`.

        Args:
            batch: The batch.
            view: Index of the view.
        """
        cached = batch.cached
        self.num_given += len(batch.indices)
        self.num_computed += len(batch.indices if cached is None else cached.missing)
        images = (batch.teacher_views or batch.views)[view]
        if cached is None:
            return self(images)
        values, missing = cached.values[view], cached.missing
        if len(missing):
            if not batch.teacher_views and len(missing) < len(images):
                images = images[missing]
            fresh = _rounded(self(images, with_head=False))
            values = values.clone()
            values[missing] = fresh
            if self.keep is not None:
                indices = batch.indices[missing.cpu()].tolist()
                self.keep(batch.epoch, view, indices, fresh.cpu().numpy())
        features = values.float()
        return features if self.head is None else self.head(features)

    def _fast(self, device: torch.device) -> Callable[[Tensor], Tensor] | None:
        """Return the folded copy for this device and autocast, or None where there is none."""
        assert self.backbone is not None
        if torch.compiler.is_compiling():
            return None  # the caller compiles the network itself, which is fast
        tensors = list(chain(self.backbone.parameters(), self.backbone.buffers()))
        dtype = tensors[0].dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        # The copy is made anew after weights were loaded or moved.
        state = (dtype, *((tensor.data_ptr(), tensor._version) for tensor in tensors))
        if self._folded[0] != state:
            self._folded = state, self.backbone.folded(dtype)
        return self._folded[1]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the folded copy, because oneDNN's weights cannot be copied."""
        return {**self.__dict__, "_folded": (None, None)}


def frozen_target(method: nn.Module) -> FrozenTarget | None:
    return next((m for m in method.modules() if isinstance(m, FrozenTarget)), None)


def _rounded(features: Tensor) -> Tensor:
    """Round to float16; numbers too large for it become its largest number."""
    # Wider first: in bfloat16 the largest number of float16 becomes 65,536, which is too large.
    return features.float().clamp(-_LARGEST, _LARGEST).half()
