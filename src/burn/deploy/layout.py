"""Contents of a packed file (docs/project/pack-format.md): program, tensors, and size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burn.backbones.config import BackboneConfig
from burn.backbones.plan import REACTNETS, ReActNetPlan, reactnet_plan
from burn.deploy.layers import (
    Array,
    BinaryConvolution,
    BranchedConvolution,
    Convolution,
    GatedConvolution,
    GlobalMean,
    Layer,
    Linear,
    Matrix,
    Rounded,
)

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
    """Description of a tensor in a packed file.

    Attributes:
        dtype: Its dtype as safetensors names it.
        shape: Its shape.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of its values in bytes."""
        return int(np.prod(self.shape)) * ITEM_BYTES[self.dtype]


def parts(layer: Layer) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return a layer's kind and settings as the program has them, and its float32 tensors."""
    if isinstance(layer, Convolution):
        constants = {"weight": layer.weight, "bias": layer.bias, "padding": layer.padding}
        return {"kind": "convolution", "stride": layer.stride}, constants
    if isinstance(layer, BinaryConvolution):
        names = ("threshold", "multiplier", "bias", "slope")
        kind = {"kind": "binary_convolution", "stride": layer.stride, "shortcut": layer.shortcut}
        return kind, {name: getattr(layer, name) for name in names}
    if isinstance(layer, GatedConvolution):
        return _gated(layer)
    if isinstance(layer, BranchedConvolution):
        kind = {"kind": "branched_convolution", "stride": layer.stride}
        matrices = {name: getattr(layer, name) for name in ("first", "narrow", "widen", "last")}
        tensors = {"padding": layer.padding, **_of_matrices(matrices)}
        return {**kind, "second_stride": layer.second_stride}, tensors
    if isinstance(layer, GlobalMean):
        if layer.scale is None:
            return {"kind": "global_mean"}, {"bias": layer.bias}
        return {"kind": "global_mean", "scaled": True}, {"bias": layer.bias, "scale": layer.scale}
    return {"kind": "linear", "relu": layer.relu}, {"weight": layer.weight, "bias": layer.bias}


def _gated(layer: GatedConvolution) -> tuple[dict[str, Any], dict[str, Array]]:
    names = ("stride", "repeat", "groups", "experts", "gate", "product", "shortcut")
    fields = {name: getattr(layer, name) for name in names}
    vectors = ("threshold", "multiplier", "bias", "inner_slope", "scale", "shift", "slope")
    tensors = {name: getattr(layer, name) for name in vectors}
    tensors |= _of_matrices({"choice": layer.choice})
    for name in ("mix", "shortcut_slope"):
        if getattr(layer, name) is not None:
            tensors[name] = getattr(layer, name)
    for part, one in _rounded_of(layer).items():
        tensors |= {f"{part}.scale": one.scale, f"{part}.bias": one.bias}
    for index, side in enumerate(layer.sides):
        tensors |= {
            f"side.{index}.{key}": getattr(side, key) for key in ("weight", "bias", "slope")
        }
    return {"kind": "gated_convolution", **fields, "side": len(layer.sides)}, tensors


def _rounded_of(layer: GatedConvolution) -> dict[str, Rounded]:
    gate = {"gate.down": layer.gate_down, "gate.up": layer.gate_up}
    return {name: one for name, one in gate.items() if one is not None}


def _of_matrices(matrices: Mapping[str, Matrix | None]) -> dict[str, Array]:
    found = {}
    for name, matrix in matrices.items():
        if matrix is not None:
            found |= {f"{name}.weight": matrix.weight, f"{name}.bias": matrix.bias}
    return found


def integers(layer: Layer) -> dict[str, Array]:
    """Return a layer's tensors that are not float32: weights as bits, and weights of 16 bits."""
    if not isinstance(layer, BinaryConvolution | GatedConvolution):
        return {}
    found = {"weight": np.packbits(layer.weight > 0, axis=-1, bitorder="little")}
    if isinstance(layer, GatedConvolution):
        found |= {f"{part}.weight": one.weight for part, one in _rounded_of(layer).items()}
    return found


