"""BURN: 1-bit vision backbones, pretrained without labels.

    import burn

    run = burn.pretrain("burn_small", data="photos/", teacher="lite0", out="runs/student")
    results = burn.evaluate("linear", run.backbone, train="photos/train", test="photos/val")
    burn.pack(run.backbone, "student.bnn", head=results.classifier)
    tuned = burn.finetune(run.out, train="photos/train", test="photos/val", out="runs/tuned")
    burn.pack(tuned.out, "tuned.bnn")

`register_method`, `register_backbone`, `register_protocol` and `register_recipe` add your own
parts.
Names are imported on first use, so that `import burn` itself is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burn.api import (
        Evaluation,
        Run,
        Tuned,
        evaluate,
        finetune,
        load,
        open_data,
        pack,
        pretrain,
        recipe,
    )
    from burn.backbones.base import Backbone
    from burn.backbones.config import BackboneConfig
    from burn.backbones.entries import register_backbone
    from burn.checkpoints.foreign.weights import Teacher
    from burn.core.errors import Interrupted, UserError
    from burn.core.types import Batch, Part, Precision
    from burn.data.view_config import ViewConfig
    from burn.evaluation.cache import plain_features
    from burn.evaluation.context import EvaluationContext
    from burn.evaluation.entries import register_protocol
    from burn.methods.base import Method, StepOutput
    from burn.methods.registry import register_method
    from burn.methods.shared.frozen import FrozenTarget
    from burn.recipes.registry import register_recipe
    from burn.recipes.schema import Recipe

_PLACES = {
    "Backbone": "burn.backbones.base",
    "BackboneConfig": "burn.backbones.config",
    "Batch": "burn.core.types",
    "Evaluation": "burn.api",
    "EvaluationContext": "burn.evaluation.context",
    "FrozenTarget": "burn.methods.shared.frozen",
    "Interrupted": "burn.core.errors",
    "Method": "burn.methods.base",
    "Part": "burn.core.types",
    "Precision": "burn.core.types",
    "Recipe": "burn.recipes.schema",
    "Run": "burn.api",
    "StepOutput": "burn.methods.base",
    "Teacher": "burn.checkpoints.foreign.weights",
    "Tuned": "burn.api",
    "UserError": "burn.core.errors",
    "ViewConfig": "burn.data.view_config",
    "evaluate": "burn.api",
    "finetune": "burn.api",
    "load": "burn.api",
    "open_data": "burn.api",
    "pack": "burn.api",
    "plain_features": "burn.evaluation.cache",
    "pretrain": "burn.api",
    "recipe": "burn.api",
    "register_backbone": "burn.backbones.entries",
    "register_method": "burn.methods.registry",
    "register_protocol": "burn.evaluation.entries",
    "register_recipe": "burn.recipes.registry",
}
__version__: str
__all__ = [
    "Backbone",
    "BackboneConfig",
    "Batch",
    "Evaluation",
    "EvaluationContext",
    "FrozenTarget",
    "Interrupted",
    "Method",
    "Part",
    "Precision",
    "Recipe",
    "Run",
    "StepOutput",
    "Teacher",
    "Tuned",
    "UserError",
    "ViewConfig",
    "evaluate",
    "finetune",
    "load",
    "open_data",
    "pack",
    "plain_features",
    "pretrain",
    "recipe",
    "register_backbone",
    "register_method",
    "register_protocol",
    "register_recipe",
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
