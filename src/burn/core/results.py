"""Results as lines of results.jsonl, without torch, so that reports do not need it either."""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burn.core.errors import UserError
from burn.core.files import append_lines, write_failures_named
from burn.core.inputs import read_text
from burn.core.paths import located_path, stored_path

_LIMIT = 2**30  # bytes; a line has about a kilobyte, and up to 10 with the answers of 50,000 images


@dataclass(frozen=True)
class Result:
    """One measured number, which is a line of `results.jsonl`.

    Attributes:
        protocol: Name of the protocol.
        metric: Name of the metric.
        value: The number, in percent. Protocol pack alone has other units, which its metrics name:
            bytes and float32_bytes, milliseconds (of an image), cosine (-1 to 1).
        model: Name of the model for tables.
        checkpoint: The checkpoint, as the command names it. Files hold its path relative to their
            own folder.
        train: Training data, "" if there is none.
        test: Test data, "" if there is none.
        seed: Random seed.
        seconds: Time that the measurement took.
        settings: Settings of the protocol.
        spread: Standard deviation over samples, where the value is a mean over them.
        data: Facts about train and test: num_classes, classes (the names, up to 1,000),
            train_images, test_images, train_fingerprint, test_fingerprint and, where each image has
            one label, largest_class: the share in percent of the test images that the most frequent
            class has. None in results of burn 0.1.0 and where there is nothing to say.
        training: How the stage that gave the checkpoint was trained: stage, steps, images_seen,
            precision. Where they are known, also run, the name in run.json of the run that it
            belongs to, and teacher_labels, the data whose labels its teacher was trained with.
            None in results of burn 0.1.0 and where there is nothing to say.
        right: For a top-1 accuracy, which test images were classified correctly: base64 of a bit
            for each position in test, packed from the highest bit of a byte down; 0 for an image
            that could not be read.
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


def _facts(result: Result) -> Mapping[str, Any]:
    """Return `Result.data`, or nothing where a file has no such facts."""
    return result.data if isinstance(result.data, Mapping) else {}


def num_test_images(result: Result) -> int | None:
    """Return the number of test images, or None where the result does not say it."""
    number = _facts(result).get("test_images")
    return number if type(number) is int and number > 0 else None


def encode_right(right: NDArray[np.bool_]) -> str:
    """Encode which test images were classified correctly, bool (images,), as `Result.right`."""
    return base64.b64encode(np.packbits(right).tobytes()).decode("ascii")


def decode_right(result: Result) -> NDArray[np.bool_] | None:
    """Decode `Result.right` to bool (test images,); None if it is missing or of another length."""
    number = num_test_images(result)
    if not isinstance(result.right, str) or number is None:
        return None
    try:
        packed = np.frombuffer(base64.b64decode(result.right, validate=True), dtype=np.uint8)
    except ValueError:
        return None
    if len(packed) != (number + 7) // 8:
        return None
    return np.unpackbits(packed, count=number).astype(bool)


ACCURACIES = ("knn", "linear", "finetune", "semi", "transfer")  # protocols that predict one class
_IMBALANCED = 1.2  # times the share of each of equally frequent classes


def majority_accuracy(result: Result) -> float | None:
    """Return the accuracy of always predicting the most frequent class, for imbalanced test images.

    It is in percent; None for a result that is not a top-1 accuracy, for classes that are about
    equally frequent, and for results without this fact.
    """
    if result.protocol not in ACCURACIES or not result.metric.endswith("top1"):
        return None
    facts = _facts(result)
    share, classes = facts.get("largest_class"), facts.get("num_classes")
    if not isinstance(share, (int, float)) or not isinstance(classes, int):
        return None
    if not 0 < share <= 100 or classes < 1:
        return None
    return float(share) if share > min(_IMBALANCED * 100 / classes, 99) else None


def result_lines(results: Sequence[Result], folder: Path) -> str:
    """Return each result as a line of JSON, as a file of results in a folder holds them."""
    stored = (replace(r, checkpoint=stored_path(r.checkpoint, folder)) for r in results)
    return "".join(json.dumps(asdict(result)) + "\n" for result in stored)


def append_results(path: Path, results: Sequence[Result]) -> None:
    """Append a line for each result to a file, safely with several processes.

    Its folder is created if there is none. After a UserError, the file is as it was.
    """
    with _folder_made(path):
        append_lines(path, result_lines(results, path.parent))


def require_appendable(path: Path) -> None:
    """Create the folder of a file of results; raise UserError if nothing can be written to it.

    The file itself is not created.
    """
    with _folder_made(path):
        if path.exists():
            append_lines(path, "")
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass


@contextlib.contextmanager
def _folder_made(path: Path) -> Iterator[None]:
    """Create a file's folder first; an OSError in this context becomes a UserError."""
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"{path.parent} is a file: give a folder")
    with write_failures_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield


def read_results(path: Path) -> list[Result]:
    """Read all results of a file, in order, with their checkpoints where they are now."""
    lines = read_text(path, _LIMIT).splitlines()
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            result = Result(**json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise UserError(f"{path} line {number} is not a result: {error}") from error
        if isinstance(result.checkpoint, str):
            result = replace(result, checkpoint=located_path(result.checkpoint, path.parent))
        results.append(result)
    return results
