"""Settings of SwAV, and what is known of it before torch is imported."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from burn.core.errors import UserError
from burn.methods.entries import MethodEntry, add_method
from burn.runtime.bounds import require_within

_RANGES: dict[str, tuple[float, float]] = {
    "small_crops": (0, 64),
    "small_size": (8, 4096),
    "prototypes": (2, 2**20),
    "temperature": (1e-3, 1e3),
    # exp(±1/ε), and its share of all prototypes and embeddings, must fit float32: e^-67 / 10^8.
    "epsilon": (0.03, 1e3),
    "sinkhorn_iterations": (1, 1000),
    "queue": (0, 2**24),
    "queue_from": (0, 1),
    "hidden": (1, 2**16),
    "dimension": (1, 2**16),
    "freeze_prototypes": (0, 1),
}


@dataclass(frozen=True)
class SwavConfig:
    """SwAV's crops, prototypes and queue.

    Attributes:
        small_crops: number of small views of an image, besides two of full size.
        small_size: height and width of the small views in pixels.
        small_scale: smallest and largest share of the image's area that a small view shows.
        prototypes: number of clusters.
        temperature: temperature of the softmax that predicts clusters.
        epsilon: smoothness of the assignment to clusters by Sinkhorn's algorithm.
        sinkhorn_iterations: number of iterations of Sinkhorn's algorithm.
        queue: number of embeddings of earlier images, for each view of full size, that take part in
            the assignment. All processes share them, so it is a multiple of the number of
            processes; 0 for large batches.
        queue_from: share of a stage after which the queue starts to fill; it is used once it is
            full.
        hidden: hidden width of the projection head.
        dimension: output width of the projection head.
        freeze_prototypes: share of a stage during which the prototypes stay as they are.
    """

    small_crops: int = 6
    small_size: int = 96
    small_scale: tuple[float, float] = (0.05, 0.14)
    prototypes: int = 3000
    temperature: float = 0.1
    epsilon: float = 0.05
    sinkhorn_iterations: int = 3
    queue: int = 3840
    queue_from: float = 0.075  # 15 of 200 epochs, as the paper
    hidden: int = 2048
    dimension: int = 128
    freeze_prototypes: float = 0.005  # 1 of 200 epochs, as the paper

    def check(self) -> None:
        for name, (low, high) in _RANGES.items():
            require_within(low, high, "swav.", **{name: getattr(self, name)})
        if not 0 < self.small_scale[0] <= self.small_scale[1] <= 1:
            raise UserError(
                f"swav.small_scale {list(self.small_scale)} is not a range of shares of the "
                "image's area, such as [0.05, 0.14]"
            )


def _views(view: Any, config: SwavConfig) -> tuple[Any, ...]:
    small = dataclasses.replace(
        view, size=config.small_size, resize=None, crop_scale=config.small_scale
    )
    return (view,) * 2 + (small,) * config.small_crops


add_method(
    MethodEntry("swav", "burn.methods.swav.method:Swav", SwavConfig, views=_views, title="SwAV")
)
