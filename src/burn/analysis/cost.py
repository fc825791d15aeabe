"""What a network costs: parameters, operations and bytes, counted by walking the real network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from burn.backbones import Backbone, BackboneConfig, build_backbone, is_binary
from burn.checkpoint import load_checkpoint
from burn.errors import UserError
from burn.layers import BinaryConv2d
from burn.targets.weights import backbone_from
from burn.types import Precision


@dataclass(frozen=True)
class Cost:
    """Counts for one image.

    binary_parameters: weights that deploy as one bit; float_parameters: all others. binary_macs:
    multiply-accumulates of binary convolutions, which the paper calls BOPs; flops: those of float
    convolutions and linear layers, as the paper counts them. float_bytes: parameters and BN
    statistics in float32; packed_bytes: the binary weights as bits instead, before any folding.
    """

    binary_parameters: int
    float_parameters: int
    binary_macs: int
    flops: int
    float_bytes: int
    packed_bytes: int

    @property
    def ops(self) -> float:
        """BOPs / 64 + FLOPs (paper, section 4, after ReActNet)."""
        return self.binary_macs / 64 + self.flops


def count(backbone: Backbone, image_size: int, num_classes: int) -> Cost:
    """Count a backbone with a linear classifier of `num_classes` outputs (0: none)."""
    network: nn.Module = backbone
    if num_classes:
        network = nn.Sequential(backbone, nn.Linear(backbone.num_features, num_classes))
    macs = {"binary": 0, "float": 0}

    def convolution(module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        kind = "binary" if isinstance(module, BinaryConv2d) else "float"
        macs[kind] += weight[0].numel() * output[0].numel()

    def linear(module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        assert isinstance(module, nn.Linear)
        macs["float"] += module.in_features * output[0].numel()

    hooks = [
        module.register_forward_hook(linear if isinstance(module, nn.Linear) else convolution)
        for module in network.modules()
        if isinstance(module, (BinaryConv2d, nn.Conv2d, nn.Linear))
    ]
    training = network.training
    try:
        with torch.inference_mode():
            network.eval()(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"{backbone.config.name} cannot take {image_size}-pixel images") from error
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    binary = sum(m.weight.numel() for m in network.modules() if isinstance(m, BinaryConv2d))
    parameters = sum(p.numel() for p in network.parameters())
    kept = [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]
    statistics = sum(tensor.numel() for tensor in kept) - parameters
    rest = 4 * (parameters - binary + statistics)
    return Cost(
        binary_parameters=binary,
        float_parameters=parameters - binary,
        binary_macs=macs["binary"],
        flops=macs["float"],
        float_bytes=4 * binary + rest,
        packed_bytes=-(-binary // 8) + rest,
    )


def count_named(
    name: str, image_size: int | None, num_classes: int, width: float | None
) -> tuple[Cost, dict[str, Any]]:
    """Count the network of a name or of a checkpoint; also what was counted, as JSON values.

    image_size defaults to a checkpoint's own, else 224. Raises UserError for a name that is
    neither, and for a width given to a checkpoint.
    """
    about: dict[str, Any] = {"name": name}
    own_size: int = 224
    if Path(name).exists():
        if width is not None:
            raise UserError("--width cannot change a checkpoint")
        checkpoint = load_checkpoint(Path(name))
        backbone = backbone_from(checkpoint)
        try:
            about |= {key: checkpoint.meta[key] for key in ("precision", "stage", "steps")}
            about["recipe"] = checkpoint.meta["recipe"]["name"]
            own_size = int(checkpoint.meta["views"]["size"])
        except (KeyError, TypeError, ValueError) as error:
            message = f"{checkpoint.origin}: its description is damaged: {error}"
            raise UserError(message) from error
    else:
        config = replace(BackboneConfig(name=name), width=1.0 if width is None else width)
        precision = Precision.BINARY if is_binary(name) else Precision.FLOAT
        backbone = build_backbone(config, precision)
    size = own_size if image_size is None else image_size
    if not 1 <= size <= 4096 or not 0 <= num_classes <= 10**7:
        raise UserError("--image-size must be in 1 … 4096 and --classes in 0 … 10,000,000")
    about |= {"image_size": size, "classes": num_classes}
    return count(backbone, size, num_classes), about


def cost_table(cost: Cost, about: dict[str, Any]) -> Table:
    """For a terminal."""
    table = Table(title=", ".join(f"{k} {v}" for k, v in about.items()), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("binary parameters", f"{cost.binary_parameters:,}")
    table.add_row("float parameters", f"{cost.float_parameters:,}")
    table.add_row("binary operations (MACs)", f"{cost.binary_macs:,}")
    table.add_row("float operations (MACs)", f"{cost.flops:,}")
    table.add_row("OPs = binary / 64 + float", f"{cost.ops:,.0f} = {cost.ops / 1e8:.2g}e8")
    table.add_row("size in float32", f"{cost.float_bytes / 1e6:.2f} MB")
    ratio = cost.float_bytes / cost.packed_bytes
    table.add_row("size packed", f"{cost.packed_bytes / 1e6:.2f} MB ({ratio:.1f}× smaller)")
    return table
