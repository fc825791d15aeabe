"""Views: what they draw, and each step against torchvision, Pillow or a loop."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import RandAugment
from torchvision.transforms.v2 import functional as T

from burn.core.errors import UserError
from burn.data import augment as views
from burn.data.augment import crop_and_flip, generator, plain_view, random_view
from burn.data.view_config import ViewConfig

STILL = ViewConfig(
    size=32, resize=32, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0),
    flip=0, jitter=0, grey=0, blur=0,
)  # fmt: skip
EVERYTHING = ViewConfig(size=32, flip=0.5, jitter=1, rand_augment=1, grey=0.5, blur=1)


def noise(height: int = 48, width: int = 64, seed: int = 0) -> Tensor:
    """Random colours, uint8 (3, height, width)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=random, dtype=torch.uint8)


def photo(height: int = 48, width: int = 64) -> Tensor:
    """Smooth colours with every hue, brightness and saturation, like a photograph's."""
    rows, columns = np.mgrid[:height, :width] / (height, width)[0]
    waves = [np.sin(5 * rows + 3 * columns + phase) for phase in (0.0, 2.0, 4.0)]
    levels = 127.5 + 127.5 * np.stack(waves) * np.cos(4 * rows - 2 * columns)
    return torch.from_numpy(levels.clip(0, 255).round().astype(np.uint8))


def array(image: Tensor) -> np.ndarray:
    """(height, width, 3), as the colour steps take it."""
    return np.ascontiguousarray(image.permute(1, 2, 0).numpy())


def distance(first: np.ndarray, second: np.ndarray) -> int:
    assert first.shape == second.shape
    return int(np.abs(first.astype(int) - second.astype(int)).max())


# --- Randomness. ---


def test_the_same_four_numbers_give_the_same_bits():
    image = noise()
    for numbers in itertools.product((0, 3), (0, 7), (1, 2), (0, 1)):
        first, again = (random_view(image, EVERYTHING, generator(*numbers)) for _ in range(2))
        assert torch.equal(first, again)
        first, again = (crop_and_flip(image, EVERYTHING, generator(*numbers)) for _ in range(2))
        assert torch.equal(first, again)


def test_any_other_number_gives_another_view():
    """Over a grid of (seed, epoch, index, view), in which each number takes every other's place."""
    image = noise()
    for draw in (random_view, crop_and_flip):
        seen = {
            draw(image, EVERYTHING, generator(*numbers)).numpy().tobytes()
            for numbers in itertools.product(range(3), repeat=4)
        }
        assert len(seen) == 3**4


def test_large_seeds_and_indices():
    image = noise()
    seen = {
        random_view(image, EVERYTHING, generator(seed, 0, index, 0)).numpy().tobytes()
        for seed in (1, 2**32 + 1, 2**40)
        for index in (1, 2**20, 2**31)
    }
    assert len(seen) == 9


# --- RandAugment. ---


def test_rand_augment_is_torchvisions():
    """With the draw that seeds it known, it is torchvision's own result, operation by operation."""
    image = photo(32, 32)

    class Fixed:
        def binomial(self, number: int, _: float) -> int:
            return number

        def integers(self, *_: int) -> int:
            return 1234

    for strength, magnitude in ((1.0, 30), (0.5, 15)):
        config = replace(STILL, rand_augment=2, rand_strength=strength)
        found = views._rand_augment(array(image), config, Fixed())  # type: ignore[arg-type]
        torch.manual_seed(1234)
        operations = RandAugment(2, magnitude, num_magnitude_bins=31, fill=[128] * 3)
        assert np.array_equal(found, array(operations(image)))


