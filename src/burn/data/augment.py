"""Views of an image: random augmentations for training, and the plain view for evaluation.

Images are uint8 (3, height, width), and views uint8 (3, size, size).
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from burn.data.view_config import ViewConfig

Array = NDArray[Any]  # uint8 (height, width, 3)


def generator(seed: int, epoch: int, index: int, view: int) -> np.random.Generator:
    """Return the random generator for one view of one image in one epoch."""
    return np.random.default_rng((seed, epoch, index, view))


def random_view(image: Tensor, config: ViewConfig, random: np.random.Generator) -> Tensor:
    """Augment an image.

    The steps are: random resized crop (bicubic, antialiased), horizontal flip, colour jitter in
    random order, RandAugment, conversion to greyscale, and Gaussian blur.
    """
    view = _crop_and_flip(image, config, random)
    if random.random() < config.jitter:
        view = _jitter(view, config, random)
    if config.rand_augment:
        view = _rand_augment(view, config, random)
    if random.random() < config.grey:
        view = adjust_saturation(view, 0.0)
    if random.random() < config.blur:
        view = gaussian_blur(view, random.uniform(*config.blur_sigma))
    return _to_tensor(view)


def drawing_fingerprint(config: ViewConfig) -> str:
    """Return a hexadecimal digest of views drawn with the given settings.

    Two installations that draw different views with the same settings have different digests.
    """
    digest = hashlib.sha256()
    for index in range(8):
        random = generator(0, 0, index, 0)
        image = torch.from_numpy(random.integers(0, 256, (3, 48, 64), dtype=np.uint8))
        digest.update(random_view(image, config, random).numpy().tobytes())
    return digest.hexdigest()[:16]


def crop_and_flip(image: Tensor, config: ViewConfig, random: np.random.Generator) -> Tensor:
    """Apply the light augmentation of linear evaluation: random resized crop, horizontal flip."""
    return _to_tensor(_crop_and_flip(image, config, random))


def plain_view(image: Tensor, config: ViewConfig) -> Tensor:
    """Resize an image to `config.short_side`, and crop its centre, without randomness."""
    short = config.short_side
    most = 4 * min(image.shape[1:])  # do not enlarge all of a very long image only to crop it
    image = _center(image, min(image.shape[1], most), min(image.shape[2], most))
    _, height, width = image.shape
    if min(height, width) != short:
        scale = short / min(height, width)
        image = resize(image, max(short, round(height * scale)), max(short, round(width * scale)))
    return _center(image, config.size, config.size).contiguous()


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Resize an image, bicubic and antialiased, as torchvision does."""
    return F.interpolate(image[None], (height, width), mode="bicubic", antialias=True)[0]


def _center(image: Tensor, height: int, width: int) -> Tensor:
    """Return the centre of an image, of at most its own size."""
    top, left = round((image.shape[1] - height) / 2), round((image.shape[2] - width) / 2)
    return image[:, top : top + height, left : left + width]


def _crop_box(
    height: int, width: int, config: ViewConfig, random: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width) of a crop, centred if ten draws do not fit into the image."""
    low, high = (math.log(ratio) for ratio in config.crop_ratio)
    for _ in range(10):
        area = height * width * random.uniform(*config.crop_scale)
        ratio = math.exp(random.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(random.integers(0, height - h + 1))
            return top, int(random.integers(0, width - w + 1)), h, w
    w = min(width, max(1, round(height * config.crop_ratio[1])))
    h = min(height, max(1, round(width / config.crop_ratio[0])))
    return (height - h) // 2, (width - w) // 2, h, w


def _crop_and_flip(image: Tensor, config: ViewConfig, random: np.random.Generator) -> Array:
    top, left, height, width = _crop_box(image.shape[1], image.shape[2], config, random)
    # torch resizes twice as fast in the channels-last layout, which decoded images already have;
    # only the crop is copied into it.
    crop = image[None, :, top : top + height, left : left + width]
    crop = crop.contiguous(memory_format=torch.channels_last)
    size = (config.size, config.size)
    view = F.interpolate(crop, size, mode="bicubic", antialias=True)
    array = np.ascontiguousarray(view[0].permute(1, 2, 0).numpy())
    return cv2.flip(array, 1) if random.random() < config.flip else array


# From here on images are uint8 arrays (height, width, 3). For a 32-pixel image, OpenCV takes 2 µs
# where torchvision takes 20 to 100; the results agree to one grey level (hue: to a few).


def _jitter(view: Array, config: ViewConfig, random: np.random.Generator) -> Array:
    strengths = (config.brightness, config.contrast, config.saturation)
    amounts = [random.uniform(1 - strength, 1 + strength) for strength in strengths]
    amounts.append(random.uniform(-config.hue, config.hue))
    adjust = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    for step in random.permutation(4):
        view = adjust[step](view, amounts[step])
    return view


def _rand_augment(view: Array, config: ViewConfig, random: np.random.Generator) -> Array:
    """Apply torchvision's RandAugment (Cubuk et al., 2020).

    It draws from torch's global random state, which is therefore seeded here and restored.
    """
    from torchvision.transforms.v2 import RandAugment  # torchvision takes seconds to import

    number = int(random.binomial(config.rand_augment, 0.5))
    magnitude = round(30 * config.rand_strength)
    operations = RandAugment(number, magnitude, num_magnitude_bins=31, fill=[128] * 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(2**63)))
        augmented = operations(_to_tensor(view))
    return np.ascontiguousarray(augmented.permute(1, 2, 0).numpy())


def adjust_brightness(view: Array, factor: float) -> Array:
    """Blend an image with black: factor 0 gives black, 1 the image itself."""
    return cv2.addWeighted(view, factor, view, 0, 0)


def adjust_contrast(view: Array, factor: float) -> Array:
    """Blend an image with its mean grey level: factor 0 gives uniform grey, 1 the image itself."""
    mean = cv2.mean(cv2.cvtColor(view, cv2.COLOR_RGB2GRAY))[0]
    return cv2.addWeighted(view, factor, view, 0, mean * (1 - factor))


def adjust_saturation(view: Array, factor: float) -> Array:
    """Blend an image with its greyscale version: factor 0 gives greyscale, 1 the image itself."""
    grey = cv2.cvtColor(cv2.cvtColor(view, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(view, factor, grey, 1 - factor, 0)


def adjust_hue(view: Array, turn: float) -> Array:
    """Rotate the hue of an image, in OpenCV's 8-bit HSV, by a share of the colour circle.

    The conversion to HSV and back changes pixels by up to a few grey levels; it is skipped if
    `turn` is 0.
    """
    if not turn:
        return view
    hsv = cv2.cvtColor(view, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] += np.uint8(round(turn * 256) % 256)  # uint8 wraps around as the circle does
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def gaussian_blur(view: Array, sigma: float) -> Array:
    """Blur with a Gaussian of `sigma` pixels out to 3 σ, with reflection at the border."""
    side = 2 * max(1, math.ceil(3 * sigma)) + 1
    return cv2.GaussianBlur(view, (side, side), sigma, borderType=cv2.BORDER_REFLECT_101)


def _to_tensor(view: Array) -> Tensor:
    planes = np.empty((3, *view.shape[:2]), dtype=np.uint8)
    cv2.split(view, [planes[0], planes[1], planes[2]])
    return torch.from_numpy(planes)
