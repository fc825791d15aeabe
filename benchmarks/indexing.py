"""Measure `burn-engine index` against decoding alone, which is its limit.

    python benchmarks/indexing.py PHOTOS --rounds 5

Two processes take turns, with as many threads each: one only reads the JPEG files of a folder and
decodes them with Pillow at the size that the network needs (`draft`), the other is the command
`burn-engine index` from its start to the written file. `rate` is the second's images in a second as
a share of the first's, `processor` the same of processor time, which other programs disturb least.
A number is the median over the rounds.

Then one thread takes a thousand of the photographs through the steps of an image, all of them
through one step after the other, in turn: microseconds of processor time an image, medians over the
rounds. `resizing by Pillow` is what the reference does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import burn_engine
from burn.runtime.hardware import processor
from burn_engine.images import enough_for, prepare, read_photo
from burn_engine.many import paths_in

_SOME = 1_000  # photographs of the steps
_TOGETHER = 8  # images of one call of the network, as in `burn-engine index`
# Apart from Pillow it imports nothing. Its arguments are threads and pixels of the short side.
_DECODING = """
import io, sys
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
threads, shortest = map(int, sys.argv[1:])
def decode(path):
    with open(path, "rb") as file:
        image = Image.open(io.BytesIO(file.read()), formats=["JPEG"])
    if shortest < min(image.size):
        share = shortest / min(image.size)
        image.draft(None, (int(image.width * share) + 1, int(image.height * share) + 1))
    image.load()
with ThreadPoolExecutor(threads) as pool:
    for _ in pool.map(decode, sys.stdin.read().splitlines()):
        pass
"""
_INDEXING = "import sys; from burn_engine.cli import main; sys.exit(main())"


def of_process(command: Sequence[str], listed: str) -> tuple[float, float]:
    """Return the seconds of a process that reads a list, by the clock and of processors."""
    began, before = time.perf_counter(), os.times()
    subprocess.run(command, input=listed, text=True, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system
    return time.perf_counter() - began, used - before.children_user - before.children_system


def steps(paths: Sequence[str], model: burn_engine.Model, rounds: int) -> dict[str, float]:
    """Return the processor time of an image's steps on one thread, in microseconds."""
    size = model.image
    shortest = enough_for(size)
    decoded = [read_photo(path, shortest) for path in paths]
    prepared = np.stack([prepare(photo, size) for photo in decoded])

    def by_pillow(i: int) -> object:
        os.environ["BURN_ENGINE_ISA"] = "reference"
        try:
            return prepare(decoded[i], size)
        finally:
            del os.environ["BURN_ENGINE_ISA"]

    def together(i: int) -> object:
        return None if i % _TOGETHER else model.embed(prepared[i : i + _TOGETHER])

    ways: dict[str, Callable[[int], object]] = {
        "reading": lambda i: Path(paths[i]).read_bytes(),
        "reading and decoding": lambda i: read_photo(paths[i], shortest),
        "resizing": lambda i: prepare(decoded[i], size),
        "resizing by Pillow": by_pillow,
        "network, one image": lambda i: model.embed(prepared[i]),
        "network, eight images": together,
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, step in ways.items():
            began = time.process_time()
            for i in range(len(paths)):
                step(i)
            taken[name].append(1e6 * (time.process_time() - began) / len(paths))
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("photos", help="folder of JPEG files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = burn_engine.load("photos")
    paths = [os.path.abspath(path) for path in paths_in([options.photos])]  # noqa: PTH100
    listed = "\n".join(paths) + "\n"
    threads = str(options.threads)
    times: dict[str, list[tuple[float, float]]] = {"decoding": [], "index": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            decoding = [sys.executable, "-c", _DECODING, threads, str(enough_for(model.image))]
            indexing = [sys.executable, "-c", _INDEXING, "index", "-", f"{folder}/photos.index"]
            times["decoding"].append(of_process(decoding, listed))
            times["index"].append(of_process([*indexing, "--readers", threads], listed))
    numbers: dict[str, float] = {}
    for at, what in enumerate(("rate", "processor")):
        pairs = zip(times["decoding"], times["index"], strict=True)
        numbers[what] = statistics.median(decoding[at] / index[at] for decoding, index in pairs)
    for name, pairs in times.items():
        for at, what in enumerate(("seconds", "processor seconds")):
            numbers[f"{name}, {what}"] = statistics.median(pair[at] for pair in pairs)
    random = np.random.default_rng(0)
    some = random.choice(len(paths), min(_SOME, len(paths)), replace=False)
    found = steps([paths[i] for i in some], model, options.rounds)
    numbers |= {f"{name}, µs": value for name, value in found.items()}
    if options.json:
        print(json.dumps({"name": processor(), "isa": model.isa, "images": len(paths), **numbers}))
        return
    print(f"{processor()}, {model.isa}: {len(paths):,} photographs, {threads} threads")
    for name, value in numbers.items():
        print(f"  {name:28} {value:.4g}")


if __name__ == "__main__":
    main()
