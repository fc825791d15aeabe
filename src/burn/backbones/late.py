"""Backbone that is described at once, and built when it is first needed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from burn.backbones.base import Backbone
from burn.backbones.config import BackboneConfig


class LateBackbone:
    """Backbone whose settings and shapes are known, but whose weights are loaded by `build`.

    `described` is the network on torch's meta device; `make` builds it with its weights, in eval
    mode.
    """

    def __init__(self, described: Backbone, make: Callable[[], Backbone]) -> None:
        self.described, self.make = described, make
        self._built: Backbone | None = None

    @property
    def config(self) -> BackboneConfig:
        return self.described.config

    @property
    def num_features(self) -> int:
        return self.described.num_features

    @property
    def fixed_size(self) -> int | None:
        return self.described.fixed_size

    def build(self) -> Backbone:
        """Return the network, the same one every time, without changing torch's random state."""
        if self._built is None:
            with torch.random.fork_rng(devices=[]):
                self._built = self.make()
        return self._built
