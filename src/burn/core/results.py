"""results.jsonl: one number a line. Nothing here needs torch, so that reports do not either."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burn.core.errors import UserError
from burn.core.files import append_lines


@dataclass(frozen=True)
class Result:
    """One number: a line of `results.jsonl`.

    value is in percent; spread its standard deviation over samples, where it is a mean of some.
    Protocol pack alone has other units, which its metrics name: bytes and float32_bytes,
    milliseconds (of an image), cosine (-1 to 1). train and test are "" where there are none.

    data says what train and test are, beyond their names: num_classes, classes (the names, up to
    1,000), train_images, test_images, train_fingerprint, test_fingerprint and, where each image has
    one label, largest_class: the share in percent of the test images that the most frequent class
    has. training says how long the stage that gave the checkpoint was trained: stage, steps,
    images_seen; and teacher_labels, the data whose labels its teacher was trained with, where that
    is known. Both are None in results of burn 0.1.0 and where there is nothing to say.

    right says of a top-1 which test images were answered rightly: base64 of a bit for each position
    in test, packed from the highest bit of a byte down; 0 for one that could not be read.
    """

    protocol: str
    metric: str
    value: float
    model: str
    checkpoint: str
    train: str
    test: str
    seed: int
    seconds: float
    settings: Mapping[str, Any]
    spread: float | None = None
    data: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None
    right: str | None = None


def packed_answers(right: NDArray[np.bool_]) -> str:
    """Which test images were answered rightly, bool (images,), as `Result.right` keeps it."""
    return base64.b64encode(np.packbits(right).tobytes()).decode("ascii")


def answers_of(result: Result) -> NDArray[np.bool_] | None:
    """Bool (test images,); None where the result does not tell, or not of as many images."""
    data = result.data if isinstance(result.data, Mapping) else {}
    number = data.get("test_images")
    if not isinstance(result.right, str) or not isinstance(number, int) or number < 1:
        return None
    try:
        packed = np.frombuffer(base64.b64decode(result.right, validate=True), dtype=np.uint8)
    except ValueError:
        return None
    if len(packed) != (number + 7) // 8:
        return None
    return np.unpackbits(packed, count=number).astype(bool)


ACCURACIES = ("knn", "linear", "semi", "transfer")  # protocols that answer with one class
_IMBALANCED = 1.2  # times the share that the largest of equally frequent classes has


def largest_class(result: Result) -> float | None:
    """What always answering the most frequent class scores, in percent, on imbalanced test images.

    None for what is no top-1 accuracy, where the classes are about equally frequent, and for
    results that do not say.
    """
    if result.protocol not in ACCURACIES or not result.metric.endswith("top1"):
        return None
    data = result.data if isinstance(result.data, Mapping) else {}
    share, classes = data.get("largest_class"), data.get("num_classes")
    if not isinstance(share, (int, float)) or not isinstance(classes, int):
        return None
    if not 0 < share <= 100 or classes < 1:
        return None
    return float(share) if share > min(_IMBALANCED * 100 / classes, 99) else None


def result_lines(results: Sequence[Result]) -> str:
    """A line of JSON each, as files of results hold them."""
    return "".join(json.dumps(asdict(result)) + "\n" for result in results)


def append_results(path: Path, results: Sequence[Result]) -> None:
    """Add a line for each result to a file, which two processes may do at the same time.

    With no results it only checks that there can be such a file, and makes its folder.

    Raises:
        UserError: It cannot be written; it is then as it was.
    """
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"{path.parent} is a file: give a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if results or path.exists():
            append_lines(path, result_lines(results))
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error


def read_results(path: Path) -> list[Result]:
    """All results of a file, in order. Raises UserError for a line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(Result(**json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{path} line {number} is not a result: {error}") from error
    return results
