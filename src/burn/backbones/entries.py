"""Table of the backbones that burn or a plugin builds, by name, without torch.

Any other name is an architecture of timm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from burn.backbones.config import BackboneConfig
from burn.backbones.plan import REACTNETS
from burn.core.plugins import Plugin, check_callable, check_name, check_words, registering, resolve

if TYPE_CHECKING:
    from burn.backbones.base import Backbone
    from burn.core.types import Precision

REACTNET = "reactnet_a"
BNEXT = ("bnext_t", "bnext_s", "bnext_m", "bnext_l")
EXPERT = "expert_bnn"
Build = Callable[[BackboneConfig, "Precision"], "Backbone"]
Builder = TypeVar("Builder", bound=Build)


@dataclass(frozen=True)
class BackboneEntry:
    """What is known of a backbone before it is built; see `register_backbone`."""

    name: str
    target: Build | str  # or MODULE:CLASS
    binary: bool
    settings: frozenset[str]
    plugin: Plugin | None = None  # that registered it; None for burn's own

    def build(self, config: BackboneConfig, precision: Precision) -> Backbone:
        """Return the network with new weights, drawn from torch's global random state."""
        return resolve(self.target)(config, precision)  # type: ignore[no-any-return]


def _family(names: Iterable[str], target: str, *settings: str) -> dict[str, BackboneEntry]:
    common = ("width", "stem_stride", "stage_strides")
    gradients = ("activation_gradient", "weight_gradient", "weight_init")
    used = frozenset((*common, *gradients, *settings))
    return {name: BackboneEntry(name, target, binary=True, settings=used) for name in names}


BACKBONES: dict[str, BackboneEntry] = {
    **_family(REACTNETS, "burn.backbones.reactnet:ReActNet", "depths", "feature_layer"),
    **_family(BNEXT, "burn.backbones.bnext:BNext", "temperature"),
    **_family([EXPERT], "burn.backbones.expert:ExpertNet", "experts"),
}


def is_binary(name: str) -> bool:
    """Return whether the backbone of this name has binary layers, and therefore training stages."""
    return name in BACKBONES and BACKBONES[name].binary


def register_backbone(
    name: str, *, binary: bool = True, settings: Collection[str] = ()
) -> Callable[[Builder], Builder]:
    """Return a decorator that registers a `burn.Backbone`, or a function that builds one.

    The class or function is called with a `burn.BackboneConfig` and a `burn.Precision`.

    Args:
        name: Value of `--backbone.name` that selects it.
        binary: Whether it has binary layers. If so, it is trained in one stage or two, and built at
            the precision of each.
        settings: Fields of `BackboneConfig` that it uses, besides `name`, `mean`, `std` and
            `feature_norm`. Changing another one is an error.

    Raises:
        UserError: The name belongs to one of burn's own backbones or is not a lower-case
            identifier, or a setting is not a field of `BackboneConfig`.
    """
    check_name("backbone", name, BACKBONES)
    field_names = {field.name for field in fields(BackboneConfig)} - {"name", "mean", "std"}
    used = check_words(f"backbone {name}", "settings", settings, sorted(field_names))

    def register(build: Builder) -> Builder:
        check_callable(f"backbone {name}", build, "a class or a function")
        plugin = registering(getattr(build, "__module__", "?"))
        BACKBONES[name] = BackboneEntry(name, build, binary, used, plugin)
        return build

    return register
