"""Methods by name: BURN, and the baselines that the paper compares it with."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from burn.methods.configs import MethodName

if TYPE_CHECKING:
    from burn.backbones.base import Backbone
    from burn.checkpoints.foreign.weights import Teacher
    from burn.methods.base import Method

# Each process's BN is to see its own images alone, or queries and keys could be told by it.
SHUFFLE_NORMS: frozenset[MethodName] = frozenset({"mocov2", "infomin", "s2bnn"})

# Class of each method that learns from the images alone, in the module of its name.
_ALONE: dict[MethodName, str] = {
    "byol": "Byol",
    "swav": "Swav",
    "mocov2": "Mocov2",
    "simclr": "Simclr",
    "infomin": "Infomin",
}


def build_method(
    name: MethodName, config: Any, backbone: Backbone, teacher: Teacher | None, num_classes: int
) -> Method:
    """The method of that name around `backbone`, with fresh heads by torch's global random state.

    config: the method's own settings, None for the supervised ones. teacher: of NEED_TEACHER's
    methods. num_classes: of the labels, for NEED_LABELS's methods. Raises UserError where the
    teacher lacks the head or classifier that the method learns from.
    """
    from burn.methods.supervised import Supervised, SupervisedKl

    if name == "supervised":
        return Supervised(backbone, num_classes)
    if name in _ALONE:
        return getattr(import_module(f"burn.methods.{name}"), _ALONE[name])(backbone, config)
    assert teacher is not None
    if name == "supervised_kl":
        return SupervisedKl(backbone, teacher)
    if name == "s2bnn":
        from burn.methods.s2bnn import S2bnn

        return S2bnn(backbone, teacher, config)
    from burn.methods.burn import Burn

    return Burn(backbone, teacher.network, config)
