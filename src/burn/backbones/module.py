"""Float backbone from any PyTorch module, to be used as a teacher."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig
from burn.core.errors import UserError


class ModuleBackbone(Backbone):
    """Float backbone around a copy of a module that maps images in [0, 1] to features.

    The module maps float32 (batch, 3, height, width) to (batch, features), and normalizes the
    images itself. It is tried with images of `size` pixels; UserError if that fails.
    """

    def __init__(self, module: nn.Module, size: int) -> None:
        name = type(module).__name__
        module = copy.deepcopy(module).eval()  # the caller's own stays as it is
        parameter = next(module.parameters(), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        try:
            with torch.inference_mode():
                features = module(torch.zeros(2, 3, size, size, device=device))
        except Exception as error:  # a module may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"teacher {name} cannot take float images (2, 3, {size}, {size}): {reason}"
            ) from error
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features)
            raise UserError(
                f"teacher {name} gives {shape} for two images: it must give (2, features)"
            )
        super().__init__(BackboneConfig(name=name), features.shape[1])
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            images = images.to(torch.float32) / 255
        return self.module(images)

    def forward_features(self, images: Tensor) -> Tensor:
        raise UserError(f"teacher {self.config.name} is given as a module, without a feature map")

    def pool(self, features: Tensor) -> Tensor:
        raise UserError(f"teacher {self.config.name} is given as a module, without a feature map")
