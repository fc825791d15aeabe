"""Folding of networks whose layers have gates, BNext and the expert network, from format 2 on.

In docs/project/pack-format.md's words, a layer of such a network is a gated_convolution. Unlike
ReActNet's, its activations have no shifts, so no constant moves from one layer into the next.

- BNext. The binary convolution's BN is its multiplier and bias, the PReLU its inner slope. The
  second BN, after the gate and the product, is scale and shift. Two layers that read the same map
  and whose outputs are concatenated are one layer that reads the map twice, in two groups, with
  the matrices of both gates as blocks of one.
- Expert network. A BN with gain g and offset o comes before the sign: g · x + o ≥ 0 ⟺ x ≥ -o / g
  for g > 0. For g < 0 it is x ≤ -o / g, and the sign of x ≥ (the next number above -o / g) is the
  opposite one, so the weights of that channel are negated. The means of g · x + o are g times those
  of x, plus o, which goes into the matrices that read them.

The gates' matrices have weights of 16 bits, with a scale for each output channel. 8 bits are too
few, because rounding turns signs behind them: of a trained bnext_small, gates of 8 bits change the
nearest neighbours' class of 2.5 % of the images, and gates of 16 bits that of 0.05 %. The float
convolutions of the expert network's shortcuts stay float32 (format 4): of a trained expert_small,
16 bits change the linear classifier's class of 3.5 % of the images.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from burn.backbones.base import Backbone
from burn.backbones.bnext import BNext, MixedLayer
from burn.backbones.expert import ExpertLayer, ExpertNet
from burn.core.types import Precision
from burn.deploy.fold import affine, float64, pool, stem
from burn.deploy.layout import Array
from burn.layers.sign import hard_sign
from burn_engine.format import (
    BranchedConvolution,
    GatedConvolution,
    Kernel,
    Layer,
    Matrix,
    Rounded,
    Side,
    TwoMatrices,
)

_LARGEST = float(np.finfo(np.float32).max)


def gated_precision(backbone: Backbone) -> Precision | None:
    """Return the precision of a backbone that `fold_gated` takes, or None for any other."""
    return backbone.precision if isinstance(backbone, BNext | ExpertNet) else None


def fold_gated(backbone: Backbone) -> tuple[Layer, ...]:
    """Return the layers of a BNext or an ExpertNet of precision BINARY, in the order of their run.

    The constants are float64 and not rounded.
    """
    layers = _bnext(backbone) if isinstance(backbone, BNext) else _expert_net(backbone)
    return (*layers, pool(np.zeros(backbone.num_features), backbone.feature_norm))


def with_rounded_gates(backbone: Backbone) -> Backbone:
    """Return the network that `fold_gated` folds: with its gates' matrices as they are in the file.

    Rounding them moves the arguments of all later signs a little, so that of large maps some signs
    turn: of a trained bnext_t on 96 × 96 pixels, every second image's features have a cosine below
    0.999 to those of before. What is packed is therefore compared with this network, where a wrong
    constant shows. A network without gates is returned as it is, others are copied.
    """
    if gated_precision(backbone) is None:
        return backbone
    rounded = copy.deepcopy(backbone)
    for layer in rounded.modules():
        if isinstance(layer, MixedLayer):
            down = round_rows(_matrix(layer.gate.squeeze)).matrix()
        elif isinstance(layer, ExpertLayer):
            gain, offset = affine(layer.norm)
            behind = round_rows(_behind(_matrix(layer.gate.squeeze), gain, offset)).matrix()
            weight = behind.weight / np.where(gain == 0, 1, gain)
            down = Matrix(weight=weight, bias=behind.bias - weight @ offset)
        else:
            continue
        _set_linear(layer.gate.squeeze, down)
        _set_linear(layer.gate.excite, round_rows(_matrix(layer.gate.excite)).matrix())
    return rounded


def features_rounded_and_unrounded(backbone: Backbone, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return features of `with_rounded_gates(backbone)`, and those of the backbone, in eval mode.

    Both are (images, features), of images uint8 or float (images, 3, height, width). Without gates
    they are the same tensor, computed once.
    """
    rounded = with_rounded_gates(backbone)
    with torch.inference_mode():
        features = rounded(images)
        return features, features if rounded is backbone else backbone(images)


def _set_linear(linear: nn.Linear, matrix: Matrix) -> None:
    like = linear.weight
    linear.weight = nn.Parameter(torch.from_numpy(matrix.weight).to(like), requires_grad=False)
    linear.bias = nn.Parameter(torch.from_numpy(matrix.bias).to(like), requires_grad=False)


