"""Settings of a backbone, separate from the networks so that they need no torch."""

from __future__ import annotations

from dataclasses import dataclass

from burn.core.types import ActivationGradient, Precision, WeightGradient, WeightInit

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class BackboneConfig:
    """The network to train.

    Attributes:
        name: reactnet_xs, reactnet_s, reactnet_m, reactnet_l or reactnet_a, bnext_t, bnext_s,
            bnext_m, bnext_l or expert_bnn, a backbone that a plugin registers, or any architecture
            of timm for a float network.
        width: factor on the number of channels that the network of this name has in every layer,
            on a float ResNet but in its stem.
        stem_stride: stride of the first convolution; on a float ResNet, 1 or 2 makes the stem a
            3×3 convolution without max-pooling, for small images. Default: the architecture's own.
        stage_strides: strides where the reactnet and bnext networks widen to 4, 8, 16 and 32 times
            their stem's channels; in expert_bnn, strides of the stem's second half and of the
            second to fourth stages.
        depths: number of blocks of each of the five stages of the reactnet networks, which have 2,
            4, 8, 16 and 32 times the stem's channels. Default: the network's own.
        resnet_strides: strides of a float ResNet's four stages. Default: its own, 1, 2, 2, 2. With
            1, 1, 2, 2 after a stem of stride 2 the maps of 32-pixel images stay larger.
        feature_layer: add Linear + ReLU after pooling, as BURN's release does.
        feature_norm: normalize the features by BN without weight and bias, after pooling, so that
            cosines between images compare what differs between them. Not with `feature_layer`.
        activation_gradient: straight-through gradient of the sign of activations.
        weight_gradient: straight-through gradient of the sign of weights.
        temperature: temperature of the binary weights of the bnext networks at the end of training,
            which falls to it from 1: a weight far below it in size is not yet binary.
        experts: number of weights of each binary convolution of expert_bnn, of which an image
            chooses one.
        weight_init: how binary weights start: fan_in is uniform in ±1/√(inputs of an output),
            PyTorch's default; small is uniform in 0 … 0.001, as in the code of ReActNet's authors.
        mean: mean of each colour channel on the scale 0 to 1, subtracted from the images.
        std: standard deviation of each colour channel, by which the images are then divided.
    """

    name: str = "reactnet_a"
    width: float = 1.0
    stem_stride: int | None = None
    stage_strides: tuple[int, int, int, int] = (2, 2, 2, 2)
    depths: tuple[int, int, int, int, int] | None = None
    resnet_strides: tuple[int, int, int, int] | None = None
    feature_layer: bool = False
    feature_norm: bool = False
    activation_gradient: ActivationGradient = "poly"
    weight_gradient: WeightGradient = "clip"
    temperature: float = 1e-6
    experts: int = 4
    weight_init: WeightInit = "fan_in"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD


def binary_settings(
    config: BackboneConfig, precision: Precision
) -> tuple[Precision, ActivationGradient, WeightGradient, WeightInit]:
    """Return the last arguments of `BinaryConv2d`, the same in all binary layers of a network."""
    return precision, config.activation_gradient, config.weight_gradient, config.weight_init
