"""Average precision of detections by the rules of Pascal VOC 2007.

VOC numbers pixels from 1 and includes both ends, so a box is xmax - xmin + 1 wide and two boxes
share min(xmax) - max(xmin) + 1 columns. With left = xmin - 1 and right = xmax these are
right - left and min(right) - max(left): VOC's overlap is the plain intersection over union of
half-open boxes counted from 0, as it is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burn.data.formats.voc import Annotation

# Quotients, not sums of 0.05, so that an overlap of exactly 3/5 reaches the threshold 0.6.
THRESHOLDS: tuple[float, ...] = tuple(hundredths / 100 for hundredths in range(50, 100, 5))


@dataclass(frozen=True)
class Detections:
    """Detections in one image.

    Boxes are left, top, right, bottom in pixels, counted from 0, right and bottom exclusive.
    """

    boxes: np.ndarray  # float (detections, 4)
    scores: np.ndarray  # float (detections,), higher for more confident ones; not NaN
    labels: np.ndarray  # int64 (detections,), positions in the classes


@dataclass(frozen=True)
class DetectionScores:
    """Average precisions in [0, 1]; nan for a class without an object to find."""

    ap: np.ndarray  # float64 (classes, thresholds), for the overlaps in `THRESHOLDS`

    @property
    def per_class(self) -> np.ndarray:
        """The mean over the thresholds, float64 (classes,)."""
        return self.ap.mean(axis=1)

    @property
    def AP(self) -> float:
        """The mean over thresholds and classes; nan if no class has an object to find."""
        return self._mean(self.per_class)

    @property
    def AP50(self) -> float:
        """The mean over classes at an overlap of 0.5, which is VOC 2007's own score."""
        return self._mean(self.ap[:, THRESHOLDS.index(0.5)])

    @property
    def AP75(self) -> float:
        """The mean over classes at an overlap of 0.75."""
        return self._mean(self.ap[:, THRESHOLDS.index(0.75)])

    @staticmethod
    def _mean(values: np.ndarray) -> float:
        defined = values[~np.isnan(values)]
        return float(defined.mean()) if len(defined) else float("nan")


def detection_scores(
    detections: Sequence[Detections], truth: Sequence[Annotation], num_classes: int
) -> DetectionScores:
    """Evaluate detections as VOC 2007's devkit does (VOCevaldet.m).

    The detections of a class, over all images, are sorted by descending score; equal scores keep
    the order of images and then of detections. Each detection is matched with the object of its
    class and image that it overlaps most, even if another detection was matched with that before.
    At an overlap of the threshold or more (the devkit has >=, some ports >) it is ignored if that
    object is difficult, right if it is the first match of the object, and wrong if it is a later
    one; below the threshold it is wrong. AP is the mean over the recalls 0, 0.1 … 1 of the best
    precision at that recall or a higher one.
    """
    assert len(detections) == len(truth)
    overlaps, matches = _best_matches(detections, truth)
    scores = _joined([detected.scores for detected in detections], np.float64)
    labels = _joined([detected.labels for detected in detections], np.int64)
    true_labels = _joined([real.labels for real in truth], np.int64)
    difficult = _joined([real.difficult for real in truth], bool)
    for each in (labels, true_labels):
        assert ((each >= 0) & (each < num_classes)).all()
    assert not np.isnan(scores).any()
    num_objects = np.bincount(true_labels[~difficult], minlength=num_classes)
    ap = np.full((num_classes, len(THRESHOLDS)), np.nan)
    for label in np.flatnonzero(num_objects):
        chosen = np.flatnonzero(labels == label)
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        overlap, match = overlaps[chosen], matches[chosen]
        for column, threshold in enumerate(THRESHOLDS):
            hit = overlap >= threshold
            ignored = hit.copy()
            ignored[hit] = difficult[match[hit]]
            right = np.zeros(len(chosen), dtype=bool)
            hits = np.flatnonzero(hit)
            right[hits[np.unique(match[hits], return_index=True)[1]]] = True
            ap[label, column] = _average_precision(right[~ignored], int(num_objects[label]))
    return DetectionScores(ap)


def _average_precision(right: np.ndarray, num_objects: int) -> float:
    """Compute the 11-point AP of sorted detections, `right` or wrong: bool (detections,)."""
    true_positives = right.cumsum()
    precision = true_positives / np.arange(1, len(right) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]  # at this rank or later
    # recall >= k/10 in integers, which are exact
    first = np.searchsorted(10 * true_positives, np.arange(11) * num_objects)
    return float(np.append(best, 0.0)[first].mean())


def _best_matches(
    detections: Sequence[Detections], truth: Sequence[Annotation]
) -> tuple[np.ndarray, np.ndarray]:
    """Find the object of its class and image that each detection overlaps most.

    Its position counts over all images. Without such an object the overlap is 0.
    """
    overlaps, matches, before = list[np.ndarray](), list[np.ndarray](), 0
    for detected, annotation in zip(detections, truth, strict=True):
        best, most = np.zeros(len(detected.labels), dtype=np.int64), np.zeros(len(detected.labels))
        if len(annotation.labels):
            overlap = _overlap(detected.boxes, annotation.boxes)
            overlap[detected.labels[:, None] != annotation.labels] = 0
            best = overlap.argmax(axis=1)
            most = overlap[np.arange(len(best)), best]
        overlaps.append(most)
        matches.append(best + before)
        before += len(annotation.labels)
    return _joined(overlaps, np.float64), _joined(matches, np.int64)


def _overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the intersection over union of boxes (n, 4) and (m, 4): (n, m)."""
    a, b = a.astype(np.float64)[:, None], b.astype(np.float64)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = sides.clip(0).prod(axis=-1)
    union = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - common
    return np.divide(common, union, out=np.zeros_like(common), where=common > 0)


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)