def test_rand_augment_leaves_torchs_random_state_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    random_view(noise(), replace(EVERYTHING, rand_augment=2), generator(0, 0, 0, 0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_rand_augment_changes_more_with_more_strength():
    image = photo(64, 64)
    means = []
    for strength in (0.0, 1.0):
        config = replace(STILL, size=64, resize=64, rand_augment=2, rand_strength=strength)
        changes = [
            np.abs(
                array(random_view(image, config, generator(s, 0, 0, 0))).astype(int) - array(image)
            ).mean()
            for s in range(60)
        ]
        means.append(np.mean(changes))
    assert means[1] > means[0] + 10


def test_rand_augment_applies_each_operation_half_the_time():
    image = photo(32, 32)
    config = replace(STILL, rand_augment=1)
    untouched = sum(
        torch.equal(random_view(image, config, generator(s, 0, 0, 0)), image) for s in range(200)
    )
    # 100 ± 4 σ are not drawn; of the others the identity and what does nothing here, some 3 of 14.
    assert 72 <= untouched <= 100 + 22 + 28


# --- Shapes. ---


SHAPES = [(48, 64), (64, 48), (32, 32), (1, 1), (1, 200), (200, 1), (8, 9), (500, 20)]


@pytest.mark.parametrize("shape", SHAPES)
def test_random_views_have_the_size(shape: tuple[int, int]):
    image = noise(*shape)
    before = image.clone()
    for seed, draw in itertools.product(range(10), (random_view, crop_and_flip)):
        view = draw(image, EVERYTHING, generator(seed, 0, 0, 0))
        assert view.shape == (3, 32, 32)
        assert view.dtype == torch.uint8
        assert view.is_contiguous()
    assert torch.equal(image, before)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("resize", [None, 32, 40])
def test_plain_views_have_the_size(shape: tuple[int, int], resize: int | None):
    view = plain_view(noise(*shape), ViewConfig(size=32, resize=resize))
    assert view.shape == (3, 32, 32)
    assert view.dtype == torch.uint8
    assert view.is_contiguous()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_layout_in_memory_changes_no_bit(shape: tuple[int, int]):
    """Decoded images have a pixel's values side by side, built-in ones a channel's."""
    image = noise(*shape)
    decoded = torch.from_numpy(array(image)).permute(2, 0, 1)
    assert shape == (1, 1) or decoded.stride() != image.stride()
    for seed in range(5):
        for draw in (random_view, crop_and_flip):
            first, second = (
                draw(i, EVERYTHING, generator(seed, 0, 0, 0)) for i in (image, decoded)
            )
            assert torch.equal(first, second)
    assert torch.equal(plain_view(image, STILL), plain_view(decoded, STILL))


# --- Crops. ---


@pytest.mark.parametrize("side", [32, 20, 96])
def test_without_augmentation_a_view_is_the_plain_resize(side: int):
    """To a level of Pillow's bicubic, which rounds between its two passes."""
    image = noise(side, side)
    for draw in (random_view, crop_and_flip):
        view = draw(image, STILL, generator(0, 0, 0, 0))
        assert torch.equal(view, plain_view(image, STILL))
        resized = Image.fromarray(array(image)).resize((32, 32), Image.Resampling.BICUBIC)
        assert distance(array(view), np.asarray(resized)) <= (0 if side == 32 else 1)


def test_flip_mirrors_left_and_right():
    image = noise(32, 32)
    flipped = random_view(image, replace(STILL, flip=1.0), generator(0, 0, 0, 0))
    assert torch.equal(flipped, image.flip(2))


def test_a_crop_is_its_box_resized(monkeypatch: pytest.MonkeyPatch):
    image = noise(48, 64)
    box = (3, 5, 30, 20)  # top, left, height, width
    monkeypatch.setattr(views, "_crop_box", lambda *_: box)
    view = random_view(image, STILL, generator(0, 0, 0, 0))
    cut = Image.fromarray(array(image)[3:33, 5:25])
    expected = np.asarray(cut.resize((32, 32), Image.Resampling.BICUBIC))
    assert distance(array(view), expected) <= 1  # rounding between the passes


def test_crop_boxes_lie_inside_and_keep_area_and_ratio():
    config = ViewConfig(crop_scale=(0.05, 0.3), crop_ratio=(0.5, 2.0))
    height, width = 300, 400
    areas, ratios, places = [], [], []
    for seed in range(2000):
        top, left, h, w = views._crop_box(height, width, config, generator(seed, 0, 0, 0))
        assert 0 <= top <= height - h
        assert 0 <= left <= width - w
        areas.append(h * w / (height * width))
        ratios.append(math.log(w / h))
        places.append((top / max(1, height - h), left / max(1, width - w)))
    # Sides are rounded to pixels: half a pixel of 54 or more.
    assert 0.05 * 0.98 <= min(areas) < 0.052
    assert 0.29 < max(areas) <= 0.3 * 1.01
    assert abs(min(ratios) + math.log(2)) < 0.02
    assert abs(max(ratios) - math.log(2)) < 0.02
    # Uniform in the area, the ratio's logarithm and the place, as every box of these fits; means
    # of 2,000 draws have a standard error of 0.0016, 0.009 and 0.007, and four of them are allowed.
    assert abs(np.mean(areas) - 0.175) < 0.007
    assert abs(np.mean(ratios)) < 0.036
    assert np.abs(np.mean(places, axis=0) - 0.5).max() < 0.028


@pytest.mark.parametrize(
    ("shape", "box"),
    [((10, 1000), (0, 493, 10, 13)), ((1000, 10), (493, 0, 13, 10))],
)
def test_a_strip_is_cropped_at_its_centre(shape: tuple[int, int], box: tuple[int, ...]):
    """No crop of the full area fits at a ratio of 3/4 to 4/3: the nearest ratio, centred."""
    config = ViewConfig(crop_scale=(1.0, 1.0))
    assert views._crop_box(*shape, config, generator(0, 0, 0, 0)) == box


# --- Plain views. ---


def test_a_plain_view_of_the_right_size_is_its_centre():
    image = noise(36, 50)
    view = plain_view(image, ViewConfig(size=32, resize=36))
    assert torch.equal(view, image[:, 2:34, 9:41])
    square = noise(32, 32)
    assert torch.equal(plain_view(square, STILL), square)


@pytest.mark.parametrize("shape", [(48, 64), (1, 300), (97, 31), (5, 5)])
@pytest.mark.parametrize("size", [(32, 32), (5, 5), (1, 9), (120, 64)])
def test_resizing_is_torchvisions(shape: tuple[int, int], size: tuple[int, int]):
    rows = noise(*shape)
    for image in (rows, rows.permute(1, 2, 0).contiguous().permute(2, 0, 1)):  # as decoded
        expected = T.resize(image, list(size), T.InterpolationMode.BICUBIC)
        assert torch.equal(views.resize(image, *size), expected)


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (20, 30)])
def test_a_plain_view_is_resized_by_the_short_side_then_cropped(shape: tuple[int, int]):
    image = noise(*shape)
    view = plain_view(image, ViewConfig(size=32, resize=40))
    long = round(40 * max(shape) / min(shape))
    size = (long, 40) if shape[1] > shape[0] else (40, long)  # Pillow's: width, height
    resized = np.asarray(Image.fromarray(array(image)).resize(size, Image.Resampling.BICUBIC))
    top, left = (resized.shape[0] - 32) // 2, (resized.shape[1] - 32) // 2
    # Rounding between the passes.
    assert distance(array(view), resized[top : top + 32, left : left + 32]) <= 1


