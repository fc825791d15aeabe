"""Program for a small computer: numpy and burn-engine run a packed file on images.

`environment.py` runs this file in an environment that holds nothing else:

    python on_device.py MODEL.bnn IMAGES.npy SCORES.npy

It writes the model's outputs and prints what it used and how long an image took, as JSON.
"""

import json
import sys
import time
from importlib.metadata import distributions
from statistics import median

import numpy as np

import burn_engine


def main() -> None:
    """Read images, uint8 (n, h, w, 3), and write the outputs, float32 (n, outputs)."""
    path, images_file, scores_file = sys.argv[1:]
    began = time.perf_counter()
    model = burn_engine.load(path)
    load_ms = 1e3 * (time.perf_counter() - began)
    images = np.load(images_file)
    np.save(scores_file, model(images))
    times = []
    for image in images[:100]:
        began = time.perf_counter()
        model(image)
        times.append(1e3 * (time.perf_counter() - began))
    packages = sorted(f"{d.metadata['Name']} {d.version}" for d in distributions())
    facts = {
        "packages": packages,
        "runs_on": model.isa or "NumPy reference",
        "load_ms": load_ms,
        "image_ms": median(times),
    }
    print(json.dumps(facts))


main()