def tensors_of(layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Return the description of every tensor by its name."""
    found: dict[str, Tensor] = {}
    for layer in layers:
        for name, constant in parts(layer)[1].items():
            found[f"{layer.name}.{name}"] = Tensor("F32", constant.shape)
        if isinstance(layer, BinaryConvolution | GatedConvolution):
            *outer, channels = layer.weight.shape
            found[f"{layer.name}.weight"] = Tensor("U8", (*outer, -(-channels // 8)))
        if isinstance(layer, GatedConvolution):
            for part, one in _rounded_of(layer).items():
                found[f"{layer.name}.{part}.weight"] = Tensor("I16", one.weight.shape)
    return found


def program_of(
    layers: Sequence[Layer],
    features: str,
    classes: Sequence[str],
    image: tuple[int, int],
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the program as JSON values.

    Args:
        layers: The layers in the order in which they run.
        features: Name of the layer that gives the features.
        classes: Names of the outputs; none without a classifier.
        image: Pixels of the short side after resizing, and of the side of the crop.
        origin: Where the network comes from, as JSON values.
    """
    format = FORMAT
    if any(isinstance(one, GatedConvolution | BranchedConvolution) for one in layers):
        format = FORMAT_OF_GATES
    if any(isinstance(one, GlobalMean) and one.scale is not None for one in layers):
        format = FORMAT_OF_SCALES
    if any(isinstance(one, GatedConvolution) and one.sides for one in layers):
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
        fields = parts(layer)[0]
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

    It needs no network, unlike `layers_bytes`.

    Args:
        config: Settings of the backbone.
        num_classes: Number of outputs of a linear classifier, 0 for none.

    Returns:
        The size in bytes, within some 150 bytes, or None for another network, or one that is too
        large for the format.
    """
    if config.name not in REACTNETS:
        return None
    plan = reactnet_plan(config)
    if plan.num_features > MOST_CHANNELS:
        return None
    return layers_bytes(_layers(plan), plan.num_features, num_classes)


def layers_bytes(layers: Sequence[Layer], num_features: int, num_classes: int = 0) -> int | None:
    """Return the size of the file that `burn pack` writes of folded layers.

    What is unknown here is given the size that it usually has: classes are named by numbers. The
    file's origin, of which `burn pack` writes 150 bytes or so, is left out.

    Args:
        layers: The layers without a classifier; of their tensors only the shapes are read.
        num_features: Number of features of an image.
        num_classes: Number of outputs of a linear classifier, 0 for none.

    Returns:
        The size in bytes, or None if the format has no place for so many classes.
    """
    features = layers[-1].name
    classes = [str(i) for i in range(num_classes)] if num_classes <= MOST_NAMES else []
    if num_classes and not 0 < names_length(classes) <= MOST_NAMES:
        return None
    if num_classes:
        head = Linear("head", False, _zeros(num_classes, num_features), _zeros(num_classes))
        layers = [*layers, head]
    program = program_of(layers, features, classes, (256, 224), {})
    return file_bytes(program, tensors_of(layers))


def _layers(plan: ReActNetPlan) -> list[Layer]:
    """Return the layers that `fold` would make, with zeros for their constants."""
    stem, features = plan.stem_channels, plan.num_features
    layers: list[Layer] = [
        Convolution("stem", plan.stem_stride, _zeros(stem, 3, 3, 3), _zeros(stem), _zeros(3))
    ]
    for part in plan.convolutions:
        out = part.out_channels
        weight = _zeros(out, part.kernel, part.kernel, part.in_channels)
        layers.append(
            BinaryConvolution(
                part.name,
                part.stride,
                True,
                weight,
                _zeros(part.in_channels),
                multiplier=_zeros(out),
                bias=_zeros(out),
                slope=_zeros(out),
            )
        )
    scale = _zeros(features) if plan.feature_norm else None
    layers.append(GlobalMean("pool", _zeros(features), scale))
    if plan.feature_layer:
        layers.append(Linear("feature_layer", True, _zeros(features, features), _zeros(features)))
    return layers


def _zeros(*shape: int) -> Array:
    """Return zeros of any shape that take no memory."""
    return np.broadcast_to(np.zeros(()), shape)
