"""Counts what a network costs by running it on one image."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from burn.backbones.base import Backbone
from burn.backbones.plan import REACTNETS
from burn.backbones.registry import build_backbone, is_binary
from burn.core.errors import UserError
from burn.core.types import Precision
from burn.costs.cost import Cost
from burn.deploy.layout import layers_bytes, predicted_bytes
from burn.deploy.pack import folded, unpackable
from burn.layers import BinaryConv2d


def count(backbone: Backbone, image_size: int, num_classes: int) -> Cost:
    """Count a backbone with a linear classifier, or without one for 0 classes.

    UserError is raised if the network cannot take images of this size.
    """
    network: nn.Module = backbone
    if num_classes:
        network = nn.Sequential(backbone, nn.Linear(backbone.num_features, num_classes))
    macs = {"binary": 0, "float": 0}

    def add(module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        if isinstance(module, BinaryConv2d):
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
    if unpackable(backbone):
        with torch.random.fork_rng(devices=[]):
            backbone = build_backbone(config, Precision.BINARY)
        if unpackable(backbone):
            return None
    return layers_bytes(folded(backbone), backbone.num_features, num_classes)
