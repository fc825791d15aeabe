"""Methods by name: BURN, and the baselines that the paper compares it with."""

from __future__ import annotations

from typing import Any, Literal, get_args

from burn.backbones import Backbone
from burn.methods.base import Method
from burn.methods.burn import Burn
from burn.methods.byol import Byol
from burn.methods.infomin import Infomin
from burn.methods.mocov2 import Mocov2
from burn.methods.s2bnn import S2bnn
from burn.methods.simclr import Simclr
from burn.methods.supervised import Supervised, SupervisedKl
from burn.methods.swav import Swav
from burn.targets.weights import Teacher

MethodName = Literal[
    "burn", "supervised", "supervised_kl", "byol", "swav", "mocov2", "s2bnn", "simclr", "infomin"
]
METHODS: tuple[MethodName, ...] = get_args(MethodName)
NEED_TEACHER: frozenset[MethodName] = frozenset({"burn", "supervised_kl", "s2bnn"})
NEED_LABELS: frozenset[MethodName] = frozenset({"supervised"})
# Each process's BN is to see its own images alone, or queries and keys could be told by it.
SHUFFLE_NORMS: frozenset[MethodName] = frozenset({"mocov2", "infomin", "s2bnn"})

_ALONE: dict[str, Any] = {
    "byol": Byol,
    "swav": Swav,
    "mocov2": Mocov2,
    "simclr": Simclr,
    "infomin": Infomin,
}


def build_method(
    name: MethodName, config: Any, backbone: Backbone, teacher: Teacher | None, num_classes: int
) -> Method:
    """The method of that name around `backbone`, with fresh heads by torch's global random state.

    config: the method's own settings, None for the supervised ones. teacher: of NEED_TEACHER's
    methods. num_classes: of the labels, for NEED_LABELS's methods. Raises UserError where the
    teacher lacks the head or classifier that the method learns from.
    """
    if name == "supervised":
        return Supervised(backbone, num_classes)
    if name in _ALONE:
        return _ALONE[name](backbone, config)
    assert teacher is not None
    if name == "supervised_kl":
        return SupervisedKl(backbone, teacher)
    if name == "s2bnn":
        return S2bnn(backbone, teacher, config)
    return Burn(backbone, teacher.backbone, config)
