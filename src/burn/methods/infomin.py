"""InfoMin: contrast between views that share no more than the task needs.

Tian et al., What Makes for Good Views for Contrastive Learning?, 2020. Its findings are about
views: the stronger augmentation is its recipe's, the loss that of momentum contrast. Without the
jigsaw branch of its code.
"""

from __future__ import annotations

from dataclasses import asdict

from burn.backbones.base import Backbone
from burn.methods.configs import InfominConfig, Mocov2Config
from burn.methods.mocov2 import Mocov2


class Infomin(Mocov2):
    """MoCo v2's loss, and its momentum encoder and queue, at InfoMin's settings."""

    def __init__(self, backbone: Backbone, config: InfominConfig) -> None:
        shared = asdict(config)
        super().__init__(backbone, Mocov2Config(queue=shared.pop("negatives"), **shared))
