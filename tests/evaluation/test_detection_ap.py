"""VOC 2007's average precision: against plain loops on VOC's pixel numbers, and torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from torchmetrics.detection import MeanAveragePrecision

from burn.data.formats.voc import Annotation
from burn.evaluation.detection.average_precision import (
    THRESHOLDS,
    Detections,
    DetectionScores,
    detection_scores,
)


def truth(boxes: ArrayLike, labels: ArrayLike, difficult: ArrayLike | None = None):
    flags = np.zeros(len(np.asarray(labels))) if difficult is None else difficult
    return Annotation(
        np.array(boxes, dtype=np.float32).reshape(-1, 4),
        np.array(labels, dtype=np.int64),
        np.array(flags, dtype=bool),
    )


def found(boxes: ArrayLike, scores: ArrayLike, labels: ArrayLike):
    return Detections(
        np.array(boxes, dtype=np.float32).reshape(-1, 4),
        np.array(scores, dtype=np.float32),
        np.array(labels, dtype=np.int64),
    )


# --- The slow twin. ---


def overlap_of_pixels(a: Sequence[float], b: Sequence[float], one: int = 1) -> Fraction:
    """Of boxes (xmin, ymin, xmax, ymax) in VOC's numbers, where widths are xmax - xmin + `one`."""
    p, q = ([Fraction(float(v)) for v in box] for box in (a, b))
    width = min(p[2], q[2]) - max(p[0], q[0]) + one
    height = min(p[3], q[3]) - max(p[1], q[1]) + one
    if width <= 0 or height <= 0:
        return Fraction(0)
    areas = [(box[2] - box[0] + one) * (box[3] - box[1] + one) for box in (p, q)]
    return width * height / (areas[0] + areas[1] - width * height)


def numbered(box: np.ndarray) -> list[float]:
    """VOC's pixel numbers of a half-open box."""
    return [box[0] + 1, box[1] + 1, box[2], box[3]]


def slow_ap(detections, annotations, label: int, threshold: Fraction) -> float:
    """VOCevaldet.m in loops and fractions."""
    objects = sum(
        real.labels[j] == label and not real.difficult[j]
        for real in annotations
        for j in range(len(real.labels))
    )
    if objects == 0:
        return float("nan")
    ranked = [
        (-float(d.scores[k]), image, k)
        for image, d in enumerate(detections)
        for k in range(len(d.labels))
        if d.labels[k] == label
    ]
    taken = set()
    right, wrong = 0, 0
    points: list[tuple[Fraction, Fraction]] = []
    for _, image, k in sorted(ranked):
        best, best_j = Fraction(-1), -1
        real = annotations[image]
        for j in range(len(real.labels)):
            if real.labels[j] == label:
                overlap = overlap_of_pixels(
                    numbered(detections[image].boxes[k]), numbered(real.boxes[j])
                )
                if overlap > best:
                    best, best_j = overlap, j
        if best >= threshold:
            if real.difficult[best_j]:
                continue
            if (image, best_j) in taken:
                wrong += 1
            else:
                right += 1
                taken.add((image, best_j))
        else:
            wrong += 1
        points.append((Fraction(right, objects), Fraction(right, right + wrong)))
    total = Fraction(0)
    for k in range(11):
        total += max((p for r, p in points if r >= Fraction(k, 10)), default=Fraction(0))
    return float(total / 11)


def slow_scores(detections, annotations, num_classes: int) -> np.ndarray:
    thresholds = [Fraction(round(100 * t), 100) for t in THRESHOLDS]
    return np.array(
        [
            [slow_ap(detections, annotations, label, threshold) for threshold in thresholds]
            for label in range(num_classes)
        ]
    )


def agree(detections, annotations, num_classes: int) -> DetectionScores:
    scores = detection_scores(detections, annotations, num_classes)
    assert scores.ap.shape == (num_classes, 10)
    # A mean of 11 quotients in double precision.
    np.testing.assert_allclose(
        scores.ap, slow_scores(detections, annotations, num_classes), rtol=0, atol=1e-14
    )
    return scores


