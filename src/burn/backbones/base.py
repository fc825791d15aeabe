"""What every backbone is: images in, a feature map or a feature vector out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from burn.backbones.config import BackboneConfig
from burn.core.errors import UserError
from burn.core.types import Checkpoint
from burn.layers.chain import Chain


class Backbone(nn.Module, ABC):
    """A feature extractor that owns its input normalisation.

    Images are (batch, 3, height, width), uint8 in 0..255 or floating point in [0, 1].
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: BackboneConfig, num_features: int) -> None:
        super().__init__()
        self.config = config
        self.checkpoint: Checkpoint | None = None  # what it was loaded from, where that is known
        self.num_features = num_features
        for name in ("mean", "std"):
            values = torch.tensor(getattr(config, name)).view(1, 3, 1, 1)
            self.register_buffer(name, values, persistent=False)

    @property
    def fixed_size(self) -> int | None:
        """The only side in pixels that images may have, where there is one."""
        return None

    def normalize(self, images: Tensor) -> Tensor:
        """(image on the scale 0 to 1 - mean) / std, channels last."""
        if images.dtype == torch.uint8:
            images = images.to(self.mean.dtype) / 255
        normalized = (images - self.mean) / self.std
        return normalized.contiguous(memory_format=torch.channels_last)

    @abstractmethod
    def forward_features(self, images: Tensor) -> Tensor:
        """The last feature map: (batch, num_features, height / stride, width / stride)."""

    @abstractmethod
    def pool(self, features: Tensor) -> Tensor:
        """A map of `forward_features` -> float (batch, num_features)."""

    def folded(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
        """images -> features, as `forward` gives them in eval mode, by arithmetic in `dtype`.

        BN is folded into convolutions, so it is the same up to rounding. It gives no gradients and
        holds the weights as they are now. None where there is nothing faster than `forward`.
        """
        return None

    def chain(self) -> Chain | None:
        """Its layers, where it is a chain of them: then it can be folded and packed."""
        return None

    def trunk(self, images: Tensor) -> Tensor:
        """The map before the last stage, at stride 16 in a network of stride 32: C4."""
        raise UserError(self._no_stages())

    def top(self, features: Tensor) -> Tensor:
        """The last stage: `top(trunk(images))` is `forward_features(images)`."""
        raise UserError(self._no_stages())

    def _no_stages(self) -> str:
        name = self.config.name
        return f"backbone {name} cannot be cut before its last stage: reactnet_a and ResNets can"

    def forward(self, images: Tensor) -> Tensor:
        """Features: (batch, num_features)."""
        return self.pool(self.forward_features(images))
