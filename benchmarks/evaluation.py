"""Measure the speed of evaluation: images/s of feature extraction, and the SVM protocol of VOC07.

    python benchmarks/evaluation.py [--classes 20] [--json]

Features: ReActNet-A at 224 pixels from 500×375 JPEGs in memory, including decoding, against the
same loop in float32 with channels first. SVM: 5,011 × 4,096 features and 20 classes, 19 costs, 3
folds and the refit, against scikit-learn's LinearSVC (LIBLINEAR) on one class and three costs of
the 19, interleaved. LIBLINEAR's full protocol is not run.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from sklearn.svm import LinearSVC
from torch import Tensor

from burn.backbones.config import BackboneConfig
from burn.backbones.registry import build_backbone
from burn.core.types import Precision
from burn.data.decode import decode
from burn.data.view_config import ViewConfig
from burn.evaluation.features import extract_features
from burn.evaluation.svm.solver import COSTS, SvmData, fit_svm, svm_full
from burn.runtime.compute import uses_bfloat16

_PEER_COSTS = (COSTS[4], COSTS[12], COSTS[16])


class Jpegs:
    """A source of 64 noisy gradients as JPEGs of 500×375 pixels."""

    name, fingerprint = "jpegs", ""
    classes: tuple[str, ...] = ()
    labels: np.ndarray | None = None

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._encoded = []
        for _ in range(64):
            corners = random.uniform(0, 255, (2, 2, 3)).astype(np.uint8)
            smooth = Image.fromarray(corners).resize((500, 375), Image.Resampling.BICUBIC)
            noisy = np.asarray(smooth, np.int16) + random.integers(-12, 13, (375, 500, 3))
            buffer = io.BytesIO()
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
            self._encoded.append(buffer.getvalue())

    def __len__(self) -> int:
        return len(self._encoded)

    def read(self, index: int) -> Tensor:
        return decode(self._encoded[index], str(index))

    def describe(self, index: int) -> str:
        return str(index)


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each function; the functions take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def features() -> dict[str, float]:
    """Return images/s of extraction and of the plain loop, and their ratio."""
    source, views = Jpegs(), ViewConfig()
    torch.manual_seed(0)
    ours = build_backbone(BackboneConfig(), Precision.BINARY).eval()
    plain = build_backbone(BackboneConfig(), Precision.BINARY).eval()
    plain = plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    plain.normalize = lambda images: (images / 255 - plain.mean) / plain.std  # type: ignore[method-assign]
    bfloat16 = uses_bfloat16("auto", "cpu")
    seconds = interleaved(
        {
            "ours": lambda: extract_features(ours, source, views, batch_size=32, bfloat16=bfloat16),
            "plain": lambda: extract_features(plain, source, views, batch_size=32),
        },
        rounds=3,
    )
    return {
        "images_per_second": len(source) / seconds["ours"],
        "plain_images_per_second": len(source) / seconds["plain"],
        "features_speedup": seconds["plain"] / seconds["ours"],
    }


def svm_data(num_classes: int) -> SvmData:
    """Return features like pooled ReLU maps: positive, correlated, normalized; classes overlap."""
    random = np.random.default_rng(0)
    mixing = random.normal(size=(200, 4096)).astype(np.float32)
    centres = random.normal(size=(num_classes, 200)).astype(np.float32)

    def draw(number: int) -> tuple[np.ndarray, np.ndarray]:
        present = random.random((number, num_classes)) < 0.075
        hidden = random.normal(size=(number, 200)) + 0.2 * present @ centres
        values = np.maximum(hidden.astype(np.float32) @ mixing, 0)
        values += 4 * np.maximum(random.normal(size=values.shape), 0).astype(np.float32)
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        return values.astype(np.float32), np.where(present, 1, -1).astype(np.int8)

    return SvmData(*draw(5011), *draw(4952), tuple(str(i) for i in range(num_classes)))


def svm(num_classes: int) -> dict[str, float]:
    """Return the seconds of the full protocol, and of a part of it that LIBLINEAR runs as well."""
    data = svm_data(num_classes)
    began = time.perf_counter()
    scores = svm_full(data, seed=0)
    full = time.perf_counter() - began
    positive = data.train_targets[:, 0] > 0

    def liblinear() -> None:
        for cost in _PEER_COSTS:
            LinearSVC(
                C=cost,
                dual=True,  # pyright: ignore[reportArgumentType] - its stubs know "auto" alone
                loss="squared_hinge",
                intercept_scaling=1,
                tol=1e-4,
                max_iter=2000,
                class_weight={True: 2, False: 1},
            ).fit(data.train, positive)

    part = interleaved(
        {"ours": lambda: fit_svm(data.train, positive, _PEER_COSTS), "liblinear": liblinear},
        rounds=1,
    )
    return {
        "svm_classes": num_classes,
        "svm_seconds": full,
        "svm_map_cv": 100 * scores.mean_ap("cv"),
        "svm_part_seconds": part["ours"],
        "liblinear_part_seconds": part["liblinear"],
        "svm_part_speedup": part["liblinear"] / part["ours"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    numbers = {"threads": torch.get_num_threads(), **features(), **svm(options.classes)}
    if options.json:
        print(json.dumps(numbers))
        return
    for name, value in numbers.items():
        print(f"{name:28} {value:.4g}")


if __name__ == "__main__":
    main()