# Small grids make ties, equal overlaps and overlaps on a threshold frequent; quarters of a pixel
# are exact in float32.
BOXES = st.tuples(
    *[st.integers(0, 24).map(lambda v: v / 4)] * 2, *[st.integers(1, 24).map(lambda v: v / 4)] * 2
).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))
LABELS = st.integers(0, 2)
TRUTH = st.lists(st.tuples(BOXES, LABELS, st.booleans()), max_size=5)
FOUND = st.lists(st.tuples(BOXES, st.integers(0, 4), LABELS), max_size=7)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TRUTH, FOUND, st.integers(0, 5)), max_size=4))
def test_equal_to_loops_on_any_boxes(images):
    annotations, detections = [], []
    for objects, strays, copied in images:
        annotations.append(truth(*([item[i] for item in objects] for i in range(3))))
        # some detections are the objects themselves, so that the higher thresholds are reached
        guesses = [*strays, *((box, 2, label) for box, label, _ in objects[:copied])]
        detections.append(found(*([item[i] for item in guesses] for i in range(3))))
    agree(detections, annotations, 4)


def scattered(seed: int, images: int, num_classes: int, ties: bool):
    """Objects, and detections around them, doubled, missing, of the wrong class or by chance."""
    random = np.random.default_rng(seed)
    annotations, detections = [], []
    for _ in range(images):
        count = int(random.integers(0, 6))
        corners = random.integers(0, 200, (count, 2))
        boxes = np.concatenate([corners, corners + random.integers(10, 80, (count, 2))], axis=1)
        labels = random.integers(0, num_classes, count)
        annotations.append(truth(boxes, labels, random.random(count) < 0.25))
        picked = random.integers(0, count, 2 * count) if count else np.zeros(0, dtype=int)
        near = boxes[picked] + random.integers(-6, 7, (len(picked), 4))
        named = np.where(random.random(len(picked)) < 0.9, labels[picked], 0)
        stray = random.integers(0, 200, (3, 2))
        stray = np.concatenate([stray, stray + random.integers(1, 90, (3, 2))], axis=1)
        all_boxes = np.concatenate([near.reshape(-1, 4), stray])
        scores = random.random(len(all_boxes))
        detections.append(
            found(
                all_boxes,
                scores.round(1) if ties else scores,
                np.concatenate([named, random.integers(0, num_classes, 3)]),
            )
        )
    return detections, annotations


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_loops_on_scattered_boxes(seed: int, ties: bool):
    detections, annotations = scattered(seed, 30, 4, ties)
    scores = agree(detections, annotations, 5)
    assert np.isnan(scores.ap[4]).all()
    assert 0.1 < scores.AP50 < 0.9, "a test with something to tell apart"
    assert scores.AP50 > scores.AP75


def test_equal_scores_keep_their_order():
    """Swapping two equal scores changes the result, the same input never does."""
    box, off = (0, 0, 10, 10), (50, 50, 60, 60)
    real = [truth([box], [0])]
    right_first = detection_scores([found([box, off], [0.5, 0.5], [0, 0])], real, 1)
    wrong_first = detection_scores([found([off, box], [0.5, 0.5], [0, 0])], real, 1)
    assert right_first.AP50 == 1
    assert wrong_first.AP50 == 0.5
    images = [found([off], [0.5], [0]), found([box], [0.5], [0])]
    assert detection_scores(images, [truth([], []), *real], 1).AP50 == 0.5


# --- The rules, one by one. ---


