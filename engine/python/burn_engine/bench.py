"""Measures the time per image, for `burn-engine bench`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from burn_engine.images import check_size
from burn_engine.machine import Machine, celsius, describe, slowed
from burn_engine.model import Model, load_bytes


class Times(NamedTuple):
    """Milliseconds per image.

    Attributes:
        size: Side of the images in pixels.
        batch: Images in one call.
        threads: Number of threads.
        backend: What ran: "native" or "reference".
        isa: Instruction set; "" with the reference.
        runs: Number of calls.
        median_ms: The median.
        p10_ms: The 10th percentile.
        p90_ms: The 90th percentile.
    """

    size: int
    batch: int
    threads: int
    backend: str
    isa: str
    runs: int
    median_ms: float
    p10_ms: float
    p90_ms: float


def measure(model: Model, threads: int, size: int | None, batch: int, seconds: float) -> Times:
    """Measure a model on random images, after one call that is not counted.

    Args:
        model: The model.
        threads: The number of threads that it was loaded with.
        size: Side of the images in pixels; None for the model's own, or 224.
        batch: Images in one call.
        seconds: Time to measure for; at least three calls are made.

    Raises:
        ValueError: The images are too large.
    """
    size = _side(model, size)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (batch, size, size, 3), dtype=np.uint8)
    model(images)  # allocates the memory and warms the caches
    milliseconds: list[float] = []
    end = time.perf_counter() + seconds
    while len(milliseconds) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        model(images)
        milliseconds.append((time.perf_counter() - start) * 1000 / batch)
    low, median, high = (float(p) for p in np.percentile(milliseconds, (10, 50, 90)))
    runs = len(milliseconds)
    return Times(size, batch, threads, model.backend, model.isa, runs, median, low, high)


def report(
    name: str, data: bytes, isa: str | None, size: int | None, seconds: float
) -> Iterator[str]:
    """Measure one thread, all cores and batches of 8, and yield a page in Markdown line by line.

    It states the machine, the file and whether heat slowed the machine, so that numbers of
    different machines can be compared.

    Args:
        name: The packed file's name.
        data: Its content.
        isa: Instruction set; None for the best.
        size: Side of the images in pixels; None for the model's own, or 224.
        seconds: Time to measure for, of each line.

    Raises:
        ValueError: The file, the instruction set or the size is invalid.
    """
    _side(load_bytes(data, 1, isa), size)  # refused before anything is printed
    machine = describe()
    yield _named(machine)
    yield ""
    digest = hashlib.sha256(data).hexdigest()[:12]
    yield f"{name}: {len(data):,} bytes, SHA-256 {digest}…"
    yield ""
    yield "| instruction set | pixels | threads | batch | ms per image | 10 % | 90 % |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    before = celsius()
    for threads, batch in dict.fromkeys([(1, 1), (1, 8), (machine.cores, 1), (machine.cores, 8)]):
        times = measure(load_bytes(data, threads, isa), threads, size, batch, seconds)
        yield (
            f"| {times.isa or 'NumPy reference'} | {times.size} | {threads} | {batch} "
            f"| {times.median_ms:.3f} | {times.p10_ms:.3f} | {times.p90_ms:.3f} |"
        )
    after = celsius()
    yield ""
    if before is not None and after is not None:
        yield f"Temperature {before:.0f} °C before, {after:.0f} °C after."
    if (slow := slowed()) is not None:
        yield (
            "The clock was lowered by heat or by weak power since the machine started: "
            "the numbers are too high."
            if slow
            else "The clock was not lowered by heat or by weak power."
        )


def _side(model: Model, size: int | None) -> int:
    size = size or (model.image.size if model.image else 224)
    check_size(size, size)
    return size


def _named(machine: Machine) -> str:
    clock = f", {machine.megahertz} MHz" if machine.megahertz else ""
    processor = f"{machine.processor}, {machine.cores} cores{clock}"
    named = f"{machine.board} ({processor})" if machine.board else processor
    return f"{named}; {machine.system}; {machine.versions}"
