"""Backbone that is described at once, and built when it is first needed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig


class LateBackbone:
    """Backbone whose settings and shapes are known, but whose weights are loaded by `build`.

    Args:
        described: The network on torch's meta device.
        make: Builds the network with its weights, in eval mode.
    """

    def __init__(self, described: Backbone, make: Callable[[], Backbone]) -> None:
        self.described, self.make = described, make
        self._built: Backbone | None = None

    @property
    def config(self) -> BackboneConfig:
        """Settings of the backbone."""
        return self.described.config

    @property
    def num_features(self) -> int:
        """Number of features of an image."""
        return self.described.num_features

    @property
    def fixed_size(self) -> int | None:
        """The only side in pixels that images may have, or None where several are possible."""
        return self.described.fixed_size

    def build(self) -> Backbone:
        """Return the network, the same one every time, without changing torch's random state."""
        if self._built is None:
            with torch.random.fork_rng(devices=[]):
                self._built = self.make()
        return self._built
