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
from burn.checkpoints.classifier import linear_classifier
from burn.checkpoints.foreign.weights import backbone_from
from burn.checkpoints.native import load_checkpoint
from burn.core.errors import UserError
from burn.core.files import write_beside, write_failures_named
from burn.core.types import Precision
from burn.deploy.fold import fold
from burn.deploy.fold_gated import features_rounded_and_unrounded, fold_gated, gated_precision
from burn.deploy.layout import Array
from burn.deploy.named import check_onnx_export
from burn.deploy.shared import (
    LEAST_COSINE,
    agree,
    cosines,
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
    Kernel,
    Layer,
    Linear,
    Matrix,
)

_MANY_PIXELS = 512**2  # in one image; of larger images fewer are compared


@dataclass(frozen=True)
class ExportedOnnx:
    """Summary of an export to ONNX, and of its comparison with the network on some images.

    The network's gates were rounded as in the file. Where the argument of a sign is nearly 0,
    rounding may change the sign, so single images of a right file have cosines of features below
    0.999: the smallest and the median are given. Left out are parts of the checkpoint that are
    neither backbone nor linear classifier.
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
    if gated_precision(backbone) == Precision.BINARY_ACTIVATIONS:
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

    def write(beside: Path) -> Array:
        _export(network, images[:2], names, beside, held.origin)
        return _verify(beside, backbone, classifier, images, held.origin)

    try:
        with write_failures_named(out):
            agreement = write_beside(out, write, new=True)
    except RuntimeError as error:  # too little memory
        reason = str(error).strip().partition("\n")[0]
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
    if gated_precision(backbone) == Precision.BINARY:
        return nn.Sequential(*(_module(layer, True) for layer in fold_gated(backbone)))
    return None


def _module(layer: Layer, signs: bool) -> nn.Module:
    if isinstance(layer, Convolution):
        return _Stem(layer, layer.padding, layer.stride)
    if isinstance(layer, BinaryConvolution):
        return _SignConvolution(layer, signs)
    if isinstance(layer, GlobalMean):
        return _Mean(layer)
    if isinstance(layer, GatedConvolution):
        return _Gated(layer)
    if isinstance(layer, BranchedConvolution):
        return _Branched(layer)
    assert isinstance(layer, Linear)
    return nn.Sequential(_linear(layer), nn.ReLU()) if layer.relu else _linear(layer)


def _constant(values: Array) -> nn.Parameter:
    """Return values as a parameter that is not trained."""
    return nn.Parameter(torch.from_numpy(values).float().contiguous(), requires_grad=False)


def _map_constant(values: Array) -> nn.Parameter:
    """Return a parameter (channels, 1, 1) from values (channels,)."""
    return _constant(values[:, None, None])


def _pooled(x: Tensor, stride: int) -> Tensor:
    """Return a map (batch, channels, height, width), its 2×2 pixels averaged at stride 2."""
    return F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False) if stride == 2 else x


def _repeated(x: Tensor, times: int) -> Tensor:
    """Return `times` copies of all channels, dimension 1, one after the other."""
    return torch.cat([x] * times, dim=1) if times > 1 else x


class _Gated(nn.Module):
    """A gated_convolution of the packed format, with weights of ±1.

    All its experts are computed and one is taken: a graph has no convolution whose weights depend
    on the image and which takes a batch of any size.
    """

    def __init__(self, layer: GatedConvolution) -> None:
        super().__init__()
        weight = layer.weight.transpose(0, 3, 1, 2) * layer.multiplier[:, None, None, None]
        self.weights = nn.ParameterList(map(_constant, np.split(weight, layer.experts)))
        self.stride, self.border, self.groups = layer.stride, weight.shape[-1] // 2, layer.groups
        self.repeat, self.gate_of, self.product = layer.repeat, layer.gate_of, layer.product
        self.threshold = _map_constant(layer.threshold)
        self.bias, self.inner_slope = _constant(layer.bias), _constant(layer.inner_slope)
        self.scale, self.shift = _map_constant(layer.scale), _map_constant(layer.shift)
        self.slope = _constant(layer.slope)
        self.mix = None if layer.mix is None else _constant(layer.mix)
        self.shortcut_slope = None
        if layer.shortcut_slope is not None:
            self.shortcut_slope = _constant(layer.shortcut_slope)
        self.choice = None if layer.choice is None else _linear(layer.choice)
        self.down = None if layer.gate is None else _linear(layer.gate.down.matrix())
        self.up = None if layer.gate is None else _linear(layer.gate.up.matrix())
        self.has_shortcut = layer.shortcut
        self.sides = nn.ModuleList(_Dense(side, side.slope) for side in layer.side)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3))
        signs = torch.where(_repeated(x, self.repeat) >= self.threshold, 1.0, -1.0)
        sums = [F.conv2d(signs, w, None, self.stride, self.border, 1, self.groups)
                for w in self.weights]  # fmt: skip
        y = sums[0]
        if self.choice is not None:
            chosen = F.one_hot(self.choice(means).argmax(dim=1), len(sums)).to(x.dtype)
            stacked = torch.stack(sums, dim=1)
            y = (stacked * chosen[:, :, None, None, None]).sum(dim=1)
        u = F.prelu(y + self.bias[:, None, None], self.inner_slope)
        pooled = _pooled(x, self.stride)
        times = u.shape[1] // x.shape[1]
        out = u * self.scale
        if self.down is not None and self.up is not None:
            if self.mix is not None:
                repeated = _repeated(pooled.mean(dim=(2, 3)), times)
                means = self.mix * repeated + (1 - self.mix) * u.mean(dim=(2, 3))
            gate = torch.sigmoid(self.up(F.relu(self.down(means))))
            out = out * gate[:, :, None, None]
        if not self.has_shortcut:
            return F.prelu(out + self.shift, self.slope)
        if self.shortcut_slope is None:
            shortcut = pooled
            for side in self.sides:
                shortcut = side(shortcut)
        else:
            shortcut = _repeated(_pooled(F.prelu(x, self.shortcut_slope), self.stride), times)
        if self.product:
            out = out * shortcut
        return F.prelu(out + self.shift + shortcut, self.slope)


class _Stem(nn.Module):
    """Convolution that subtracts the colour outside the image first, as ONNX pads with zeros."""

    def __init__(self, kernel: Convolution | Kernel, colour: Array, stride: int) -> None:
        super().__init__()
        self.colour = _map_constant(colour)
        self.weight = _constant(kernel.weight.transpose(0, 3, 1, 2))
        self.bias = _constant(kernel.bias + (kernel.weight * colour).sum(axis=(1, 2, 3)))
        self.stride, self.border = stride, kernel.weight.shape[1] // 2

    def forward(self, images: Tensor) -> Tensor:
        x = images - self.colour
        return F.conv2d(x, self.weight, self.bias, self.stride, self.border)


class _Branched(nn.Module):
    """A branched_convolution of the packed format."""

    def __init__(self, layer: BranchedConvolution) -> None:
        super().__init__()
        self.first = _Stem(layer.first, layer.padding, layer.stride)
        self.second_stride = layer.second_stride
        self.narrow, self.last = _Dense(layer.narrow), _Dense(layer.last)
        self.widen = _constant(layer.widen.weight.transpose(0, 3, 1, 2))
        self.widen_bias = _constant(layer.widen.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.first(images))
        border = self.widen.shape[-1] // 2
        narrow = self.narrow(x)
        wide = F.conv2d(narrow, self.widen, self.widen_bias, self.second_stride, border)
        largest = F.max_pool2d(x, 3, self.second_stride, 1)
        return self.last(torch.cat([F.relu(wide), largest], dim=1))


class _Dense(nn.Module):
    """1×1 convolution and PReLU, or ReLU without slopes."""

    def __init__(self, matrix: Matrix, slope: Array | None = None) -> None:
        super().__init__()
        self.weight, self.bias = _constant(matrix.weight[:, :, None, None]), _constant(matrix.bias)
        self.slope = _constant(np.zeros(len(matrix.bias)) if slope is None else slope)

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(F.conv2d(x, self.weight, self.bias), self.slope)


def _linear(matrix: Matrix | Linear) -> nn.Linear:
    """Return a matrix as a module."""
    made = nn.Linear(matrix.weight.shape[1], len(matrix.weight))
    made.weight, made.bias = _constant(matrix.weight), _constant(matrix.bias)
    return made


class _SignConvolution(nn.Module):
    """Binary layer whose convolution contains BN and the scale of the binary weights."""

    def __init__(self, layer: BinaryConvolution, signs: bool) -> None:
        super().__init__()
        weight = layer.weight.transpose(0, 3, 1, 2) * layer.multiplier[:, None, None, None]
        self.threshold = _map_constant(layer.threshold)
        self.weight, self.bias = _constant(weight), _constant(layer.bias)
        self.slope = _constant(layer.slope)
        self.signs = signs
        self.stride, self.border = layer.stride, weight.shape[-1] // 2
        self.repeat = weight.shape[0] // weight.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.where(x >= self.threshold, 1.0, -1.0) if self.signs else x - self.threshold
        y = F.conv2d(seen, self.weight, self.bias, self.stride, self.border)
        y = y + _repeated(_pooled(x, self.stride), self.repeat)
        return F.prelu(y, self.slope)


class _Mean(nn.Module):
    def __init__(self, layer: GlobalMean) -> None:
        super().__init__()
        self.bias = _constant(layer.bias)
        self.scale = None if layer.scale is None else _constant(layer.scale)

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
