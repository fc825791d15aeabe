"""Checks of what a plugin's method declares and returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from burn.core.errors import UserError, listed, shortened
from burn.core.types import Part
from burn.methods.base import Method, StepOutput
from burn.methods.shared.frozen import FrozenTarget

_MOST_VIEWS = 64


def check_method(name: str, method: Method, *, taught: bool) -> None:
    """Raise UserError unless a method does what `Method` says before its first step.

    `taught` says whether it learns from a teacher.
    """
    views = getattr(method, "num_views", None)
    if isinstance(views, bool) or not isinstance(views, int) or not 1 <= views <= _MOST_VIEWS:
        raise UserError(
            f"method {name}: set num_views, its number of views of an image, 1 to {_MOST_VIEWS}"
        )
    if not 0 <= method.num_taught <= views:
        raise UserError(f"method {name}: num_taught must be in 0 … {views}, its num_views")
    if taught:
        num_targets = sum(isinstance(module, FrozenTarget) for module in method.modules())
        if num_targets != 1 or not method.num_taught:
            raise UserError(
                f"method {name}: hold the teacher as one burn.FrozenTarget, and set num_taught, "
                "the number of views that the teacher sees"
            )
    parts = method.parts()
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, Part) for part in parts):
        raise UserError(f"method {name}: parts() must return a list of burn.Part")
    if not any(part.module is method.backbone for part in parts):
        raise UserError(
            f"method {name}: parts() lacks the backbone; it has {listed([p.name for p in parts])}"
        )
    if not any(part.trained for part in parts):
        raise UserError(f"method {name}: parts() trains nothing: give a part with trained=True")
    covered = {id(p) for part in parts for p in part.module.parameters()}
    uncovered = [label for label, p in method.named_parameters() if id(p) not in covered]
    if uncovered:
        raise UserError(
            f"method {name}: parameter {uncovered[0]} is in no part that parts() returns"
        )
    weights = method.weights()
    lost = [key for key in method.backbone.state_dict() if f"backbone.{key}" not in weights]
    if lost:
        raise UserError(f"method {name}: weights() lacks backbone.{lost[0]}, which would be lost")


def check_output(name: str, method: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Raise UserError unless a method returned a `StepOutput` of the right shapes and types.

    With the name bound, it is a forward hook; `inputs` are a `Batch` and the progress.
    """
    if not isinstance(output, StepOutput):
        raise UserError(
            f"method {name}: forward must return a burn.StepOutput, got a {type(output).__name__}"
        )
    if not isinstance(output.terms, Mapping):
        raise UserError(f"method {name}: terms of the StepOutput must be a dict of tensors")
    for what, value in {"loss": output.loss, **output.terms}.items():
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise UserError(f"method {name}: {what} must be a scalar tensor, got {shortened(got)}")
        if value.is_complex():
            raise UserError(f"method {name}: {what} must be a real number, got {value.dtype}")
    expected = (len(inputs[0].indices), method.backbone.num_features)
    shape = tuple(output.features.shape) if isinstance(output.features, Tensor) else None
    if shape != expected:
        got = type(output.features).__name__ if shape is None else f"shape {shape}"
        raise UserError(
            f"method {name}: features must be the backbone's, of shape {expected}, got {got}"
        )
    if output.features.requires_grad or not output.features.is_floating_point():
        raise UserError(f"method {name}: features must be detached and of a floating-point type")
