"""Backbones that burn builds itself, by name: its own, and those of plugins; no torch here.

Any other name is an architecture of timm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from burn.backbones.config import BackboneConfig
from burn.core.errors import UserError
from burn.core.plugins import Plugin, check_name, registering, resolve

if TYPE_CHECKING:
    from burn.backbones.base import Backbone
    from burn.core.types import Precision

REACTNET = "reactnet_a"
Build = Callable[[BackboneConfig, "Precision"], "Backbone"]
Builder = TypeVar("Builder", bound=Build)


@dataclass(frozen=True)
class BackboneEntry:
    """What is known of a backbone before it is built.

    Attributes:
        name: What `--backbone.name` takes.
        of: What builds it from a `BackboneConfig` and a `Precision`: its class, a function, or
            MODULE:CLASS.
        binary: Whether it has binary layers, and so training stages.
        settings: Fields of `BackboneConfig` that it looks at, beside name, mean and std.
        plugin: Where it comes from, or None for burn's own.
    """

    name: str
    of: Build | str
    binary: bool
    settings: frozenset[str]
    plugin: Plugin | None = None

    def build(self, config: BackboneConfig, precision: Precision) -> Backbone:
        """The network with fresh weights by torch's global random state."""
        return resolve(self.of)(config, precision)  # type: ignore[no-any-return]


_GRADIENTS = ("activation_gradient", "weight_gradient", "weight_init")
BACKBONES: dict[str, BackboneEntry] = {
    REACTNET: BackboneEntry(
        REACTNET, "burn.backbones.reactnet:ReActNet", binary=True,
        settings=frozenset({"width", "stem_stride", "stage_strides", "feature_layer", *_GRADIENTS}),
    )
}  # fmt: skip


def is_binary(name: str) -> bool:
    """Whether the backbone of this name has binary layers (and so training stages)."""
    return name in BACKBONES and BACKBONES[name].binary


def register_backbone(
    name: str, *, binary: bool = True, settings: Collection[str] = ()
) -> Callable[[Builder], Builder]:
    """Decorate a `burn.Backbone`, or a function that gives one, so that recipes know it.

    It is called with a `burn.BackboneConfig` and a `burn.Precision`.

    Args:
        name: What `--backbone.name` takes.
        binary: Whether it has binary layers: then it is trained in one stage or two, and built at
            the precision of each.
        settings: Fields of `BackboneConfig` that it looks at, beside `name`, `mean` and `std`;
            changing another one is an error.

    Raises:
        UserError: The name is taken or no identifier, or a setting is no field.
    """
    check_name("backbone", name, BACKBONES)
    known = {field.name for field in fields(BackboneConfig)} - {"name", "mean", "std"}
    unknown = sorted(set(settings) - known)
    if isinstance(settings, str) or unknown:
        raise UserError(f"backbone {name}: settings is a list of {', '.join(sorted(known))}")

    def register(build: Builder) -> Builder:
        plugin = registering(getattr(build, "__module__", "?"))
        BACKBONES[name] = BackboneEntry(name, build, binary, frozenset(settings), plugin)
        return build

    return register
