"""BURN: 1-bit vision backbones, pretrained without labels.

    import burn

    run = burn.pretrain("burn_small", data="photos/", teacher="lite0", out="runs/student")
    results = burn.evaluate("linear", run.backbone, train="photos/train", test="photos/val")
    burn.pack(run.backbone, "student.bnn", head=results.classifier)

Names are imported when they are first used: `import burn` alone takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burn.api import (
        Evaluation,
        Run,
        evaluate,
        load,
        open_data,
        pack,
        pretrain,
        recipe,
    )
    from burn.backbones.base import Backbone
    from burn.core.errors import Interrupted, UserError
    from burn.methods.base import Method
    from burn.recipes.schema import Recipe

_PLACES = {
    "Backbone": "burn.backbones.base",
    "Evaluation": "burn.api",
    "Interrupted": "burn.core.errors",
    "Method": "burn.methods.base",
    "Recipe": "burn.recipes.schema",
    "Run": "burn.api",
    "UserError": "burn.core.errors",
    "evaluate": "burn.api",
    "load": "burn.api",
    "open_data": "burn.api",
    "pack": "burn.api",
    "pretrain": "burn.api",
    "recipe": "burn.api",
}
__version__: str
__all__ = [
    "Backbone",
    "Evaluation",
    "Interrupted",
    "Method",
    "Recipe",
    "Run",
    "UserError",
    "evaluate",
    "load",
    "open_data",
    "pack",
    "pretrain",
    "recipe",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("burn-ssl")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
