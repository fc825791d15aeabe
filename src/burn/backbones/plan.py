"""Sizes of the layers of the ReActNets, separate from the networks so that they need no torch.

`reactnet_a` is the published network. The four smaller members, for small devices, were chosen by
the time of an image in burn-engine alone. In the order of `REACTNETS`, each takes 1.4 to 1.7 times
as long as the one before it: 0.28, 0.46, 0.75, 1.09 and 1.69 ms at 96 pixels (Zen 3, AVX2, one
thread; docs/project/log.md, 2026-11-24), and it is similar at 32 and 224 pixels. Of networks that
take about as long, the one with the most binary multiply-adds was taken. This leaves out widths
between 0.5 and 1, and below 0.5: the kernels compute 32 output channels at once, so width 0.75 is
no faster than width 1 where most of the time is spent on few channels (0.60 and 0.76 ms with 1 1 1
1 1 and 1 1 1 3 1 blocks).

Accuracy did not choose between them. Trainings on 25,600 images could not tell four depths apart
(log, 2026-11-24), and longer ones were not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from burn.backbones.config import BackboneConfig
from burn.core.errors import UserError

WIDTHS = (64, 128, 256, 512, 1024)  # output channels of each stage's blocks, at width 1
STEM_CHANNELS = 32  # at width 1
MOST_BLOCKS = 64  # of a stage


@dataclass(frozen=True)
class Member:
    """A network of the ReActNet family."""

    width: float  # factor on the channels of ReActNet-A
    depths: tuple[int, ...]  # number of blocks of each of the five stages, whose widths are WIDTHS


REACTNETS: dict[str, Member] = {
    "reactnet_xs": Member(0.5, (1, 1, 1, 1, 1)),
    "reactnet_s": Member(1.0, (1, 1, 1, 1, 1)),
    "reactnet_m": Member(1.0, (1, 1, 1, 3, 1)),
    "reactnet_l": Member(1.0, (1, 2, 2, 2, 2)),
    "reactnet_a": Member(1.0, (1, 2, 2, 6, 2)),
}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BinaryConvolutionPlan:
    """Sizes of a binary convolution, whose padding keeps height and width at stride 1."""

    name: str  # in the network, such as blocks.0.spatial
    in_channels: int
    out_channels: int
    kernel: int  # side in pixels, 3 or 1
    stride: int  # 1 or 2


@dataclass(frozen=True)
class ReActNetPlan:
    """Sizes of all layers of a ReActNet, whose stem is a 3×3 float convolution."""

    stem_channels: int
    stem_stride: int
    blocks: tuple[tuple[BinaryConvolutionPlan, BinaryConvolutionPlan], ...]  # 3×3 and then 1×1
    trunk_blocks: int  # number of blocks before the last stage
    feature_layer: bool  # Linear and ReLU, as wide as the features, follow the pooling
    feature_norm: bool  # BN without weight and bias follows it

    @property
    def num_features(self) -> int:
        return self.blocks[-1][1].out_channels

    @property
    def convolutions(self) -> Iterator[BinaryConvolutionPlan]:
        for block in self.blocks:
            yield from block


def reactnet_plan(config: BackboneConfig) -> ReActNetPlan:
    """Return the plan of the ReActNet that a configuration describes."""
    member = REACTNETS[config.name]
    depths = member.depths if config.depths is None else config.depths
    width = config.width * member.width
    # Each stage's first block has its stride and makes its channels; the first stage has stride 1.
    starts = [1, *config.stage_strides]
    sizes = [
        (c, s if i == 0 else 1)
        for c, s, n in zip(WIDTHS, starts, depths, strict=True)
        for i in range(n)
    ]
    widths = [max(8, round(width * c)) for c in (STEM_CHANNELS, *(c for c, _ in sizes))]
    for before, after in pairwise(widths):
        if after % before:
            raise UserError(
                f"width {config.width} gives the channels {widths}, of which {after} is not a "
                f"multiple of {before}: give another width"
            )
    blocks = tuple(
        block_plan(f"blocks.{i}", before, after, stride)
        for i, ((before, after), (_, stride)) in enumerate(
            zip(pairwise(widths), sizes, strict=True)
        )
    )
    stem_stride = 2 if config.stem_stride is None else config.stem_stride
    trunk = len(blocks) - depths[-1]
    return ReActNetPlan(
        widths[0], stem_stride, blocks, trunk, config.feature_layer, config.feature_norm
    )


def block_plan(
    name: str, in_channels: int, out_channels: int, stride: int
) -> tuple[BinaryConvolutionPlan, BinaryConvolutionPlan]:
    """Return a block's 3×3 convolution, which has its stride, and its 1×1, which has its width."""
    return (
        BinaryConvolutionPlan(f"{name}.spatial", in_channels, in_channels, 3, stride),
        BinaryConvolutionPlan(f"{name}.pointwise", in_channels, out_channels, 1, 1),
    )


def parameter_shapes(plan: ReActNetPlan) -> dict[str, Shape]:
    """Return the shapes of the network's parameters by name."""
    shapes: dict[str, Shape] = {"stem.weight": (plan.stem_channels, 3, 3, 3)}

    def channels(*names: str, count: int) -> None:
        shapes.update(dict.fromkeys(names, (count,)))

    channels("stem_norm.weight", "stem_norm.bias", count=plan.stem_channels)
    for part in plan.convolutions:
        kernel = (part.kernel, part.kernel)
        shapes[f"{part.name}.weight"] = (part.out_channels, part.in_channels, *kernel)
        shapes[f"{part.name}.sign.shift"] = (part.in_channels,)
        channels(
            *(f"{part.name}_norm.{name}" for name in ("weight", "bias")),
            *(f"{part.name}_activation.{name}" for name in ("before", "slope", "after")),
            count=part.out_channels,
        )
    if plan.feature_layer:
        side = plan.num_features
        shapes |= {"feature_layer.0.weight": (side, side), "feature_layer.0.bias": (side,)}
    return shapes


def state_shapes(plan: ReActNetPlan) -> Mapping[str, Shape]:
    """Return the shapes of all entries of the network's state dict by name."""
    shapes = parameter_shapes(plan)
    norms = {"stem_norm": plan.stem_channels}
    norms |= {f"{part.name}_norm": part.out_channels for part in plan.convolutions}
    if plan.feature_norm:
        norms["feature_norm"] = plan.num_features
    for name, count in norms.items():
        shapes |= {f"{name}.running_mean": (count,), f"{name}.running_var": (count,)}
        shapes[f"{name}.num_batches_tracked"] = ()
    return shapes
