"""Float networks in 8 bits, by ONNX Runtime's static quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

_AT_ONCE = 32


class _Images(CalibrationDataReader):
    def __init__(self, images: np.ndarray) -> None:
        self._batches = iter(np.array_split(images, -(-len(images) // _AT_ONCE)))

    def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
        batch = next(self._batches, None)
        return None if batch is None else {"images": batch}


def quantize(file: Path, out: Path, images: np.ndarray, percentile: float | None = None) -> None:
    """Write an ONNX network in 8 bits, in QDQ format, after ONNX Runtime has folded what it can.

    Weights are signed, with a scale for each channel, and activations unsigned.

    Args:
        file: The float32 network, with one input, `images`.
        out: The file to write.
        images: Images that choose the ranges of the activations, float32 (n, 3, side, side).
        percentile: Share of the activations in percent that the ranges hold; None for all.
    """
    prepared = out.with_suffix(".prepared.onnx")
    quant_pre_process(file, prepared, skip_symbolic_shape=True)
    percent = percentile is not None
    quantize_static(
        prepared,
        out,
        _Images(images),
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.Percentile if percent else CalibrationMethod.MinMax,
        extra_options={"CalibPercentile": percentile} if percent else {},
    )
