"""Features of more maps than the last: which ones, in what units, and whether they help.

The maps are those of the last four blocks, where a block is a 3 × 3 convolution with the 1 × 1
convolutions after it. The network computes them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from burn_engine.format import (
    BinaryConvolution,
    Floats,
    GatedConvolution,
    GlobalMean,
    Layer,
    Program,
    parse_program,
)
from burn_engine.learning import Learned
from burn_engine.packed_parts import take_apart

NUM_BLOCKS = 4
LEAST_IMAGES = 10  # of each class, to choose; of 5 the choice lost half a point on flowers
_FORMAT = 5  # the first with means of several maps
_FORMAT_OF_FLOAT_SIDES = 4


def averaged(program: Program) -> tuple[int, ...]:
    """Return the layers whose maps' means are the features, in the order of the features.

    They are empty if the features are those of a `linear` layer.
    """
    pool = program.layers[program.features]
    return (program.features - 1, *pool.also) if isinstance(pool, GlobalMean) else ()


def widened(base: bytes) -> bytes:
    """Return a packed file whose features are followed by the means of earlier maps.

    Its first features are the base's; a classifier that the base has is left out.

    Args:
        base: The bytes of a packed file.

    Raises:
        ModelError: The base breaks a rule of its format.
        ValueError: There are no such maps, or its features cannot be followed by others.
    """
    program = parse_program(base)
    return _with_means(base, program, earlier_maps(program))


def earlier_maps(program: Program) -> tuple[int, ...]:
    """Return the last layer of each of the last four blocks but the very last, in their order.

    Raises:
        ValueError: There are no such layers, or the features are no means of one map.
    """
    if not (maps := averaged(program)):
        raise ValueError(f"its features are those of layer {program.layers[program.features].name}")
    if len(maps) > 1:
        raise ValueError(f"its features are means of {len(maps)} maps already")
    blocks = [
        at for at, (layer, after) in enumerate(pairwise(program.layers)) if _ends(layer, after)
    ]
    if len(blocks) < 2:
        raise ValueError("it has a single block")
    return tuple(blocks[-NUM_BLOCKS:-1])


def _ends(layer: Layer, after: Layer) -> bool:
    """Return whether a layer is the last one of a block."""
    if not isinstance(layer, BinaryConvolution | GatedConvolution):
        return False
    if isinstance(after, BinaryConvolution | GatedConvolution):
        return after.weight.shape[1] == 3
    return isinstance(after, GlobalMean)


def _with_means(base: bytes, program: Program, also: Sequence[int]) -> bytes:
    parts = take_apart(base)
    if parts.program["format"] < _FORMAT_OF_FLOAT_SIDES and any(
        isinstance(layer, GatedConvolution) and layer.side for layer in program.layers
    ):
        raise ValueError("its shortcuts are of integers, as in formats 2 and 3: pack it again")
    parts.without_classifier()
    pool = program.layers[program.features]
    assert isinstance(pool, GlobalMean)
    more = sum(program.layers[at].channels for at in also)
    scale = np.ones_like(pool.bias) if pool.scale is None else pool.scale
    parts.set_floats(f"{pool.name}.bias", np.append(pool.bias, np.zeros(more, np.float32)))
    parts.set_floats(f"{pool.name}.scale", np.append(scale, np.ones(more, np.float32)))
    described = parts.program["layers"][program.features]
    described |= {"scaled": True, "also": [program.layers[at].name for at in also]}
    parts.program["format"] = _FORMAT
    return parts.to_bytes()


def scaled(wide: bytes, factors: Floats) -> bytes:
    """Return a packed file whose features are multiplied by factors.

    Args:
        wide: The bytes of a file that `widened` returned.
        factors: float32 (features,).
    """
    program = parse_program(wide)
    pool = program.layers[program.features]
    assert isinstance(pool, GlobalMean)
    assert pool.scale is not None
    parts = take_apart(wide)
    parts.set_floats(f"{pool.name}.bias", pool.bias * factors)
    parts.set_floats(f"{pool.name}.scale", pool.scale * factors)
    return parts.to_bytes()


def equal_lengths(features: Floats, widths: Sequence[int]) -> Floats:
    """Return the factors that give the features of each map the mean length of the last one's.

    Args:
        features: float32 (images, features), of all maps.
        widths: Number of features of each map, the last map's first.

    Returns:
        float32 (features,); 1 for those of the last map.
    """
    parts = np.split(features.astype(np.float64), np.cumsum(widths)[:-1], axis=1)
    lengths = np.array([np.linalg.norm(part, axis=1).mean() for part in parts])
    return np.repeat(lengths[0] / np.where(lengths > 0, lengths, 1), widths).astype(np.float32)


def is_better(several: Learned, last: Learned) -> bool:
    """Return whether more maps help: by more than half of the accuracy's standard error.

    Of fewer than `LEAST_IMAGES` images of some class that is not asked, but the last map taken.
    """
    if last.counts.min() < LEAST_IMAGES:
        return False
    assert several.accuracy is not None
    assert last.accuracy is not None
    assert last.error is not None
    return several.accuracy - last.accuracy > last.error / 2
