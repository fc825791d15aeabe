"""Checks of a run before its first step."""

from __future__ import annotations

import torch
from torch import nn

from burn.backbones.registry import build_backbone
from burn.checkpoints.foreign.weights import Teacher
from burn.core.errors import UserError
from burn.layers import BinaryConv2d
from burn.methods.entries import find_method
from burn.recipes.schema import Recipe
from burn.runtime.distributed import Processes
from burn.training.graphs import why_not_recorded
from burn.training.plan import Machine, RunPlan


def check_shares(recipe: Recipe, processes: Processes) -> None:
    """Check that every process gets the same number of a batch's images, at least two.

    Raises:
        UserError: The recipe's batch size cannot be split like this.
    """
    images, rest = divmod(recipe.batch_size, recipe.accumulate * processes.count)
    if rest or images < 2:
        raise UserError(
            f"a batch of {recipe.batch_size} in {recipe.accumulate} parts cannot be shared by "
            f"{processes.count} processes with at least two images each: change --batch-size, "
            "--accumulate or the number of devices"
        )


def check_gpu_options(plan: RunPlan, machine: Machine, processes: Processes) -> None:
    """Check that `--cuda-graphs` can do what it is asked for.

    Raises:
        UserError: It cannot, on this device or with the other settings.
    """
    if not machine.cuda_graphs:
        return
    recipe = plan.recipe
    why = why_not_recorded(recipe.method, recipe.settings)
    for there_is, what in (
        (processes.device.type != "cuda", "needs a GPU, and this run is on a CPU"),
        (processes.count > 1, f"is for one process, and this run has {processes.count}"),
        (recipe.accumulate > 1, f"needs --accumulate 1 (it is {recipe.accumulate})"),
        (machine.compile, "and --compile exclude each other"),
        (machine.profile, "and --profile exclude each other: replayed steps have no parts"),
        (
            machine.teacher_cache is not None,
            "and --teacher-cache exclude each other: the number of features that are not "
            "cached varies",
        ),
        (why is not None, f"cannot record method {recipe.method}: {why}"),
    ):
        if there_is:
            raise UserError(f"--cuda-graphs {what}; leave --cuda-graphs out")


def smaller_batch(recipe: Recipe, processes: Processes) -> str:
    """Say how many images a device takes at once, and how to make it fewer, if they do not fit."""
    images = recipe.batch_size // recipe.accumulate // processes.count
    text = f"a batch per device of {images} images does not fit; "
    if not find_method(recipe.method).accumulates:
        return text + "give more --devices, or a smaller --batch-size"
    parts = 2 * recipe.accumulate
    if images % 2 or images < 4:
        return text + "give a smaller --batch-size, or smaller views"
    return text + f"begin again with --accumulate {parts} (it is {recipe.accumulate})"


def check_view_size(recipe: Recipe) -> None:
    """Check that views are large enough for the backbone's strides, and that it returns vectors.

    Raises:
        UserError: The backbone cannot take the views, has no pooled features, or reduces the views
            to a single pixel before its last stride.
    """
    network = build_backbone(recipe.backbone, recipe.precisions()[0]).eval()
    name = recipe.backbone.name
    single: list[nn.Module] = []

    def look(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if layer.stride not in (1, (1, 1)) and max(inputs[0].shape[2:]) == 1:
            single.append(layer)

    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, BinaryConv2d)):
            layer.register_forward_pre_hook(look)
    sizes = {view.size for view in recipe.view_configs()}
    for size in sizes:
        try:
            with torch.inference_mode():
                width = network(torch.zeros(1, 3, size, size)).shape[1]
        except (RuntimeError, AssertionError, IndexError) as error:
            raise UserError(f"backbone {name} cannot take views of {size} pixels") from error
        if width != network.num_features:
            raise UserError(f"backbone {name} has no plain pooled features: use another")
        if single:
            # Torch 2.15 also computes a wrong gradient of such a layer in bfloat16 on a CPU.
            raise UserError(
                f"views of {size} pixels shrink to a single pixel before the last stride of "
                f"{name}: use larger views, or smaller strides"
            )


def check_teacher_size(recipe: Recipe, teacher: Teacher, spec: str) -> None:
    """Check that the teacher can take its views and returns a vector for each image.

    Args:
        recipe: The recipe of the run.
        teacher: The teacher.
        spec: Its name for messages.

    Raises:
        UserError: It cannot take views of this size, or has no pooled features.
    """
    size, fixed = recipe.teacher_size or recipe.views.size, teacher.backbone.fixed_size
    try:
        with torch.inference_mode():
            width = teacher.backbone(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1]
    except (RuntimeError, AssertionError, IndexError, UserError) as error:
        hint = f"give --teacher-size {fixed}" if fixed else "give a larger --teacher-size"
        if isinstance(error, UserError) and not fixed:  # timm says which sizes a network takes
            hint = f"{error}; give another --teacher-size"
        raise UserError(f"teacher {spec} cannot take views of {size} pixels: {hint}") from error
    if width != teacher.backbone.num_features:
        raise UserError(f"teacher {spec} has no plain pooled features: use another")