def _bnext(backbone: BNext) -> list[Layer]:
    layers: list[Layer] = [stem(backbone, backbone.stem, backbone.stem_norm)]
    for i, block in enumerate(backbone.blocks):
        spatial, pointwise = block.spatial, list(block.pointwise)  # type: ignore[union-attr,arg-type]
        last = i == len(backbone.blocks) - 1
        slope = float64(backbone.activation.weight) if last else None
        layers.append(_mixed(f"blocks.{i}.spatial", [spatial], None))  # type: ignore[list-item]
        layers.append(_mixed(f"blocks.{i}.pointwise", pointwise, slope))
    return layers


def _mixed(name: str, parts: Sequence[MixedLayer], slope: Array | None) -> GatedConvolution:
    """Fold layers of BNext that read the same map; `slope` is that of a PReLU after them."""
    convolutions = [part.convolution for part in parts]
    affines = [affine(part.norm) for part in parts]
    second = [affine(part.second_norm) for part in parts]
    channels = parts[0].norm.num_features
    scales = [_mean_sizes(convolution.weight[None]).reshape(-1) for convolution in convolutions]
    weight = np.concatenate([_signs(convolution.weight) for convolution in convolutions])
    first, multiplies = parts[0], parts[0].shortcut_activation
    return GatedConvolution(
        name=name,
        stride=first.stride,
        repeat=len(parts),
        groups=len(parts),
        experts=1,
        gate_of="mixed",
        product=multiplies is not None,
        shortcut=True,
        weight=weight,
        threshold=np.concatenate(
            [-float64(convolution.sign.shift) for convolution in convolutions]
        ),
        multiplier=np.concatenate([g * s for (g, _), s in zip(affines, scales, strict=True)]),
        bias=np.concatenate([offset for _, offset in affines]),
        inner_slope=np.concatenate([float64(part.activation.weight) for part in parts]),
        scale=np.concatenate([gain for gain, _ in second]),
        shift=np.concatenate([offset for _, offset in second]),
        slope=np.ones(len(parts) * channels) if slope is None else slope,
        choice=None,
        gate=TwoMatrices(
            down=round_rows(_blocks([_matrix(part.gate.squeeze) for part in parts])),
            up=round_rows(_blocks([_matrix(part.gate.excite) for part in parts])),
        ),
        mix=np.concatenate([np.clip(float64(part.mix.share), 0, 1) for part in parts]),
        shortcut_slope=np.ones(channels) if multiplies is None else float64(multiplies.weight),
        side=(),
    )


def _expert_net(backbone: Backbone) -> list[Layer]:
    assert isinstance(backbone, ExpertNet)
    layers: list[Layer] = [_branches(backbone)]
    for i, stage in enumerate(backbone.stages):
        for j, block in enumerate(stage):  # type: ignore[arg-type,var-annotated]
            for k, layer in enumerate(block.layers):
                shortcut = block.shortcut if k == 0 else None
                layers.append(_expert(f"stages.{i}.{j}.{k}", layer, shortcut))
    return layers


def _branches(backbone: ExpertNet) -> BranchedConvolution:
    branches = backbone.stem
    image = stem(backbone, branches.first[0], branches.first[1])  # type: ignore[arg-type]

    def folded(part: nn.Sequential) -> tuple[Array, Array]:
        gain, offset = affine(part[1])  # type: ignore[arg-type]
        weight = float64(part[0].weight).transpose(0, 2, 3, 1)  # type: ignore[arg-type]
        return weight * gain[:, None, None, None], offset

    narrow, widen, last = (folded(p) for p in (branches.narrow, branches.widen, branches.last))
    second: nn.Conv2d = branches.widen[0]  # type: ignore[assignment]
    return BranchedConvolution(
        name="stem",
        stride=image.stride,
        second_stride=second.stride[0],
        padding=image.padding,
        first=Kernel(weight=image.weight, bias=image.bias),
        narrow=Matrix(weight=narrow[0][:, 0, 0], bias=narrow[1]),
        widen=Kernel(weight=widen[0], bias=widen[1]),
        last=Matrix(weight=last[0][:, 0, 0], bias=last[1]),
        bias=last[1],
    )


