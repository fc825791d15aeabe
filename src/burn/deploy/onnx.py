"""`burn export OUT.onnx`: a network in float, for other runtimes.

A chain of binary layers, BNext and the expert network are exported folded (`fold.py`,
`fold_gated.py`): with one constant per channel where the network has BN, scales and shifts, as one
would write the graph by hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from burn.backbones.base import Backbone
from burn.checkpoints.foreign.weights import backbone_from
from burn.checkpoints.native import load_checkpoint
from burn.core.errors import UserError
from burn.core.files import write_beside
from burn.core.types import Precision
from burn.deploy.fold import fold
from burn.deploy.fold_gated import (
    features_rounded_and_unrounded,
    fold_gated,
    is_gated,
    precision_of,
)
from burn.deploy.layout import Array
from burn.deploy.named import check_onnx_export
from burn.deploy.onnx_gated import Branched, Gated, Stem, constant, linear, map_constant
from burn.deploy.shared import (
    LEAST_COSINE,
    agree,
    cosines,
    linear_classifier,
    sample_images,
    survives_rounding,
    views_of,
)
from burn_engine.format import (
    BinaryConvolution,
    BranchedConvolution,
    Convolution,
    GatedConvolution,
    GlobalMean,
    Layer,
    Linear,
)

_MANY_PIXELS = 512**2  # in one image; of larger images fewer are compared


@dataclass(frozen=True)
class ExportedOnnx:
    """Summary of an export to ONNX.

    Attributes:
        image_size: Side of its images in pixels.
        images: Number of images on which it was compared with the network, whose gates' weights
            were rounded as in the file.
        cosine: Smallest cosine between the features of these two. Where an argument of a sign is
            nearly 0, rounding turns it, so single images of a right file are below 0.999.
        median: Median of these cosines.
        left_out: Parts of the checkpoint that are neither backbone nor linear classifier.
    """

    bytes: int
    image_size: int
    outputs: tuple[str, ...]
    images: int
    cosine: float
    median: float
    left_out: tuple[str, ...]


def export_onnx(checkpoint: Path, out: Path, image_size: int | None = None) -> ExportedOnnx:
    """Write the network of a checkpoint, or of a run, as an ONNX file.

    The input `images` is float32 (batch, 3, size, size) on the scale 0 to 1 with any batch; the
    size in pixels is by default that of the checkpoint's views. The outputs are `features` (batch,
    features), and `scores` (batch, classes) where the checkpoint has a linear classifier. The file
    is run and compared with the network before it gets its name.

    Raises:
        UserError: The network cannot be exported, or file and network disagree. Nothing is written
            then.
    """
    check_onnx_export(checkpoint, out, image_size)
    held = load_checkpoint(checkpoint)
    backbone = backbone_from(held)
    if is_gated(backbone) and precision_of(backbone) == Precision.BINARY_ACTIVATIONS:
        raise UserError(
            f"{held.origin} cannot be exported: its weights are not binary: finish stage 2 first"
        )
    size = image_size or backbone.fixed_size or views_of(held).size
    if backbone.fixed_size not in (None, size):
        raise UserError(f"--image-size {size}: this network needs {backbone.fixed_size} pixels")
    classifier = linear_classifier(held, backbone.num_features)
    network = _Network(backbone, classifier).eval()
    names = ("features", "scores") if classifier else ("features",)
    images = sample_images(size)
    images = images[: max(2, len(images) * _MANY_PIXELS // size**2)].float() / 255
    agreement = np.zeros(0)

    def write(beside: Path) -> None:
        nonlocal agreement
        _export(network, images[:2], names, beside, held.origin)
        agreement = _verify(beside, backbone, classifier, images, held.origin)

    try:
        write_beside(out, write, new=True)
    except (OSError, RuntimeError) as error:  # a full disk, too little memory
        said = error.strerror if isinstance(error, OSError) else None
        reason = said or str(error).strip().partition("\n")[0]
        raise UserError(f"{out} cannot be written: {reason}") from error
    parts = {name.partition(".")[0] for name in held.weights} - {"backbone"}
    left_out = tuple(sorted(parts - {"classifier"} if classifier else parts))
    least, median = (round(float(value), 6) for value in (agreement.min(), np.median(agreement)))
    return ExportedOnnx(out.stat().st_size, size, names, len(images), least, median, left_out)


class _Network(nn.Module):
    """Network from images (batch, 3, size, size) to features, and scores with a classifier."""

    def __init__(self, backbone: Backbone, classifier: nn.Linear | None) -> None:
        super().__init__()
        self.backbone = _folded(backbone) or backbone.to(
            memory_format=torch.contiguous_format  # type: ignore[call-overload]
        )
        self.classifier = classifier

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.backbone(images)
        if self.classifier is None:
            return (features,)
        return features, self.classifier(features)


def _folded(backbone: Backbone) -> nn.Sequential | None:
    """Return the folded network, or None for a network that cannot be folded."""
    chain = backbone.chain()
    if chain is not None:
        signs = chain.precision != Precision.FLOAT
        return nn.Sequential(*(_module(layer, signs) for layer in fold(backbone)))
    if is_gated(backbone) and precision_of(backbone) == Precision.BINARY:
        return nn.Sequential(*(_module(layer, True) for layer in fold_gated(backbone)))
    return None


def _module(layer: Layer, signs: bool) -> nn.Module:
    if isinstance(layer, Convolution):
        return Stem(layer, layer.padding, layer.stride)
    if isinstance(layer, BinaryConvolution):
        return _SignConvolution(layer, signs)
    if isinstance(layer, GlobalMean):
        return _Mean(layer)
    if isinstance(layer, GatedConvolution):
        return Gated(layer)
    if isinstance(layer, BranchedConvolution):
        return Branched(layer)
    assert isinstance(layer, Linear)
    return nn.Sequential(linear(layer), nn.ReLU()) if layer.relu else linear(layer)


class _SignConvolution(nn.Module):
    """Binary layer whose convolution contains BN and the scale of the binary weights."""

    def __init__(self, layer: BinaryConvolution, signs: bool) -> None:
        super().__init__()
        weight = layer.weight.transpose(0, 3, 1, 2) * layer.multiplier[:, None, None, None]
        self.threshold = map_constant(layer.threshold)
        self.weight, self.bias = constant(weight), constant(layer.bias)
        self.slope = map_constant(layer.slope)
        self.signs = signs
        self.stride, self.padding = layer.stride, weight.shape[-1] // 2
        self.repeat = weight.shape[0] // weight.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.where(x >= self.threshold, 1.0, -1.0) if self.signs else x - self.threshold
        y = F.conv2d(seen, self.weight, self.bias, self.stride, self.padding)
        if self.stride == 2:
            x = F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)
        y = y + (torch.cat([x] * self.repeat, dim=1) if self.repeat > 1 else x)
        return F.prelu(y, self.slope.flatten())


class _Mean(nn.Module):
    def __init__(self, layer: GlobalMean) -> None:
        super().__init__()
        self.bias = constant(layer.bias)
        self.scale = None if layer.scale is None else constant(layer.scale)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=(2, 3))
        return (mean if self.scale is None else mean * self.scale) + self.bias


def _export(
    network: nn.Module, images: Tensor, names: Sequence[str], to: Path, origin: str
) -> None:
    try:
        with warnings.catch_warnings():
            # The exporter of torch 2.11 uses what torch 2.11 says is deprecated.
            warnings.filterwarnings("ignore", ".*treespec, LeafSpec", FutureWarning)
            program = torch.onnx.export(
                network,
                (images,),
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=["images"],
                output_names=list(names),
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise UserError(f"{origin} cannot be exported to ONNX: {reason}") from error
    assert program is not None
    graph = program.model.graph
    # The exporter writes paths of source code on this machine at each node, a third of the graph.
    for value in (*graph, *graph.inputs, *graph.outputs):
        value.metadata_props.clear()
    program.save(to, external_data=False)


def _verify(
    file: Path, backbone: Backbone, classifier: nn.Linear | None, images: Tensor, origin: str
) -> Array:
    """Run the file in ONNX Runtime on two sizes of batches; return the cosines of features."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        features, unrounded = features_rounded_and_unrounded(backbone, images)
        expected = [features] if classifier is None else [features, classifier(features)]
    batches = [session.run(None, {"images": part.numpy()}) for part in (images[:1], images[1:])]
    outputs = [
        np.concatenate([np.asarray(x) for x in output]) for output in zip(*batches, strict=True)
    ]
    each = [cosines(tensor.numpy(), other) for tensor, other in zip(expected, outputs, strict=True)]
    survives = survives_rounding(cosines(unrounded.numpy(), outputs[0]))
    if not (survives and all(agree(of_output) for of_output in each)):
        raise UserError(
            f"{origin} cannot be exported: what ONNX Runtime makes of it agrees with the network "
            f"only to cosine {np.min(each):.6f} (needed: {LEAST_COSINE}); nothing was written"
        )
    return each[0]
