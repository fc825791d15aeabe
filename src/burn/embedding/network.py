"""What `burn embed` needs of a network, and a packed file as one, without torch."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from rich.console import Console

from burn.core.errors import UserError, printable
from burn.core.inputs import require_regular
from burn.embedding.settings import EmbedConfig
from burn.runtime.hardware import cores
from burn_engine.errors import in_file
from burn_engine.format import parse_program, read_bytes
from burn_engine.images import prepare
from burn_engine.model import load_bytes
from burn_engine.reference import run_layer


class Unfit(Exception):
    """Raised for an image that a network cannot take, such as one of too many pixels."""


@dataclass(frozen=True)
class Outputs:
    """Outputs for some images.

    Attributes:
        features: float32 (images, features).
        scores: float32 (images, classes), or None without a classifier.
    """

    features: np.ndarray
    scores: np.ndarray | None


class Network(Protocol):
    """A network that embeds images in two steps: one for each image, and one for a batch.

    `prepare` is called in several threads, with a tensor or an array as `tensors` says; it raises
    Unfit for an image that the network cannot take. `finish` is called in one thread, with what
    `prepare` returned for the images of a batch.

    Attributes:
        fingerprint: A string that changes with the weights, the classifier and the preparation of
            images.
        classes: Names of the scores; empty without a classifier.
        settings: Other settings, as plain values, that the outputs depend on.
        tensors: Whether `prepare` takes tensors (3, height, width), not arrays (height, width, 3).
        threads: Number of threads that call `prepare`.
    """

    name: str
    fingerprint: str
    num_features: int
    classes: tuple[str, ...]
    settings: dict[str, Any]
    notes: tuple[str, ...]
    tensors: bool
    batch_size: int
    threads: int

    def prepare(self, image: Any) -> Any: ...
    def finish(self, prepared: Sequence[Any]) -> Outputs: ...


class PackedNetwork:
    """A packed file, run by burn-engine: each thread runs it on images of its own.

    A warning of burn-engine is shown on `console`.
    """

    tensors = False
    batch_size = 256
    notes: tuple[str, ...] = ()

    def __init__(self, config: EmbedConfig, console: Console) -> None:
        path = config.packed_file
        assert path is not None, config.model
        require_regular(path)
        try:
            with in_file(path), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                data = read_bytes(path)
                program = parse_program(data)
                self._model = load_bytes(data)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise UserError(str(error)) from error
        for warning in caught:
            console.print(printable(str(warning.message)), style="yellow")
        self.name = path.name
        self.fingerprint = hashlib.sha256(data).hexdigest()[:16]
        self.num_features = self._model.num_features
        self.classes = self._model.classes
        self.settings: dict[str, Any] = {}
        self.threads = config.threads or cores()
        self._classifier = program.layers[program.features + 1 :]

    def prepare(self, image: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return features, float32 (features,), and scores, float32 (classes,) or None."""
        try:
            features = self._model.features(prepare(image, self._model.image))
        except ValueError as error:
            raise Unfit(str(error)) from error
        if not self._classifier:
            return features, None
        # From the features, since the engine would run the whole network again for the scores.
        # An image alone, so that rounding does not depend on its neighbours.
        scores = features[None]
        for layer in self._classifier:
            scores = run_layer(layer, scores)
        return features, scores[0]

    def finish(self, prepared: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> Outputs:
        """Return the outputs of a batch, of which `prepare` has computed all."""
        features = np.stack([output for output, _ in prepared])
        scores = [output for _, output in prepared if output is not None]
        return Outputs(features, np.stack(scores) if scores else None)
