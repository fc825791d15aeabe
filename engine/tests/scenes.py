"""Pictures in which near-duplicates are looked for."""

from __future__ import annotations

import numpy as np


def scene(seed, height=64, width=64):
    """A picture of soft blobs, uint8 (height, width, 3), the same at any size."""
    random = np.random.default_rng(seed)
    down, right = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    blobs = [
        (*random.random(2), random.uniform(0.03, 0.12), random.uniform(-90, 90, 3))
        for _ in range(60)
    ]
    y, x, size, colour = (np.array(each) for each in zip(*blobs, strict=True))
    rows = np.exp(-(((down[:, None] - y) / size) ** 2))
    columns = np.exp(-(((right[:, None] - x) / size) ** 2))
    total = np.stack([(rows * colour[:, c]) @ columns.T for c in range(3)], axis=2)
    return np.clip(128 + total, 0, 255).astype(np.uint8)
