"""The float teacher: it gives features or projections and never changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from burn.backbones import Backbone
from burn.types import TeacherBatchNorm


class FrozenTarget(nn.Module):
    """A backbone in eval mode without gradients; nothing in it moves, its BN statistics included.

    batch_norm: normalise by the running statistics, or by each batch's own as BURN's release does
    (which leaves the running statistics untouched here).
    head: what follows the backbone, (batch, num_features) -> (batch, dimension); as frozen as it.

    A ResNet that normalises by running statistics runs as a copy of which BN is folded into its
    convolutions, in bfloat16 under such an autocast: the same up to rounding, and faster.
    """

    def __init__(
        self, backbone: Backbone, batch_norm: TeacherBatchNorm = "running",
        head: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.num_features = backbone.num_features
        if batch_norm == "batch":
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.track_running_stats = False
                    module.running_mean = module.running_var = None
        self._folded: tuple[object, Callable[[Tensor], Tensor] | None] = (None, None)
        self.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> FrozenTarget:  # a teacher does not train
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """images (batch, 3, height, width) -> features, float32 (batch, num_features).

        With a head, what it makes of them: (batch, dimension).
        """
        features = (self._fast(images.device) or self.backbone)(images)
        return features if self.head is None else self.head(features)

    def _fast(self, device: torch.device) -> Callable[[Tensor], Tensor] | None:
        """The folded copy for the arithmetic of here and now; None where there is none."""
        if torch.compiler.is_compiling() or "forward" in vars(self.backbone):
            return None  # somebody else makes it fast
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
