"""Measure burn's binary networks against small float networks, in float32 and in 8 bits.

    python benchmarks/family.py --name "AMD EPYC (Zen 4)" \
        --out reproduction/results/family/zen4.json

At 96×96 and 224×224, one image and one thread: the networks that `burn info --family` compares, in
burn-engine, with every instruction set from the environment's BURN_ENGINE_ISA downwards; and timm's
MobileNetV2, MobileNetV3-small and EfficientNet-lite0 in ONNX Runtime, in float32 and in 8 bits. All
are without classifier. ONNX Runtime always uses everything that the processor has, also when
burn-engine is limited to AVX2.

The 8-bit networks are made by onnxruntime.quantization: static, in QDQ format, a scale for each
channel of the weights, which are signed, and unsigned activations. Eight images of random numbers
calibrate them. Their time is what counts here; random images make no usable network. If
quantization fails, the network is skipped and the reason is printed and written.

All are run in turn in one process, as benchmarks/engine.py does: a turn's value is the median of
its calls after one that is not counted, and a ratio is the median of the turns' ratios to
MobileNetV2 in float32. Weights are random, since time does not depend on them. It needs
`burn-ssl[onnx]`; nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import timm
from eight_bits import quantize

import burn_engine
from burn.backbones.config import BackboneConfig
from burn.costs.family import NAMES
from burn.runtime.hardware import processor, source_commit
from engine import (
    Contender,
    Run,
    export_peer,
    instruction_sets,
    machine,
    network_files,
    one_round,
    onnx_run,
    ratio,
    write_numbers,
)

SIDES = (96, 224)
PEERS = {
    "mobilenetv2_100": "MobileNetV2",
    "mobilenetv3_small_100": "MobileNetV3-small",
    "efficientnet_lite0": "EfficientNet-lite0",
}
REFERENCE = "MobileNetV2"
FLOAT, INT8 = "ONNX Runtime fp32", "ONNX Runtime int8"
_CALIBRATION_IMAGES = 8


def random_images(side: int) -> np.ndarray:
    """Return images of random numbers in [0, 1] for calibration, float32 (8, 3, side, side)."""
    random = np.random.default_rng(0)
    return random.random((_CALIBRATION_IMAGES, 3, side, side), dtype=np.float32)


def make_files(folder: Path) -> tuple[dict[str, Path], dict[tuple[str, str, int], Path], list[str]]:
    """Write all networks.

    Returns:
        The packed files by network; the peers' ONNX files by network, runtime and side; and why
        files are missing.
    """
    packed = {name: network_files(folder, name, BackboneConfig(name), [])[1] for name in NAMES}
    peers: dict[tuple[str, str, int], Path] = {}
    skipped = []
    for name, network in PEERS.items():
        peer = timm.create_model(name, pretrained=False, num_classes=0).eval()
        for side in SIDES:
            file, small = (folder / f"{name}-{side}-{kind}.onnx" for kind in ("fp32", "int8"))
            export_peer(peer, file, side)
            peers[network, FLOAT, side] = file
            try:
                quantize(file, small, random_images(side))
                onnx_run(small, np.zeros((1, 3, side, side), np.float32), 1)()
            except Exception as error:  # the quantizer raises many kinds of errors
                reason = str(error).strip().partition("\n")[0][:200]
                skipped.append(f"{network}, {side} px, int8: {type(error).__name__}: {reason}")
            else:
                peers[network, INT8, side] = small
    return {name: files[name, 0] for name, files in packed.items()}, peers, skipped


def contenders(
    packed: Mapping[str, Path], peers: Mapping[tuple[str, str, int], Path]
) -> dict[Contender, tuple[Run, int]]:
    """Return each contender's call, with one image on one thread, and its file's size in bytes."""
    found: dict[Contender, tuple[Run, int]] = {}
    for side in SIDES:
        image = np.random.default_rng(0).integers(0, 256, (1, side, side, 3), np.uint8)
        floats = np.ascontiguousarray(image.transpose(0, 3, 1, 2).astype(np.float32) / 255)
        for network, file in packed.items():
            for isa in instruction_sets():
                model = burn_engine.load(file, threads=1, isa=isa)
                who = Contender(network, "burn-engine", isa, side, 1, 1)
                run = lambda model=model, image=image: model(image)  # noqa: E731
                found[who] = run, file.stat().st_size
        for (network, runtime, peer_side), file in peers.items():
            if peer_side == side:
                who = Contender(network, runtime, "", side, 1, 1)
                found[who] = onnx_run(file, floats, 1), file.stat().st_size
    return found


def measure(folder: Path, rounds: int, name: str) -> dict[str, Any]:
    """Return all numbers, as `--out` writes them."""
    packed, peers, skipped = make_files(folder)
    found = contenders(packed, peers)
    times: dict[Contender, list[float]] = {who: [] for who in found}
    for _ in range(rounds):
        for who, milliseconds in one_round({who: run for who, (run, _) in found.items()}).items():
            times[who].append(milliseconds)
    rows = []
    for who, milliseconds in times.items():
        reference = times[Contender(REFERENCE, FLOAT, "", who.size, 1, 1)]
        rows.append(
            {
                **asdict(who),
                "file_bytes": found[who][1],
                "milliseconds": round(statistics.median(milliseconds), 4),
                "speed": round(ratio(reference, milliseconds), 3),
            }
        )
    return {
        "name": name,
        "source": f"benchmarks/family.py, {rounds} rounds, commit {source_commit()}",
        "machine": {
            **machine(),
            "timm": timm.__version__,
            "burn_engine": burn_engine.__version__,
        },
        "rows": rows,
        "skipped": skipped,
    }


def show(found: Mapping[str, Any]) -> None:
    """Print the numbers as lines."""
    for name, value in found["machine"].items():
        print(f"{name:16} {value}")
    for side in SIDES:
        print()
        print(
            f"{side} pixels, one image, one thread; speed: times as fast as {REFERENCE} in float32"
        )
        print(f"  {'network':20} {'runtime':28} {'file':>9} {'ms':>9} {'speed':>7}")
        for row in (row for row in found["rows"] if row["size"] == side):
            runtime = f"{row['runtime']} {row['isa']}".strip()
            size = f"{row['file_bytes'] / 1e6:.2f} MB"
            print(
                f"  {row['network']:20} {runtime:28} {size:>9} {row['milliseconds']:9.3f} "
                f"{row['speed']:7.2f}"
            )
    for reason in found["skipped"]:
        print(f"skipped: {reason}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--name", default=processor(), help="machine's name")
    parser.add_argument("--out", type=Path, help="write everything to this JSON file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)  # the quantizer gives advice
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.rounds, options.name)
    if options.out:
        write_numbers(found, options.out)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
