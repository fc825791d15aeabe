"""The built-in images: scikit-learn's 1,797 handwritten digits, enlarged from 8×8 to 32×32."""

from __future__ import annotations

import base64
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from burn.core.errors import UserError
from burn.data.base import PixelSource, Split

_SIDE = 32
# Scikit-learn's stratified split, train_test_split(test_size=360, random_state=0), one bit for each
# image: importing scikit-learn takes nearly as long as importing torch.
_TEST = np.unpackbits(
    np.frombuffer(
        base64.b64decode(
            "AAAEiDUkEEAABkEAk0IFABoACAEAJAAoBiwSABAAlAoAkBkSBCD4oAKBEKAACAqIIEQVJElCQKAKAAAAQATYAACB"
            "gCAASAXEABBACKAQAAVASAAwEAACDsQJAAIkhACDqAE8IKaYCgAAAAsIQAgEoBhIAgJAQcEAgARARoQ3aoECFgBE"
            "gABAQqCkGApQAIQLhWHGCBCACABMgMAgBAaOAAEIggCBADgIA8AIGQAAEA4BAIQQoCEAMygpBMBEwIBoDgECgwCC"
            "AIgipkAsJAQhCKhggJCBoAwCggJCEgE4pBUA"
        ),
        np.uint8,
    ),
    count=1797,
).astype(bool)


class Digits(PixelSource):
    """The handwritten digits: 1,437 images for training, or 360 for testing.

    The split is fixed and stratified by digit.
    """

    classes = tuple("0123456789")

    def __init__(self, split: Split) -> None:
        self._images, labels = _enlarged(split)
        self.labels: np.ndarray | None = labels.copy()
        self.name = f"digits:{split}"
        self.fingerprint = f"digits:{split}:{len(labels)}"

    def __len__(self) -> int:
        return len(self._images)

    def pixels(self, index: int) -> np.ndarray:
        return np.repeat(self._images[index][..., None], 3, axis=2)

    def describe(self, index: int) -> str:
        return f"{self.name}[{index}]"


@lru_cache(maxsize=2)
def _enlarged(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return the images, uint8 (images, 32, 32), and labels of a split, which stay as they are."""
    images, labels = _read()
    chosen = np.flatnonzero(_TEST if split == "test" else ~_TEST)
    return _enlarge((images[chosen] * (255 / 16)).round().astype(np.uint8)), labels[chosen]


@lru_cache(maxsize=1)
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Read images, float64 (images, 8, 8) in 0 … 16, and labels, without importing scikit-learn."""
    package = find_spec("sklearn")
    folder = Path(package.origin).parent if package is not None and package.origin else Path()
    file = folder / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():
        raise UserError("the digits are part of scikit-learn: pip install scikit-learn")
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


def _enlarge(grey: np.ndarray) -> np.ndarray:
    """Enlarge images, uint8 (images, 8, 8), by bicubic interpolation to 32×32 pixels.

    The pixels are the same on every processor: cv2.resize itself rounds some of uint8 images
    otherwise on processors with AVX-512. The weights of an enlargement by 4 are multiples of
    1/2048, so that float64 is exact.
    """
    side = grey.shape[1]
    weights = cv2.resize(np.eye(side), (side, _SIDE), interpolation=cv2.INTER_CUBIC)
    enlarged = weights @ grey.astype(np.float64) @ weights.T
    return np.floor(enlarged + 0.5).clip(0, 255).astype(np.uint8)
