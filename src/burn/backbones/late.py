"""A network that is known by its description, and built when it is first needed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig


class LateBackbone:
    """What a backbone is, without its numbers, until `build` is called.

    described: the network on torch's meta device. make: builds it with its weights, in eval mode.
    """

    def __init__(self, described: Backbone, make: Callable[[], Backbone]) -> None:
        self.described, self.make = described, make
        self._built: Backbone | None = None

    @property
    def config(self) -> BackboneConfig:
        """Its settings."""
        return self.described.config

    @property
    def num_features(self) -> int:
        """Width of its features."""
        return self.described.num_features

    @property
    def fixed_size(self) -> int | None:
        """The only side in pixels that images may have, where there is one."""
        return self.described.fixed_size

    def build(self) -> Backbone:
        """The network, the same one every time. Torch's global random state stays as it is."""
        if self._built is None:
            with torch.random.fork_rng(devices=[]):
                self._built = self.make()
        return self._built