def test_the_short_side_is_resized_to_eight_sevenths_by_default():
    image = noise(64, 64)
    for size, resize in ((224, 256), (32, 37), (28, 32)):
        default = plain_view(image, ViewConfig(size=size))
        assert torch.equal(default, plain_view(image, ViewConfig(size=size, resize=resize)))
        assert not torch.equal(default, plain_view(image, ViewConfig(size=size, resize=size)))


# --- Colour. ---


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4, 2.0])
@pytest.mark.parametrize("image", [noise(), photo()], ids=["noise", "photo"])
def test_brightness_contrast_and_saturation_are_torchvisions(factor: float, image: Tensor):
    """One truncates and one rounds, once in brightness, twice in what has grey levels in it."""
    for ours, theirs, levels in (
        (views.adjust_brightness, T.adjust_brightness, 1),
        (views.adjust_contrast, T.adjust_contrast, 2),
        (views.adjust_saturation, T.adjust_saturation, 2),
    ):
        assert distance(ours(array(image), factor), array(theirs(image, factor))) <= levels


def test_a_factor_of_one_changes_nothing():
    image = array(noise())
    for step in (views.adjust_brightness, views.adjust_contrast, views.adjust_saturation):
        assert np.array_equal(step(image, 1.0), image)


@pytest.mark.parametrize("turn", [-0.5, -0.1, -0.03, 0.0, 0.05, 0.1, 0.5])
@pytest.mark.parametrize("image", [noise(), photo()], ids=["noise", "photo"])
def test_hue_is_torchvisions_to_a_few_levels(turn: float, image: Tensor):
    """OpenCV's hue has 256 steps, of 6 levels each at full saturation, and is rounded twice."""
    error = np.abs(
        views.adjust_hue(array(image), turn).astype(int) - array(T.adjust_hue(image, turn))
    )
    assert error.max() <= 11  # measured: 11, over the whole cube of colours and all turns
    assert error.mean() <= 1  # measured: 0.92


