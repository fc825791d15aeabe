"""InfoMin: contrast between views that share no more than the task needs.

Tian et al., What Makes for Good Views for Contrastive Learning?, 2020. Its findings are about
views: its recipe has the stronger augmentation, and its loss is that of momentum contrast. The
jigsaw branch of its code is left out.
"""

from __future__ import annotations

from dataclasses import asdict

from burn.backbones.base import Backbone
from burn.methods.infomin.settings import InfominConfig
from burn.methods.mocov2.method import Mocov2
from burn.methods.mocov2.settings import Mocov2Config


class Infomin(Mocov2):
    """MoCo v2's loss, momentum encoder and queue with InfoMin's settings."""

    def __init__(self, backbone: Backbone, config: InfominConfig) -> None:
        shared = asdict(config)
        super().__init__(backbone, Mocov2Config(queue=shared.pop("negatives"), **shared))
