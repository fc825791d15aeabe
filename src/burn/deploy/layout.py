"""Contents of a packed file (docs/project/pack-format.md): program, tensors, and size.

Layers are those of `burn_engine.format`. Until `pack.encode` makes a file's tensors of them, their
constants are float64 and not rounded, and the weight of a binary layer is a number, not a bit: the
last axis is as long as the inputs are many.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burn.backbones.config import BackboneConfig
from burn.backbones.plan import REACTNETS, ReActNetPlan, reactnet_plan
from burn_engine.format import (
    BinaryConvolution,
    BranchedConvolution,
    Convolution,
    GatedConvolution,
    GlobalMean,
    Layer,
    Linear,
)

Array = np.ndarray[Any, np.dtype[Any]]

FORMAT = 1
FORMAT_OF_GATES = 2  # of a program with kinds that format 1 does not have
FORMAT_OF_SCALES = 3  # of a program whose global_mean has a scale
FORMAT_OF_SIDES = 4  # of a program with convolutions in shortcuts, whose weights are float32
MOST_CHANNELS = 4096
MOST_NAMES = 5_000_000  # characters of all classes' names, see `names_length`
LARGEST_SIDE = 4096  # pixels, the largest size that the program's `image` may have
ITEM_BYTES = {"F32": 4, "U8": 1, "I16": 2}


@dataclass(frozen=True)
class Tensor:
    """Description of a tensor in a packed file; `dtype` is as safetensors names it."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * ITEM_BYTES[self.dtype]


def _settings(layer: Layer) -> dict[str, Any]:
    settings: dict[str, Any] = {"kind": layer.kind}
    for field, value in vars(layer).items():
        if field != "name" and isinstance(value, int | str):
            settings["gate" if field == "gate_of" else field] = value
    if isinstance(layer, GatedConvolution):
        settings["side"] = len(layer.side)
    if isinstance(layer, GlobalMean) and layer.scale is not None:
        settings["scaled"] = True
    return settings


def stored(layer: Layer) -> Iterator[tuple[str, Tensor, Array]]:
    """Yield each tensor of a layer: its name in the file, its description, and its values here."""
    # The bias last: where a batch normalization has diverged, an error names its factor.
    for part, values in sorted(layer.tensors().items(), key=lambda item: item[0] == "bias"):
        name = f"{layer.name}.{part}"
        if values.dtype == np.int16:
            yield name, Tensor("I16", values.shape), values
        elif part == "weight" and isinstance(layer, BinaryConvolution | GatedConvolution):
            *outer, channels = values.shape
            yield name, Tensor("U8", (*outer, -(-channels // 8))), values
        else:
            yield name, Tensor("F32", values.shape), values


def tensors_of(layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Return the description of every tensor by its name."""
    return {name: tensor for layer in layers for name, tensor, _ in stored(layer)}


def program_of(
    layers: Sequence[Layer],
    features: str,
    classes: Sequence[str],
    image: tuple[int, int],
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the program as JSON values.

    Its layers are in the order in which they run; `features` is the name of the one that gives the
    features, and `image` has the pixels of the short side after resizing, and of the side of the
    crop.
    """
    format = FORMAT
    if any(isinstance(each, GatedConvolution | BranchedConvolution) for each in layers):
        format = FORMAT_OF_GATES
    if any(isinstance(each, GlobalMean) and each.scale is not None for each in layers):
        format = FORMAT_OF_SCALES
    if any(isinstance(each, GatedConvolution) and each.side for each in layers):
        format = FORMAT_OF_SIDES
    program: dict[str, Any] = {"format": format, "features": features}
    if classes:
        program["classes"] = list(classes)
    if image[0] <= LARGEST_SIDE:
        program["image"] = {"resize": image[0], "size": image[1]}
    program["origin"] = dict(origin)
    before = "image"
    program["layers"] = []
    for layer in layers:
        fields = _settings(layer)
        if isinstance(layer, GlobalMean) and format >= FORMAT_OF_SCALES:
            fields = {"scaled": False, **fields}  # it must say so
        program["layers"].append({**fields, "name": layer.name, "input": before})
        before = layer.name
    return program


def names_length(classes: Sequence[str]) -> int:
    """Return the length of the classes' names in the header, quotes and commas included."""
    return sum(len(name) + 8 for name in classes)


def file_bytes(program: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """Return the size in bytes of the file that safetensors writes of these."""
    header: dict[str, Any] = {"__metadata__": {"bnn": json.dumps(program)}}
    end = 0
    in_order = sorted(tensors.items(), key=lambda item: (-ITEM_BYTES[item[1].dtype], item[0]))
    for name, tensor in in_order:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())
    return 8 + -(-length // 8) * 8 + end


def predicted_bytes(config: BackboneConfig, num_classes: int = 0) -> int | None:
    """Return the size of the file that `burn pack` writes of a ReActNet with binary weights.

    It needs no network, unlike `layers_bytes`, and is right to within some 150 bytes. It is None
    for another network, or one that is too large for the format. 0 classes are no classifier.
    """
    if config.name not in REACTNETS:
        return None
    plan = reactnet_plan(config)
    if plan.num_features > MOST_CHANNELS:
        return None
    return layers_bytes(_layers(plan), plan.num_features, num_classes)


def layers_bytes(layers: Sequence[Layer], num_features: int, num_classes: int = 0) -> int | None:
    """Return the size of the file that `burn pack` writes of folded layers without a classifier.

    Only the shapes are read. Classes, of which 0 are no classifier, are named by numbers here, and
    the file's origin, some 150 bytes, is left out. The size is None if the format has no place for
    so many classes.
    """
    features = layers[-1].name
    classes = [str(i) for i in range(num_classes)] if num_classes <= MOST_NAMES else []
    if num_classes and not 0 < names_length(classes) <= MOST_NAMES:
        return None
    if num_classes:
        weight, bias = _zeros(num_classes, num_features), _zeros(num_classes)
        layers = [*layers, Linear(name="head", relu=False, weight=weight, bias=bias)]
    program = program_of(layers, features, classes, (256, 224), {})
    return file_bytes(program, tensors_of(layers))


def _layers(plan: ReActNetPlan) -> list[Layer]:
    """Return the layers that `fold` would make, with zeros for their constants."""
    stem, features = plan.stem_channels, plan.num_features
    weight, bias, stride = _zeros(stem, 3, 3, 3), _zeros(stem), plan.stem_stride
    layers: list[Layer] = [
        Convolution(name="stem", stride=stride, weight=weight, bias=bias, padding=_zeros(3))
    ]
    for part in plan.convolutions:
        out = part.out_channels
        layers.append(
            BinaryConvolution(
                name=part.name,
                stride=part.stride,
                shortcut=True,
                weight=_zeros(out, part.kernel, part.kernel, part.in_channels),
                threshold=_zeros(part.in_channels),
                multiplier=_zeros(out),
                bias=_zeros(out),
                slope=_zeros(out),
            )
        )
    scale = _zeros(features) if plan.feature_norm else None
    layers.append(GlobalMean(name="pool", bias=_zeros(features), scale=scale))
    if plan.feature_layer:
        weight, bias = _zeros(features, features), _zeros(features)
        layers.append(Linear(name="feature_layer", relu=True, weight=weight, bias=bias))
    return layers


def _zeros(*shape: int) -> Array:
    """Return zeros of any shape that take no memory."""
    return np.broadcast_to(np.zeros(()), shape)