def test_hue_turns_red_through_the_colours():
    red = np.full((2, 2, 3), (255, 0, 0), dtype=np.uint8)
    for turn, colour in ((1 / 3, (0, 255, 0)), (-1 / 3, (0, 0, 255)), (0.5, (0, 255, 255))):
        # A third of the circle is 85.33 steps, 2 levels from 85; and OpenCV's way back has 255.
        expected = np.full((2, 2, 3), colour, dtype=np.uint8)
        assert distance(views.adjust_hue(red, turn), expected) <= 6


def test_grey_drops_colour():
    view = random_view(photo(32, 32), replace(STILL, grey=1.0), generator(0, 0, 0, 0))
    assert torch.equal(view[0], view[1])
    assert torch.equal(view[0], view[2])
    expected = T.rgb_to_grayscale(photo(32, 32), num_output_channels=1)
    assert (view[:1].int() - expected.int()).abs().max() <= 1  # one rounds, one truncates


# --- Strengths and probabilities. ---


def drawn(config: ViewConfig, image: Tensor, count: int = 600) -> Tensor:
    return torch.stack([random_view(image, config, generator(s, 0, 0, 0)) for s in range(count)])


@pytest.mark.parametrize("name", ["flip", "jitter", "grey", "blur"])
def test_probabilities(name: str):
    """The share of 600 draws that differ from none, within four standard errors."""
    settings = {"brightness": 0.8, "blur_sigma": (1.0, 2.0)}
    for probability in (0.0, 0.25, 1.0):
        config = replace(STILL, **{name: probability}, **settings)  # type: ignore[arg-type]
        image = photo(32, 32)
        changed = (drawn(config, image) != image).flatten(1).any(dim=1)
        error = 4 * math.sqrt(probability * (1 - probability) / 600)
        # A factor drawn within a half-thousandth of 1 may leave the image as it is.
        assert abs(changed.float().mean().item() - probability) <= error + 0.005


def test_brightness_is_drawn_from_one_plus_or_minus_its_strength():
    config = replace(STILL, jitter=1.0, brightness=0.4, contrast=0, saturation=0, hue=0)
    level = drawn(config, torch.full((3, 32, 32), 100, dtype=torch.uint8))[:, 0, 0, 0].float()
    assert 60 <= level.min() <= 61
    assert 139 <= level.max() <= 140
    assert abs(level.mean() - 100) < 4  # 600 draws of standard deviation 23: standard error 1


@pytest.mark.parametrize("name", ["contrast", "saturation"])
def test_contrast_and_saturation_stay_within_their_strength(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """Every view lies, within rounding, between those of the least and the greatest factor."""
    monkeypatch.setattr(views, "adjust_hue", lambda view, _turn: view)  # it is not exact at 0
    settings = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0, name: 0.4}
    image = photo(32, 32)
    step = getattr(views, f"adjust_{name}")
    low, high = (step(array(image), factor).astype(int) for factor in (0.6, 1.4))
    least, most = np.minimum(low, high), np.maximum(low, high)
    found = drawn(replace(STILL, jitter=1.0, **settings), image, 200)  # type: ignore[arg-type]
    levels = found.permute(0, 2, 3, 1).numpy().astype(int)
    assert (levels >= least - 1).all()
    assert (levels <= most + 1).all()
    assert (levels.min(axis=0) - least).max() <= 8, "200 draws come near both ends"
    assert (most - levels.max(axis=0)).max() <= 8


def test_jitter_of_no_strength_changes_nothing():
    config = replace(STILL, jitter=1.0, brightness=0, contrast=0, saturation=0, hue=0)
    image = photo(32, 32)
    assert torch.equal(random_view(image, config, generator(0, 0, 0, 0)), image)


