"""What a network costs, counted by its plan or by running it on one image."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from burn.backbones.config import BackboneConfig
from burn.backbones.entries import BACKBONES, is_binary
from burn.backbones.fit import problems
from burn.backbones.plan import REACTNETS, parameter_shapes, reactnet_plan, state_shapes
from burn.backbones.registry import build_backbone, check_backbone
from burn.checkpoints.native import Description, load_checkpoint, read_description
from burn.checkpoints.pretrained import names_checkpoint
from burn.core.errors import UserError, printable
from burn.core.plugins import require_plugins
from burn.core.settings import from_plain
from burn.core.types import Precision
from burn.deploy.layout import layers_bytes, predicted_bytes
from burn.runtime.bounds import require_within

if TYPE_CHECKING:
    from burn.backbones.base import Backbone

_LARGEST_SIDE = 4096  # pixels


@dataclass(frozen=True)
class Cost:
    """Counts for one image.

    `packed_bytes` is the size of the file that `burn pack` writes once the weights are binary,
    within some 150 bytes, or None if it cannot pack the network.
    """

    binary_parameters: int  # weights that deploy as one bit
    float_parameters: int  # all others
    binary_macs: int  # multiply-accumulates of binary convolutions, which the paper calls BOPs
    flops: int  # those of float convolutions and linear layers, as the paper counts them
    float_bytes: int  # the parameters in float32, as `burn pack` counts them
    packed_bytes: int | None

    @property
    def ops(self) -> float:
        """BOPs / 64 + FLOPs (paper, section 4, after ReActNet)."""
        return self.binary_macs / 64 + self.flops


def count_reactnet(config: BackboneConfig, image_size: int, num_classes: int) -> Cost:
    """Count a ReActNet by its plan; `count` gives the same numbers for the network.

    UserError is raised if the settings are out of range.
    """
    check_backbone(config)
    plan = reactnet_plan(config)
    side = -(-image_size // plan.stem_stride)
    flops = 27 * plan.stem_channels * side**2
    binary_parameters = binary_macs = 0
    for part in plan.convolutions:
        side = -(-side // part.stride)
        weights = part.kernel**2 * part.in_channels * part.out_channels
        binary_parameters += weights
        binary_macs += weights * side**2
    parameters = sum(math.prod(shape) for shape in parameter_shapes(plan).values())
    if plan.feature_layer:
        flops += plan.num_features**2
    flops += plan.num_features * num_classes
    parameters += (plan.num_features + 1) * num_classes
    return Cost(
        binary_parameters=binary_parameters,
        float_parameters=parameters - binary_parameters,
        binary_macs=binary_macs,
        flops=flops,
        float_bytes=4 * parameters,
        packed_bytes=predicted_bytes(config, num_classes),
    )


def count(backbone: Backbone, image_size: int, num_classes: int) -> Cost:
    """Count a backbone with a linear classifier, or without one for 0 classes, by running it.

    UserError is raised if the network cannot take images of this size.
    """
    import torch
    from torch import nn

    from burn.layers import BinaryConv2d

    network: nn.Module = backbone
    if num_classes:
        network = nn.Sequential(backbone, nn.Linear(backbone.num_features, num_classes))
    macs = {"binary": 0, "float": 0}

    def add(module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        if isinstance(module, BinaryConv2d):  # whose weight may be several experts'
            macs["binary"] += module.fan_in * output[0].numel()
        else:
            assert isinstance(module.weight, torch.Tensor)
            macs["float"] += module.weight[0].numel() * output[0].numel()

    hooks = [
        module.register_forward_hook(add)
        for module in network.modules()
        if isinstance(module, (BinaryConv2d, nn.Conv2d, nn.Linear))
    ]
    training = network.training
    try:
        with torch.inference_mode():
            network.eval()(torch.zeros(1, 3, image_size, image_size))
    except Exception as error:  # networks raise many kinds of errors for an unsuitable size
        raise UserError(f"{backbone.config.name} cannot take {image_size}-pixel images") from error
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    binary = sum(m.weight.numel() for m in network.modules() if isinstance(m, BinaryConv2d))
    parameters = sum(p.numel() for p in network.parameters())
    return Cost(
        binary_parameters=binary,
        float_parameters=parameters - binary,
        binary_macs=macs["binary"],
        flops=macs["float"],
        float_bytes=4 * parameters,
        packed_bytes=_packed_bytes(backbone, num_classes),
    )


def _packed_bytes(backbone: Backbone, num_classes: int) -> int | None:
    config = backbone.config
    if config.name in REACTNETS:
        return predicted_bytes(config, num_classes)
    if not is_binary(config.name):
        return None
    import torch

    from burn.deploy.pack import folded, unpackable

    if unpackable(backbone):
        with torch.random.fork_rng(devices=[]):
            backbone = build_backbone(config, Precision.BINARY)
        if unpackable(backbone):
            return None
    return layers_bytes(folded(backbone), backbone.num_features, num_classes)


def _described(description: Description) -> tuple[BackboneConfig, dict[str, Any], int]:
    """Return a checkpoint's network, its description as JSON values, and its images' size.

    The description may come from anyone. Raises UserError if its values are impossible, or if the
    weights of a ReActNet do not fit its settings.
    """
    meta = description.meta
    require_plugins(meta.get("plugins"), "backbone", BACKBONES, description.origin)
    try:
        config = from_plain(BackboneConfig, meta["backbone"])
        check_backbone(config)
        precision = Precision(meta["precision"])
        recipe = printable(str(meta["recipe"]["name"])[:80])
        stage, steps = _whole("stage", meta["stage"]), _whole("steps", meta["steps"])
        size = _whole("size of its views", meta["views"]["size"])
        if not 1 <= size <= _LARGEST_SIDE:
            raise ValueError(f"its views have {size} pixels")
        expected = state_shapes(reactnet_plan(config)) if config.name in REACTNETS else None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{description.origin}: its description is damaged: {error}") from error
    if expected is not None:
        prefix = "backbone."
        shapes = {
            name.removeprefix(prefix): shape
            for name, shape in description.shapes.items()
            if name.startswith(prefix)
        }
        misfit = problems(shapes, expected, [name for name in shapes if name not in expected])
        if misfit:
            raise UserError(f"{description.origin} does not fit the architecture: it {misfit}")
    about = {"precision": precision.value, "stage": stage, "steps": steps, "recipe": recipe}
    return config, about, size


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError(f"{name}: expected a whole number, got {str(value)[:40]}")
    return value


def count_named(
    name: str, path: Path, image_size: int | None, num_classes: int | None, width: float | None
) -> tuple[Cost, dict[str, Any]]:
    """Count the network of a name or of a checkpoint.

    A ReActNet is counted without PyTorch, and without reading a checkpoint's weights. If `path`,
    the name as a path, exists, its checkpoint or run is counted. For None the image size in pixels
    and the number of classes are the checkpoint's, or 224 and 0, which is no classifier. The second
    value describes what was counted, as JSON values.

    Raises:
        UserError: The name is neither a network nor a checkpoint, a width is given for a
            checkpoint, or a number is out of range.
    """
    about: dict[str, Any] = {"name": name}
    own_size, own_classes = 224, 0
    is_checkpoint = names_checkpoint(path)
    if is_checkpoint:
        if width is not None:
            raise UserError("--width cannot change a checkpoint")
        description = read_description(path)
        config, described, own_size = _described(description)
        names = description.meta.get("classes")
        own_classes = len(names) if isinstance(names, list) else 0
        about |= described
    else:
        config = replace(BackboneConfig(name=name), width=1.0 if width is None else width)
    network = None
    if config.name not in REACTNETS:
        if is_checkpoint:
            from burn.checkpoints.foreign.weights import backbone_from

            network = backbone_from(load_checkpoint(path))
        else:
            precision = Precision.BINARY if is_binary(config.name) else Precision.FLOAT
            network = build_backbone(config, precision)
        own_size = network.fixed_size or own_size
    size = own_size if image_size is None else image_size
    if num_classes is None:
        num_classes = own_classes
    require_within(1, _LARGEST_SIDE, image_size=size)
    require_within(0, 10**7, classes=num_classes)
    about |= {"image_size": size, "classes": num_classes}
    if network is None:
        return count_reactnet(config, size, num_classes), about
    return count(network, size, num_classes), about


def cost_title(about: dict[str, Any]) -> str:
    """Describe what was counted in one line; a table's title would be wrapped to its width."""
    return printable(", ".join(f"{k.replace('_', ' ')} {v}" for k, v in about.items()))


def cost_table(cost: Cost) -> Table:
    """Return the counts as a table for a terminal."""
    table = Table("", Column(justify="right"), show_header=False)
    table.add_row("binary parameters", f"{cost.binary_parameters:,}")
    table.add_row("float parameters", f"{cost.float_parameters:,}")
    table.add_row("binary operations (MACs)", f"{cost.binary_macs:,}")
    table.add_row("float operations (MACs)", f"{cost.flops:,}")
    table.add_row("OPs = binary / 64 + float", f"{cost.ops:,.0f} = {cost.ops / 1e8:.2g}e8")
    table.add_row("size in float32", f"{cost.float_bytes / 1e6:.2f} MB")
    if cost.packed_bytes is not None:
        ratio = cost.float_bytes / cost.packed_bytes
        table.add_row("size packed", f"{cost.packed_bytes / 1e6:.2f} MB ({ratio:.1f}× smaller)")
    return table