def _expert(name: str, layer: ExpertLayer, shortcut: nn.Module | None) -> GatedConvolution:
    convolution = layer.convolution
    gain, offset = affine(layer.norm)
    threshold, opposite = _threshold(gain, offset)
    weight = _signs(convolution.weight.flatten(0, 1))  # (experts · out, k, k, in / groups)
    experts, out = convolution.experts, convolution.weight.shape[1]
    group_inputs = weight.shape[-1]
    group_outputs = out // convolution.groups
    for group in range(convolution.groups):
        negated = opposite[group * group_inputs : (group + 1) * group_inputs]
        rows = np.arange(experts * out) % out // group_outputs == group
        weight[np.ix_(rows, [True] * weight.shape[1], [True] * weight.shape[2], negated)] *= -1
    # One size for all experts, see `ExpertConv2d`.
    sizes = _mean_sizes(convolution.weight).mean(axis=0) * float64(convolution.scale)
    choice = None
    if experts > 1:
        choice = _behind(_matrix(convolution.choice), gain, offset)
    ones, zeros = np.ones(out), np.zeros(out)
    sides = () if shortcut is None else _sides(shortcut)
    return GatedConvolution(
        name=name,
        stride=convolution.stride,
        repeat=1,
        groups=convolution.groups,
        experts=experts,
        gate_of="input",
        product=False,
        shortcut=True,
        weight=weight,
        threshold=threshold,
        multiplier=np.tile(sizes, experts),
        bias=zeros,
        inner_slope=float64(layer.activation.weight),
        scale=ones,
        shift=zeros,
        slope=ones,
        choice=choice,
        gate=TwoMatrices(
            down=round_rows(_behind(_matrix(layer.gate.squeeze), gain, offset)),
            up=round_rows(_matrix(layer.gate.excite)),
        ),
        mix=None,
        shortcut_slope=None if sides else ones,
        side=sides,
    )


def _threshold(gain: Array, offset: Array) -> tuple[Array, Array]:
    """Return where the sign of gain · x + offset changes, and where it is the opposite one."""
    always = np.where(offset >= 0, -_LARGEST, _LARGEST)
    divisor = np.where(gain == 0, 1, gain)
    turn = np.where(gain == 0, always, np.clip(-offset / divisor, -_LARGEST, _LARGEST))
    opposite = gain < 0
    with np.errstate(over="ignore"):
        above = np.nextafter(turn.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    return np.where(opposite, np.minimum(above, _LARGEST), turn), opposite


def _behind(matrix: Matrix, gain: Array, offset: Array) -> Matrix:
    """Return the matrix that gives for x what `matrix` gives for gain · x + offset."""
    return Matrix(weight=matrix.weight * gain, bias=matrix.bias + matrix.weight @ offset)


def _sides(shortcut: nn.Module) -> tuple[Side, ...]:
    """Fold the float convolutions of a shortcut, each with BN and PReLU, behind its mean."""
    parts = list(shortcut.children())[1:]
    sides = []
    for convolution, norm, activation in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        gain, offset = affine(norm)  # type: ignore[arg-type]
        weight = float64(convolution.weight)[:, :, 0, 0] * gain[:, None]  # type: ignore[arg-type]
        slope = float64(activation.weight)  # type: ignore[arg-type]
        sides.append(Side(weight=weight, bias=offset, slope=slope))
    return tuple(sides)


def round_rows(matrix: Matrix) -> Rounded:
    """Round each row to 16-bit integers, the largest of which is 32,767.

    The scale of a row that is not finite is not finite either.
    """
    scale = np.abs(matrix.weight).max(axis=1) / 32_767
    # In float32 as in the file, so that the integers count what a reader multiplies them by. Rows
    # whose scale would not be a normal number become 0.
    scale = np.where(scale < np.finfo(np.float32).tiny, 1, scale)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = scale.astype(np.float32).astype(np.float64)
        rounded = np.rint(matrix.weight / scale[:, None])
    rounded = np.clip(np.nan_to_num(rounded), -32_767, 32_767)
    return Rounded(weight=rounded.astype(np.int16), scale=scale, bias=matrix.bias)


def _matrix(linear: nn.Linear) -> Matrix:
    weight = float64(linear.weight)
    bias = np.zeros(len(weight)) if linear.bias is None else float64(linear.bias)
    return Matrix(weight=weight, bias=bias)


def _blocks(matrices: Sequence[Matrix]) -> Matrix:
    """Return one matrix with the given ones as blocks on its diagonal."""
    weight = torch.block_diag(*(torch.from_numpy(matrix.weight) for matrix in matrices)).numpy()
    return Matrix(weight=weight, bias=np.concatenate([matrix.bias for matrix in matrices]))


def _signs(weight: Tensor) -> Array:
    """Return the signs of weights (out, in, k, k) as (out, k, k, in)."""
    signs = hard_sign(weight.detach()).cpu().permute(0, 2, 3, 1)
    return np.ascontiguousarray(signs.numpy())


def _mean_sizes(weight: Tensor) -> Array:
    """Return mean |W| of weights (experts, out, in, k, k), as (experts, out)."""
    return np.abs(float64(weight)).mean(axis=(2, 3, 4))
