"""The built-in images: scikit-learn's 1,797 handwritten digits, enlarged from 8×8 to 32×32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import cv2
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from burn.data.base import Split

if TYPE_CHECKING:
    from torch import Tensor

_SIDE = 32


class Digits:
    """The handwritten digits: 1,437 images for training, or 360 for testing.

    The split is fixed and stratified by digit.
    """

    classes = tuple("0123456789")

    def __init__(self, split: Split) -> None:
        data = cast(Any, load_digits())
        train, test = train_test_split(
            np.arange(len(data.target)), test_size=360, random_state=0, stratify=data.target
        )
        chosen = np.sort(train if split == "train" else test)
        grey = (data.images[chosen] * (255 / 16)).round().astype(np.uint8)
        self._images = _enlarge(grey)
        self.labels: np.ndarray | None = data.target[chosen].astype(np.int64)
        self.name = f"digits:{split}"
        self.fingerprint = f"digits:{split}:{len(chosen)}"

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int) -> Tensor:
        import torch  # here, because a packed network reads pixels without it

        return torch.from_numpy(self._images[index]).expand(3, -1, -1).contiguous()

    def pixels(self, index: int) -> np.ndarray:
        return np.repeat(self._images[index][..., None], 3, axis=2)

    def describe(self, index: int) -> str:
        return f"{self.name}[{index}]"


def _enlarge(grey: np.ndarray) -> np.ndarray:
    """Enlarge images by bicubic interpolation, to the same pixels on every processor.

    cv2.resize itself rounds some pixels of uint8 images otherwise on processors with AVX-512. The
    weights of an enlargement by 4 are multiples of 1/2048, so that float64 is exact.

    Args:
        grey: uint8 (images, 8, 8).

    Returns:
        uint8 (images, 32, 32).
    """
    side = grey.shape[1]
    weights = cv2.resize(np.eye(side), (side, _SIDE), interpolation=cv2.INTER_CUBIC)
    enlarged = weights @ grey.astype(np.float64) @ weights.T
    return np.floor(enlarged + 0.5).clip(0, 255).astype(np.uint8)