def test_thresholds():
    assert THRESHOLDS == (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def test_an_overlap_of_exactly_the_threshold_counts():
    for hundredths, column in ((50, 0), (60, 2), (75, 5), (95, 9)):
        real = [truth([(0, 0, 100, 1)], [0])]
        scores = detection_scores([found([(0, 0, hundredths, 1)], [1.0], [0])], real, 1)
        assert scores.ap[0].tolist() == [1.0] * (column + 1) + [0.0] * (9 - column)


def test_the_second_detection_of_an_object_is_wrong():
    """Even where another object lies near: a detection looks at its largest overlap alone."""
    real = [truth([(0, 0, 10, 10), (0, 1, 10, 11)], [0, 0])]
    doubled = [found([(0, 0, 10, 10), (0, 0, 10, 10)], [0.9, 0.8], [0, 0])]
    scores = detection_scores(doubled, real, 1)
    assert abs(scores.AP50 - 6 / 11) < 1e-15, "recalls 0 … 0.5 at a precision of 1"


def test_difficult_objects_are_neither_right_nor_wrong_nor_missed():
    box, other = (0, 0, 10, 10), (50, 50, 60, 60)
    real = [truth([box, other], [0, 0], [1, 0])]
    on_both = [found([box, box, other], [0.9, 0.8, 0.7], [0, 0, 0])]
    assert detection_scores(on_both, real, 1).AP == 1
    assert detection_scores([found([box], [0.9], [0])], real, 1).AP == 0


def test_recalls_of_whole_tenths_are_reached():
    """3 of 10 objects: recall 0.3, though 3 times 0.1 is more in floating point."""
    boxes = [(20 * i, 0, 20 * i + 10, 10) for i in range(10)]
    for count in range(11):
        guess = [found(boxes[:count], [0.5] * count, [0] * count)]
        scores = detection_scores(guess, [truth(boxes, [0] * 10)], 1)
        expected = (count + 1) / 11 if count else 0
        assert abs(scores.AP50 - expected) < 1e-15  # a mean of eleven


def test_classes_without_objects_are_left_out_of_the_means():
    real = [truth([(0, 0, 10, 10), (20, 20, 30, 30)], [1, 2], [0, 1])]
    guesses = [found([(0, 0, 10, 8), (5, 5, 9, 9)], [0.5, 0.9], [1, 0])]
    scores = detection_scores(guesses, real, 4)
    assert np.isnan(scores.ap).all(axis=1).tolist() == [True, False, True, True]
    assert scores.AP50 == scores.AP75 == 1
    assert abs(scores.AP - 0.7) < 1e-15, "0.50 … 0.80 of ten thresholds"
    np.testing.assert_allclose(scores.per_class, [np.nan, 0.7, np.nan, np.nan])


def test_nothing_to_find_and_nothing_found():
    empty = found([], [], [])
    assert np.isnan(detection_scores([], [], 2).AP)
    assert np.isnan(detection_scores([empty], [truth([], [])], 2).AP50)
    assert np.isnan(detection_scores([found([(0, 0, 1, 1)], [1], [0])], [truth([], [])], 2).AP)
    scores = detection_scores([empty], [truth([(0, 0, 1, 1)], [0])], 2)
    assert scores.AP == scores.AP75 == 0


def test_boxes_without_area_overlap_nothing():
    real = [truth([(0, 0, 10, 10)], [0])]
    boxes = [(5, 5, 5, 5), (9, 9, 1, 1), (np.nan, 0, 10, 10), (-20, -20, -5, -5)]
    assert detection_scores([found(boxes, [0.9] * 4, [0] * 4)], real, 1).AP == 0


def test_mistakes_of_ours_are_caught():
    one, real = found([(0, 0, 1, 1)], [1.0], [0]), truth([(0, 0, 1, 1)], [0])
    for wrong in (
        lambda: detection_scores([one], [], 1),
        lambda: detection_scores([one], [real], 0),
        lambda: detection_scores([found([(0, 0, 1, 1)], [np.nan], [0])], [real], 1),
    ):
        with pytest.raises(AssertionError):
            wrong()


# --- VOC's pixel numbers. ---


def test_the_plus_one_of_pixel_numbers_is_the_half_open_overlap():
    """Object 1 … 2, detection 1 … 4 in VOC's numbers: 2 of 4 columns, an overlap of a half.

    Without the + 1 it would be 1/3 of the columns, and the detection wrong.
    """
    real, guess = (1, 1, 2, 1), (1, 1, 4, 1)
    assert overlap_of_pixels(real, guess) == Fraction(1, 2)
    tall = [(1, 1, 2, 2), (1, 1, 4, 2)]
    assert overlap_of_pixels(*tall, one=0) == Fraction(1, 3)
    half_open = [(box[0] - 1, box[1] - 1, box[2], box[3]) for box in tall]
    scores = detection_scores([found(half_open[1:], [1.0], [0])], [truth(half_open[:1], [0])], 1)
    assert scores.AP50 == 1
    mistaken = detection_scores([found(tall[1:], [1.0], [0])], [truth(tall[:1], [0])], 1)
    assert mistaken.AP50 == 0, "pixel numbers taken for half-open boxes"


# --- torchmetrics. ---


def on_a_grid(seed: int, images: int, num_classes: int):
    """Objects in cells of their own, so that no detection overlaps two of them.

    There COCO's rule (the best object that is still free) and VOC's agree.
    """
    random = np.random.default_rng(seed)
    annotations, detections = [], []
    for _ in range(images):
        cells = np.array([(100 * x, 100 * y) for x in range(4) for y in range(4)])
        corners = cells[random.permutation(16)[: random.integers(0, 9)]] + 20
        boxes = np.concatenate([corners, corners + random.integers(30, 60, (len(corners), 2))], 1)
        labels = random.integers(0, num_classes, len(boxes))
        annotations.append(truth(boxes, labels))
        picked = np.repeat(np.arange(len(boxes)), random.integers(0, 3, len(boxes)))
        near = boxes[picked] + random.integers(-6, 7, (len(picked), 4))
        stray = cells[random.permutation(16)[:3]] + 5
        near = np.concatenate([near, np.concatenate([stray, stray + 40], axis=1)])
        named = np.concatenate([labels[picked], random.integers(0, num_classes, 3)])
        detections.append(found(near, random.random(len(near)), named))
    return detections, annotations


@pytest.mark.parametrize("seed", range(2))
def test_equal_to_torchmetrics_where_the_rules_agree(seed: int):
    detections, annotations = on_a_grid(seed, 25, 3)
    metric = MeanAveragePrecision(
        iou_thresholds=list(THRESHOLDS),
        rec_thresholds=[k / 10 for k in range(11)],
        extended_summary=True,
        backend="pycocotools",
    )
    metric.update(
        [
            {
                "boxes": torch.from_numpy(d.boxes),
                "scores": torch.from_numpy(d.scores),
                "labels": torch.from_numpy(d.labels),
            }
            for d in detections
        ],
        [
            {"boxes": torch.from_numpy(a.boxes), "labels": torch.from_numpy(a.labels)}
            for a in annotations
        ],
    )
    result = metric.compute()
    # (thresholds, recalls, classes, areas, detections an image): of all areas, 100 detections
    theirs = result["precision"][:, :, :, 0, -1].mean(dim=1).T.numpy()
    scores = detection_scores(detections, annotations, 3)
    assert 0.2 < scores.AP < scores.AP50 < 0.95, "a test with something to tell apart"
    # COCO adds 2e-16 to denominators, and torchmetrics hands precisions on in single precision.
    np.testing.assert_allclose(scores.ap, theirs, rtol=0, atol=2e-7)
    assert float(result["map"]) == pytest.approx(scores.AP, abs=2e-7)
    assert float(result["map_50"]) == pytest.approx(scores.AP50, abs=2e-7)
    assert float(result["map_75"]) == pytest.approx(scores.AP75, abs=2e-7)
