"""Measure how fast an image becomes a view: JPEG decoding and augmentation, on one core.

    python benchmarks/decode.py [--json] [--rounds 7]

Ours is `decode` and `random_view` at 224 pixels; the peer is the common implementation with Pillow
and torchvision's transforms of Pillow's images. Both see the same 500×375 JPEGs, draw from the same
distributions and take turns. A number is the median over the rounds, in processor time of one
thread, which other programs disturb least. `decode_speedup` is the ratio of whole times. A second
peer blurs as MoCo's and BYOL's code does, by Pillow's box blurs, which are several times as fast as
torchvision's convolution (`decode_speedup_pillow_blur`).

`teacher_size_cost` is the cost of --teacher-size: a view of 96 pixels for the student and the same
view of 224 for its teacher, in units of the student's view alone, which is all that is drawn if the
teacher's features are cached. Both are rendered from one decoded image.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable, Sequence

import cv2
import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision import transforms as tv

from burn.data import augment as views
from burn.data.augment import generator, random_view
from burn.data.decode import decode
from burn.data.view_config import ViewConfig

_CONFIG = ViewConfig()
_SMALL = ViewConfig(size=96)
_HEIGHT, _WIDTH = 375, 500


def photograph(seed: int) -> Image.Image:
    """Return an image with colours over all scales, falling off as in a photograph, and noise."""
    random = np.random.default_rng(seed)
    levels = np.full((_HEIGHT, _WIDTH, 3), 128.0)
    for side in (3, 6, 12, 24, 48, 96, 192):
        grid = random.normal(size=(3 * side // 4, side, 1)) + 0.4 * random.normal(
            size=(3 * side // 4, side, 3)
        )
        levels += (
            90 / side**0.5 * cv2.resize(grid, (_WIDTH, _HEIGHT), interpolation=cv2.INTER_CUBIC)
        )
    levels += random.normal(0, 3, levels.shape)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def jpegs(count: int = 32) -> list[bytes]:
    """Return photographs of 500×375 pixels as JPEGs of quality 90."""
    encoded = []
    for seed in range(count):
        buffer = io.BytesIO()
        photograph(seed).save(buffer, "JPEG", quality=90)
        encoded.append(buffer.getvalue())
    return encoded


class PillowBlur:
    """The blur of MoCo's and BYOL's code."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """Blur the image by a standard deviation between 0.1 and 2 pixels."""
        sigma = float(torch.empty(1).uniform_(*_CONFIG.blur_sigma))
        return image.filter(ImageFilter.GaussianBlur(sigma))


def peer(blur: Callable[[Image.Image], object]) -> Callable[[bytes], Tensor]:
    """Return the peer's function from encoded bytes to a view, by Pillow and torchvision.

    Args:
        blur: The blur that is applied at random.
    """
    transform = tv.Compose(
        [
            tv.RandomResizedCrop(
                _CONFIG.size,
                _CONFIG.crop_scale,
                _CONFIG.crop_ratio,
                interpolation=tv.InterpolationMode.BICUBIC,
            ),
            tv.RandomHorizontalFlip(_CONFIG.flip),
            tv.RandomApply(
                [
                    tv.ColorJitter(
                        _CONFIG.brightness, _CONFIG.contrast, _CONFIG.saturation, _CONFIG.hue
                    )
                ],
                _CONFIG.jitter,
            ),
            tv.RandomGrayscale(_CONFIG.grey),
            tv.RandomApply([blur], _CONFIG.blur),
            tv.PILToTensor(),
        ]
    )
    return lambda encoded: torch.as_tensor(transform(_open(encoded)))


def _open(encoded: bytes) -> Image.Image:
    return Image.open(io.BytesIO(encoded)).convert("RGB")


class Ours:
    """Our function from encoded bytes to views; every call draws anew.

    Args:
        configs: Configurations of the views; all views of a call have the same random draws.
    """

    def __init__(self, *configs: ViewConfig) -> None:
        self._configs = configs
        self._draws = 0

    def __call__(self, encoded: bytes) -> list[Tensor]:
        """Return a view of each configuration, uint8 (3, size, size)."""
        self._draws += 1
        image = decode(encoded, "image")
        return [
            random_view(image, config, generator(0, 0, self._draws, 0)) for config in self._configs
        ]


def _seconds(run: Callable[[bytes], object], images: Sequence[bytes]) -> float:
    began = time.process_time()
    for image in images:
        run(image)
    return (time.process_time() - began) / len(images)


def _parts(images: Sequence[bytes], draw: int) -> dict[str, float]:
    """Return the seconds per image of our steps, executed one by one as in `random_view`."""
    seconds = {"decode": 0.0, "crop_resize": 0.0, "jitter": 0.0, "rest": 0.0}
    for i, encoded in enumerate(images):
        random = generator(1, draw, i, 0)
        times = [time.process_time()]
        image = decode(encoded, "image")
        times.append(time.process_time())
        view = views._crop_and_flip(image, _CONFIG, random)
        times.append(time.process_time())
        if random.random() < _CONFIG.jitter:
            view = views._jitter(view, _CONFIG, random)
        times.append(time.process_time())
        if random.random() < _CONFIG.grey:
            view = views.adjust_saturation(view, 0.0)
        if random.random() < _CONFIG.blur:
            view = views.gaussian_blur(view, random.uniform(*_CONFIG.blur_sigma))
        views._to_tensor(view)
        times.append(time.process_time())
        for name, first, last in zip(seconds, times, times[1:], strict=False):
            seconds[name] += (last - first) / len(images)
    return seconds


def decode_ratio(rounds: int) -> dict[str, float]:
    """Measure our speed in multiples of the peer's, and the time of our steps. It uses one thread.

    Args:
        rounds: Number of measurements, of which the median counts.

    Returns:
        decode_speedup, decode_speedup_pillow_blur, teacher_size_cost; ours_per_second,
        peer_per_second, peer_pillow_blur_per_second, student_96_per_second,
        student_96_teacher_224_per_second (images/s); decode_us, crop_resize_us, jitter_us, rest_us
        (microseconds per image, averaged over the random draws).
    """
    threads, cv_threads = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    images = jpegs()
    runs = {
        "ours": Ours(_CONFIG),
        "student": Ours(_SMALL),
        "both": Ours(_SMALL, _CONFIG),
        "peer": peer(tv.GaussianBlur(23, _CONFIG.blur_sigma)),
        "pillow_blur": peer(PillowBlur()),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    parts: list[dict[str, float]] = []
    try:
        for run in runs.values():  # a first round, not counted: imports, caches, allocations
            _seconds(run, images)
        for number in range(rounds):
            for name, run in runs.items():
                times[name].append(_seconds(run, images))
            parts.append(_parts(images, number))
    finally:
        torch.set_num_threads(threads)
        cv2.setNumThreads(cv_threads)
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    return {
        "decode_speedup": median["peer"] / median["ours"],
        "decode_speedup_pillow_blur": median["pillow_blur"] / median["ours"],
        "teacher_size_cost": median["both"] / median["student"],
        "ours_per_second": 1 / median["ours"],
        "peer_per_second": 1 / median["peer"],
        "peer_pillow_blur_per_second": 1 / median["pillow_blur"],
        "student_96_per_second": 1 / median["student"],
        "student_96_teacher_224_per_second": 1 / median["both"],
        **{f"{name}_us": 1e6 * statistics.median(p[name] for p in parts) for name in parts[0]},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    numbers = decode_ratio(options.rounds)
    if options.json:
        print(json.dumps(numbers))
        return
    for name, value in numbers.items():
        print(f"{name:34} {value:.4g}")


if __name__ == "__main__":
    main()
