"""Interface of all backbones: images in, a feature map or a feature vector out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from burn.backbones.config import BackboneConfig
from burn.core.errors import UserError
from burn.core.types import Checkpoint
from burn.layers.chain import Chain


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Leave every layer of a module in the mode, training or eval, in which it is now."""
    modes = {layer: layer.training for layer in module.modules()}
    try:
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training


class Backbone(nn.Module, ABC):
    """Feature extractor that contains the normalization of its input.

    Images are (batch, 3, height, width), uint8 in 0..255 or floating point in [0, 1].

    Args:
        config: Settings, of which `mean` and `std` normalize the images; `feature_norm` adds BN.
        num_features: Number of features of an image.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: BackboneConfig, num_features: int) -> None:
        super().__init__()
        self.config = config
        self.checkpoint: Checkpoint | None = None  # what it was loaded from, if that is known
        self.num_features = num_features
        self.feature_norm: nn.BatchNorm1d | None = None
        if config.feature_norm:
            self.feature_norm = nn.BatchNorm1d(num_features, affine=False)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(config, name)).view(1, 3, 1, 1)
            self.register_buffer(name, values, persistent=False)

    @property
    def fixed_size(self) -> int | None:
        """The only side in pixels that images may have, or None where several are possible."""
        return None

    def normalize(self, images: Tensor) -> Tensor:
        """Return (images on the scale 0 to 1 - mean) / std in channels-last memory format.

        Raises:
            UserError: The images are no uint8 or float tensor (batch, 3, height, width).
        """
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] != 3:
            raise UserError(f"{_what(images)} is no batch of images: {_IMAGES}")
        if not min(images.shape[2:]):
            raise UserError(f"{_what(images)} holds no pixel: {_IMAGES}")
        if images.dtype == torch.uint8:
            images = images.to(self.mean.dtype) / 255
        elif not images.is_floating_point():
            raise UserError(f"{_what(images)} has another type than images: {_IMAGES}")
        elif images.dtype == torch.float64:
            images = images.to(self.mean.dtype)
        normalized = (images - self.mean) / self.std
        return normalized.contiguous(memory_format=torch.channels_last)

    @abstractmethod
    def forward_features(self, images: Tensor) -> Tensor:
        """Return the last feature map: (batch, num_features, height / stride, width / stride)."""

    @abstractmethod
    def pool(self, features: Tensor) -> Tensor:
        """Pool a map of `forward_features` to float features (batch, num_features)."""

    def normalize_features(self, pooled: Tensor) -> Tensor:
        """Return pooled features (batch, num_features), normalized if `config.feature_norm`."""
        return pooled if self.feature_norm is None else self.feature_norm(pooled)

    def folded(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor] | None:
        """Return a faster function from images to features for a network that does not train.

        It folds BN into convolutions, so it equals `forward` in eval mode up to rounding. It gives
        no gradients and holds the weights as they are now.

        Args:
            dtype: Number format in which it computes.

        Returns:
            The function, or None where nothing is faster than `forward`.
        """
        return None

    def chain(self) -> Chain | None:
        """Return its layers if it is a chain, which can be folded and packed; otherwise None."""
        return None

    def at_progress(self, progress: float) -> None:
        """Follow the progress of training; networks without schedules ignore it.

        Training calls it before each step. What it sets follows from `progress` alone, so it needs
        no place in the state dict, and it has no effect in eval mode.

        Args:
            progress: Share of the stage's optimizer steps that have been done, in [0, 1].
        """

    def trunk(self, images: Tensor) -> Tensor:
        """Return the map before the last stage, C4, at stride 16 in a network of stride 32.

        Raises:
            UserError: The backbone has no stages.
        """
        raise UserError(self._no_stages())

    def top(self, features: Tensor) -> Tensor:
        """Apply the last stage: `top(trunk(images))` is `forward_features(images)`.

        Raises:
            UserError: The backbone has no stages.
        """
        raise UserError(self._no_stages())

    def _no_stages(self) -> str:
        return (
            f"backbone {self.config.name} cannot be cut before its last stage: burn's binary "
            "networks and ResNets can"
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return features of shape (batch, num_features)."""
        return self.normalize_features(self.pool(self.forward_features(images)))


_IMAGES = "give a tensor (batch, 3, height, width), uint8, or float in [0, 1]"


def _what(images: object) -> str:
    """Return what was given in place of images, for a message."""
    if not isinstance(images, Tensor):
        return f"a value of type {type(images).__name__}"
    return f"a {str(images.dtype).removeprefix('torch.')} tensor {tuple(images.shape)}"
