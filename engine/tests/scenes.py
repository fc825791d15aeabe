"""Pictures in which near-duplicates are looked for."""

from __future__ import annotations

import numpy as np


def scene(seed, height=64, width=64):
    """A picture of soft blobs, uint8 (height, width, 3), the same at any size."""
    random = np.random.default_rng(seed)
    down, right = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    total = np.zeros((height, width, 3))
    for _ in range(60):
        y, x = random.random(2)
        size = random.uniform(0.03, 0.12)
        blob = np.outer(np.exp(-(((down - y) / size) ** 2)), np.exp(-(((right - x) / size) ** 2)))
        total += blob[..., None] * random.uniform(-90, 90, 3)
    return np.clip(128 + total, 0, 255).astype(np.uint8)
