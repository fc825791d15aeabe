"""A binary backbone in burn-engine, which on a CPU is several times as fast as in PyTorch."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from burn.backbones.base import Backbone
from burn.core.errors import UserError
from burn.deploy.fold import float64
from burn.deploy.fold_gated import features_rounded_and_unrounded
from burn.deploy.layout import program_of
from burn.deploy.pack import encode, folded, unpackable
from burn.deploy.shared import (
    LARGEST_CHECKED,
    LEAST_COSINE,
    agree,
    cosines,
    sample_images,
    survives_rounding,
)
from burn_engine.format import GlobalMean, Layer

if TYPE_CHECKING:
    from burn_engine.model import Model


class NoCompiledCore(UserError):
    """burn-engine is not installed, or would run its NumPy reference instead of compiled code."""


def in_engine(backbone: Backbone, threads: int) -> tuple[Model, list[Layer]]:
    """Return a backbone that is not `unpackable` as burn-engine runs it, and its layers.

    The network is the one that `burn pack` writes, without a classifier and without a file. Raises
    NoCompiledCore, or UserError if burn-engine cannot run the network.
    """
    name = backbone.config.name
    from burn_engine.model import MAX_THREADS, load_bytes

    with np.errstate(all="ignore"):  # encode refuses what is not finite
        layers = folded(backbone)
        tensors = encode(layers, f"the {name}")
    program = program_of(layers, layers[-1].name, (), (1, 1), {"recipe": name})
    data = save(tensors, metadata={"bnn": json.dumps(program)})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # its reference is refused below
            model = load_bytes(data, min(threads, MAX_THREADS))
    except ValueError as error:  # BURN_ENGINE_ISA, or a constant that the format refuses
        raise UserError(f"burn-engine cannot run this network: {error}") from error
    if model.backend != "native":
        raise NoCompiledCore(
            "burn-engine has no compiled core here, and its reference is slower than PyTorch"
        )
    return model, layers


class PackedForward:
    """The features of views, which burn-engine computes from a copy of a backbone's weights.

    The network is the one that `burn pack` writes, which adds in another order than PyTorch; where
    an argument of a sign is nearly 0, the sign may be another. The two are compared on built-in
    images, whose side in pixels is `size`, and 224 at most. The backbone is on the CPU and in eval
    mode; later changes of its weights are not seen.

    Raises:
        UserError: The network cannot be packed, its features are not those of PyTorch, or
            burn-engine or its compiled core is missing.
    """

    def __init__(self, backbone: Backbone, size: int, threads: int) -> None:
        if problem := unpackable(backbone):
            raise UserError(f"burn-engine cannot run this network: {problem}")
        self._model, layers = in_engine(backbone, threads)
        end = next(i for i, layer in enumerate(layers) if isinstance(layer, GlobalMean))
        pool = layers[end]
        assert isinstance(pool, GlobalMean)
        self._map, offset = layers[end - 1].name, pool.bias  # what the engine's map lacks
        if pool.scale is not None and backbone.feature_norm is not None:
            assert backbone.feature_norm.running_mean is not None
            offset = pool.bias / pool.scale + float64(backbone.feature_norm.running_mean)
        self._offset = torch.from_numpy(offset).float()
        images = sample_images(min(size, LARGEST_CHECKED))
        packed_features = self.features(images).numpy()
        expected, unrounded = features_rounded_and_unrounded(backbone, images)
        cosines_unrounded = cosines(packed_features, unrounded.numpy())
        if not (
            agree(cosines(packed_features, expected.numpy()))
            and survives_rounding(cosines_unrounded)
        ):
            raise UserError(
                "burn-engine cannot run this network: its features agree with PyTorch's only to "
                f"cosine {cosines_unrounded.min():.6f} (needed: {LEAST_COSINE})"
            )

    def features(self, views: Tensor) -> Tensor:
        """Return pooled features, float32 (images, features), of uint8 (images, 3, h, w)."""
        return torch.from_numpy(self._model.features(_pixels(views)))

    def feature_maps(self, views: Tensor) -> Tensor:
        """Return the last feature map, float32 (images, channels, h', w'), of such views."""
        maps = torch.from_numpy(self._model.layer(_pixels(views), self._map))
        return (maps + self._offset).permute(0, 3, 1, 2)


def _pixels(views: Tensor) -> np.ndarray:
    return np.ascontiguousarray(views.permute(0, 2, 3, 1).numpy())
