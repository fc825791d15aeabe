"""A packed network that embeds images with burn-engine, without torch."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from burn.core.errors import UserError, printable
from burn.core.inputs import require_regular
from burn.embedding.network import Outputs, Unfit
from burn.embedding.settings import EmbedConfig
from burn.runtime.hardware import cores
from burn_engine.errors import in_file
from burn_engine.format import parse_program, read_bytes
from burn_engine.images import prepare
from burn_engine.model import load_bytes
from burn_engine.reference import run_layer


class PackedNetwork:
    """A packed file as a `Network`. Each thread runs the network on images of its own.

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