def test_hue_is_drawn_from_both_sides():
    config = replace(STILL, jitter=1.0, brightness=0, contrast=0, saturation=0, hue=0.1)
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[0] = 255
    view = drawn(config, image, 200)[:, :, 0, 0]
    # A tenth of the circle from red is 0.6 of the way to yellow or to magenta: 153 levels.
    assert (view[:, 0] == 255).all()
    assert 140 <= view[:, 1].max() <= 156
    assert 140 <= view[:, 2].max() <= 156
    assert (torch.minimum(view[:, 1], view[:, 2]) == 0).all()


def test_the_order_of_colour_steps_is_drawn():
    """Brightness before contrast and after it differ; over many draws of one factor, both occur."""
    image = photo(32, 32)

    class Fixed:
        """Draws 1.4 for every factor and the given order."""

        def __init__(self, order: tuple[int, ...]) -> None:
            self.order = order

        def uniform(self, low: float, high: float) -> float:
            return high

        def permutation(self, _: int) -> tuple[int, ...]:
            return self.order

    results = {
        views._jitter(array(image), EVERYTHING, Fixed(order)).tobytes()  # type: ignore[arg-type]
        for order in itertools.permutations(range(4))
    }
    assert len(results) > 12
    orders = {tuple(generator(s, 0, 0, 0).permutation(4)) for s in range(200)}
    assert len(orders) == 24


# --- Blur. ---


def looped_blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Every pixel a weighted mean of its neighbours out to 3 σ, in float64."""
    radius = max(1, math.ceil(3 * sigma))
    offsets = range(-radius, radius + 1)
    kernel = np.array([math.exp(-(i * i) / (2 * sigma * sigma)) for i in offsets])
    kernel /= kernel.sum()
    padded = np.pad(image.astype(float), ((radius, radius), (radius, radius), (0, 0)), "reflect")
    result = np.zeros(image.shape)
    for row, column in np.ndindex(*image.shape[:2]):
        for i, j in np.ndindex(len(kernel), len(kernel)):
            result[row, column] += kernel[i] * kernel[j] * padded[row + i, column + j]
    return result


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.0])
def test_blur_is_a_gaussian(sigma: float):
    image = array(noise(16, 18))
    # OpenCV's kernel has 8 bits: within one level, border included.
    assert distance(views.gaussian_blur(image, sigma), looped_blur(image, sigma).round()) <= 1


def test_blur_is_drawn_between_its_sigmas():
    config = replace(STILL, blur=1.0, blur_sigma=(0.5, 2.0))
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    image[:, 16, 16] = 255
    peaks = drawn(config, image, 200)[:, 0, 16, 16].float()
    bounds = [views.gaussian_blur(array(image), sigma)[16, 16, 0] for sigma in (2.0, 0.5)]
    assert bounds[0] <= peaks.min() <= bounds[0] + 1
    assert bounds[1] - 10 <= peaks.max() <= bounds[1]


def test_blur_of_an_image_smaller_than_the_kernel():
    flat = np.full((8, 8, 3), 90, dtype=np.uint8)
    assert np.array_equal(views.gaussian_blur(flat, 4.0), flat)


# --- Settings. ---


def test_defaults_pass():
    ViewConfig().check()
    STILL.check()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", 7),
        ("flip", 1.1),
        ("jitter", -0.1),
        ("grey", 2.0),
        ("blur", -1.0),
        ("brightness", 1.5),
        ("contrast", -0.1),
        ("saturation", 1.1),
        ("hue", 0.6),
        ("hue", -0.1),
        ("crop_scale", (0.0, 1.0)),
        ("crop_scale", (0.5, 1.1)),
        ("crop_scale", (0.6, 0.5)),
        ("crop_ratio", (0.0, 1.0)),
        ("blur_sigma", (0.0, 1.0)),
        ("resize", 16),
    ],
)
def test_values_out_of_range_are_named(name: str, value: object):
    with pytest.raises(UserError, match=f"views.{name}"):
        replace(ViewConfig(size=32), **{name: value}).check()  # type: ignore[arg-type]
