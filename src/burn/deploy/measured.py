"""Results about a packed file: size, agreement with the network, and time of an image."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from burn.core.results import Result
from burn.deploy.pack import Packed, open_packed
from burn.deploy.shared import sample_images
from burn.runtime.hardware import processor

_WARM_UP, _MEASURED = 0.2, 1.0  # seconds
_LEAST_RUNS = 3
_SIDE = 224  # pixels, for a file that does not say the size of its images


def pack_results(
    packed: Packed, file: Path, checkpoint: str, model: str | None = None
) -> list[Result]:
    """Return the results of protocol pack: bytes, float32_bytes, cosine and milliseconds.

    Milliseconds are the median of an image in burn-engine on one thread, of this process and
    machine, after a warm-up; the settings say with which side in pixels, which instruction set and
    which processor. `checkpoint` is as the command names it; tables show `model`, by default the
    name that evaluation gives the checkpoint.
    """
    began = time.perf_counter()
    network = open_packed(file, checkpoint)
    side = network.image.size if network.image else _SIDE
    numbers = {
        "bytes": packed.bytes,
        "float32_bytes": packed.float32_bytes,
        "cosine": packed.cosine,
        "milliseconds": round(statistics.median(_milliseconds(network, side)), 4),
    }
    settings = {
        "isa": network.isa or network.backend,
        "threads": 1,
        "image_size": side,
        "processor": processor(),
        "images": packed.images,
        "classes": packed.classes,
    }
    if not model:
        origin = network.origin or {}
        model = f"{origin.get('recipe', '')}, stage {origin.get('stage', '')}"[:80]
    seconds = round(time.perf_counter() - began, 3)
    return [
        Result(
            protocol="pack",
            metric=metric,
            value=value,
            model=model,
            checkpoint=checkpoint,
            train="",
            test="",
            seed=0,
            seconds=seconds,
            settings=settings,
        )
        for metric, value in numbers.items()
    ]


def _milliseconds(network: Any, side: int) -> list[float]:
    """Measure milliseconds for one image repeatedly until about a second has passed."""
    image = np.ascontiguousarray(sample_images(side)[0].permute(1, 2, 0).numpy())
    ready = time.perf_counter() + _WARM_UP
    network(image)  # lays out the memory for images of this size
    while time.perf_counter() < ready:
        network(image)
    times: list[float] = []
    enough = time.perf_counter() + _MEASURED
    while (began := time.perf_counter()) < enough or len(times) < _LEAST_RUNS:
        network(image)
        times.append(time.perf_counter() - began)
    return [1e3 * seconds for seconds in times]
